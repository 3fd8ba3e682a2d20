"""Every setting of a broker; `kmr.config` makes flags and variables of them.

Times are in seconds, sizes in bytes. Settings of topics (partitions, retention, segments, message size) are
defaults: a topic's own configuration overrides them.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path  # noqa: TC003  msgspec reads the annotations at run time
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kmr.config.layers import Conflict, Layers
from kmr.config.schema import BYTES, SECONDS, Bytes, Count, Port, Seconds, Text, about, check_values

from .listeners import Listener, read_listeners
from .log.log_config import (
    DEFAULT_FSYNC,
    DEFAULT_FSYNC_INTERVAL,
    DEFAULT_INDEX_INTERVAL_BYTES,
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_PRODUCER_EXPIRATION_MS,
    DEFAULT_RETENTION_MS,
    DEFAULT_SEGMENT_MS,
    FsyncPolicy,
)

KIB = 1024
MIB = 1024 * KIB
HOUR = 3600.0
DAY = 24 * HOUR

NodeId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
SomeSeconds = Annotated[float, Meta(ge=0, extra={"unit": SECONDS})]
LifetimeSeconds = Annotated[float, Meta(ge=0, le=1e9, extra={"unit": SECONDS})]
SomeBytes = Annotated[int, Meta(ge=0, extra={"unit": BYTES})]


def is_loopback(host: str) -> bool:
    """Return whether `host` can only be reached from this machine; of names, only localhost counts."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting of a broker.

    Raises:
        SettingsError: a value is not allowed, or two do not fit together.
    """

    data_dir: Annotated[
        Path,
        about(
            "Directory for all data; created if missing. One broker at a time can use it.",
            flag="data",
            section="Address and data",
        ),
    ]
    node_id: Annotated[
        NodeId, about("Id of this node, as clients see it; it may differ at every start.")
    ] = 0
    host: Annotated[
        str, about("Address to listen on; 0.0.0.0 for every interface, which needs TLS and users.")
    ] = "127.0.0.1"
    port: Annotated[Port, about("Port to listen on; 0 takes any free one.")] = 9092
    advertised_host: Annotated[
        str | None,
        about("Host name that clients connect to; default: the address they used first."),
    ] = None
    advertised_port: Annotated[
        Port | None, about("Port that clients connect to; default: the bound port.")
    ] = None
    listeners: Annotated[
        tuple[Text, ...],
        about(
            "Listener with a security of its own, instead of host and port, such as "
            "EXTERNAL=sasl_ssl://0.0.0.0:9093 beside INTERNAL=plaintext://127.0.0.1:9092; may be repeated.",
            flag="listener",
        ),
    ] = ()
    advertised_listeners: Annotated[
        tuple[Text, ...],
        about(
            "Address that the clients of a listener connect to, such as EXTERNAL=kafka.example.com:9093; "
            "may be repeated.",
            flag="advertise",
        ),
    ] = ()
    http_port: Annotated[
        Port | None,
        about("Port for /live, /ready and /metrics (Prometheus); 0 takes any free one."),
    ] = None
    http_host: Annotated[
        str, about("Address of the HTTP port; any but loopback needs --insecure.")
    ] = "127.0.0.1"

    tls_certificate: Annotated[
        Path | None,
        about(
            "Certificate chain (PEM); with it, connections must be encrypted by TLS.",
            section="Security",
        ),
    ] = None
    tls_key: Annotated[
        Path | None, about("The private key (PEM) of the certificate, without a passphrase.")
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        about("Authorities (PEM) that must have signed the clients' certificates: mutual TLS."),
    ] = None
    users_file: Annotated[
        Path | None,
        about(
            "Users from `kmr broker user add`; with it, clients must authenticate by SASL.",
            flag="users",
        ),
    ] = None
    acl_file: Annotated[
        Path | None,
        about(
            "Rules from `kmr broker acl allow`; with it, what no rule allows is denied.",
            flag="acls",
        ),
    ] = None
    super_users: Annotated[
        tuple[Text, ...],
        about(
            "Principal that is allowed everything, whatever the rules say, such as User:admin; may be "
            "repeated.",
            flag="super-user",
        ),
    ] = ()
    allow_if_no_acl: Annotated[
        bool,
        about(
            "Allow everyone everything on a resource that no rule names, as Kafka's "
            "allow.everyone.if.no.acl.found."
        ),
    ] = False
    insecure: Annotated[
        bool,
        about(
            "Let other machines connect, or read the metrics, without encryption or authentication."
        ),
    ] = False
    authentication_timeout: Annotated[
        Seconds, about("Time that a client has for TLS, and again for SASL.")
    ] = 10.0
    authentication_lifetime: Annotated[
        LifetimeSeconds,
        about(
            "Time after which a client must authenticate again by SASL, on the same connection; if not, its "
            "next request closes the connection. 0: never."
        ),
    ] = 0.0
    max_unauthenticated_connections: Annotated[
        Count, about("Most connections at a time that are not yet authenticated.")
    ] = 1_000
    faults_file: Annotated[
        Path | None,
        about(
            "Faults for tests of clients (TOML): requests that fail, wait, lose their connection or are "
            "never answered.",
            flag="faults",
        ),
    ] = None

    auto_create_topics: Annotated[
        bool, about("Create a topic when a client first asks for it.", section="Topics")
    ] = True
    default_partitions: Annotated[
        Count, about("Partitions of topics that are created without a number.", flag="partitions")
    ] = 1
    max_partitions: Annotated[
        Count, about("Most partitions of all topics together; each keeps files open.")
    ] = 4_000
    message_max_bytes: Annotated[
        Bytes, about("Largest record batch that is accepted, as Kafka's message.max.bytes.")
    ] = DEFAULT_MAX_MESSAGE_BYTES
    retention_seconds: Annotated[
        Seconds | None, about("Older records are deleted; none keeps them.")
    ] = DEFAULT_RETENTION_MS / 1000
    retention_bytes: Annotated[
        Bytes | None,
        about("Size of a partition above which its oldest records are deleted; none keeps them."),
    ] = None
    retention_check_interval: Annotated[
        Seconds, about("Time between two searches for records to delete.")
    ] = 60.0
    compaction_check_interval: Annotated[
        Seconds, about("Time between two searches for logs to compact.")
    ] = 15.0
    segment_bytes: Annotated[
        Bytes, about("Size at which a partition's active segment is rolled.")
    ] = 256 * MIB
    segment_seconds: Annotated[
        Seconds, about("Age at which a partition's active segment is rolled.")
    ] = DEFAULT_SEGMENT_MS / 1000
    index_interval_bytes: Annotated[
        Bytes, about("Bytes of records between two entries of the index.")
    ] = DEFAULT_INDEX_INTERVAL_BYTES

    fsync: Annotated[
        FsyncPolicy,
        about(
            "When acknowledged records are synced to disk: always (before the acknowledgement), "
            "interval, or os (when the operating system does). All survive a kill of the broker; only "
            "always survives a power failure without loss.",
            section="Durability",
        ),
    ] = DEFAULT_FSYNC
    fsync_interval: Annotated[Seconds, about("Time between two syncs with --fsync interval.")] = (
        DEFAULT_FSYNC_INTERVAL
    )

    group_initial_rebalance_delay: Annotated[
        SomeSeconds,
        about("Time that an empty group waits for more members.", section="Consumer groups"),
    ] = 0.0
    group_min_session_timeout: Annotated[
        Seconds, about("Shortest session timeout that a member may ask for.")
    ] = 6.0
    group_max_session_timeout: Annotated[
        Seconds, about("Longest session timeout that a member may ask for.")
    ] = 1800.0
    group_max_size: Annotated[Count, about("Most members of one group.")] = 10_000
    group_consumer_session_timeout: Annotated[
        Seconds,
        about("Session timeout of members with group.protocol=consumer: the broker decides."),
    ] = 45.0
    group_consumer_heartbeat_interval: Annotated[
        Seconds, about("Time between two heartbeats of members with group.protocol=consumer.")
    ] = 5.0
    group_consumer_max_size: Annotated[
        Count, about("Most members of one group with group.protocol=consumer.")
    ] = 10_000
    group_memory_bytes: Annotated[
        Bytes,
        about("Memory for all groups: names, what members say of themselves, committed offsets."),
    ] = 256 * MIB
    offsets_retention_seconds: Annotated[
        Seconds, about("Time that offsets are kept after the last member has left.")
    ] = 7 * DAY
    offset_metadata_max_bytes: Annotated[
        SomeBytes, about("Longest metadata that may be committed with an offset.")
    ] = 4 * KIB

    transaction_max_timeout: Annotated[
        Seconds,
        about("Longest time that a producer may keep a transaction open.", section="Transactions"),
    ] = 900.0
    transaction_memory_bytes: Annotated[
        Bytes, about("Memory for all transactional ids and the partitions of their transactions.")
    ] = 64 * MIB
    transactional_id_expiration_seconds: Annotated[
        Seconds, about("Time that an unused transactional id is kept.")
    ] = 7 * DAY
    producer_id_expiration_seconds: Annotated[
        Seconds,
        about(
            "Time that an idle producer is remembered; until then a batch that it repeats is written "
            "once."
        ),
    ] = DEFAULT_PRODUCER_EXPIRATION_MS / 1000

    request_max_bytes: Annotated[
        Bytes, about("Largest request; a larger one closes its connection.", section="Connections")
    ] = 100 * MIB
    control_request_max_bytes: Annotated[
        Bytes, about("Largest request that is not a Produce request.")
    ] = 4 * MIB
    request_memory_bytes: Annotated[
        Bytes, about("Memory for all requests that are being received.")
    ] = 256 * MIB
    fetch_max_bytes: Annotated[
        Bytes, about("Largest fetch response, unless its first batch is larger.")
    ] = 4 * MIB
    response_memory_bytes: Annotated[
        Bytes, about("Memory for all fetch responses that are being sent.")
    ] = 256 * MIB
    max_connections: Annotated[Count, about("Most connections at a time.")] = 10_000
    max_connections_per_address: Annotated[
        Count | None, about("Most connections at a time from one address.")
    ] = None
    connection_idle_seconds: Annotated[
        Seconds, about("Time without a request after which a connection is closed.")
    ] = 600.0
    request_timeout: Annotated[
        Seconds,
        about(
            "Time for a request to arrive, and a second more for each MiB of it; then its connection is"
            " closed."
        ),
    ] = 30.0
    response_timeout: Annotated[
        Seconds,
        about("Time without progress of a response being sent until its connection is closed."),
    ] = 120.0
    shutdown_timeout: Annotated[
        SomeSeconds, about("Time for responses that are being sent when the broker stops.")
    ] = 5.0
    shutdown_deadline: Annotated[
        Seconds,
        about("Time for the whole stop, logs included; then the process ends with exit code 3."),
    ] = 25.0

    def __post_init__(self) -> None:
        check_values(self)
        ordered = (
            ("default_partitions", "max_partitions"),
            ("group_min_session_timeout", "group_max_session_timeout"),
            ("group_consumer_heartbeat_interval", "group_consumer_session_timeout"),
            ("message_max_bytes", "request_max_bytes"),
            ("message_max_bytes", "segment_bytes"),
            ("request_max_bytes", "request_memory_bytes"),
            ("fetch_max_bytes", "response_memory_bytes"),
            ("shutdown_timeout", "shutdown_deadline"),
        )
        for low, high in ordered:
            if getattr(self, low) > getattr(self, high):
                raise Conflict(
                    (low, high),
                    f"{low} ({getattr(self, low)}) must not be greater than {high} "
                    f"({getattr(self, high)})",
                )
        self._check_listeners()
        self._check_security()
        self._check_openness()

    def addresses(self) -> list[Listener]:
        """Return the listeners: those that are named, or the one of `host` and `port`.

        Raises:
            ValueError: they cannot be read.
        """
        if self.listeners:
            return read_listeners(self.listeners, self.advertised_listeners)
        security = "SSL" if self.tls_certificate is not None else "PLAINTEXT"
        protocol = security if self.users_file is None else f"SASL_{security}"
        own = (self.host, self.port, self.advertised_host, self.advertised_port)
        return [Listener(protocol, protocol, *own)]

    def _check_listeners(self) -> None:
        if not self.listeners:
            if self.advertised_listeners:
                raise Conflict(
                    ("advertised_listeners",),
                    "advertised_listeners (--advertise) needs listeners (--listener); of one listener set "
                    "advertised_host and advertised_port",
                )
            return
        for name in ("host", "port", "advertised_host", "advertised_port"):
            if getattr(self, name) != _DEFAULTS[name]:
                raise Conflict(
                    ("listeners", name), f"listeners (--listener) and {name} exclude each other"
                )
        try:
            found = self.addresses()
        except ValueError as error:
            raise Conflict(("listeners",), f"listeners: {error}") from None
        for each in found:
            if each.is_encrypted and self.tls_certificate is None:
                raise Conflict(
                    ("listeners",),
                    f"listener {each.name} needs tls_certificate and tls_key (--tls-certificate, --tls-key)",
                )
            if each.is_authenticated and self.users_file is None:
                raise Conflict(
                    ("listeners",), f"listener {each.name} needs users_file (--users) for SASL"
                )

    def _check_security(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise Conflict(
                ("tls_certificate", "tls_key"),
                "tls_certificate and tls_key go together: set both or neither",
            )
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise Conflict(("tls_client_ca",), "tls_client_ca needs tls_certificate and tls_key")
        for user in self.super_users:
            if not user.startswith("User:") or user == "User:":
                raise Conflict(
                    ("super_users",),
                    f"super_users: {user!r} is no principal; use User: and a name, such as User:admin",
                )
        for name in ("super_users", "allow_if_no_acl"):
            if getattr(self, name) and self.acl_file is None:
                raise Conflict(
                    (name,),
                    f"{name} needs acl_file (--acls): without rules, everyone is allowed everything",
                )

    def _check_openness(self) -> None:
        if self.insecure:
            return
        if not is_loopback(self.http_host) and self.http_port is not None:
            raise Conflict(
                ("http_host",),
                f"http_host {self.http_host!r} lets other machines read the metrics, with the names "
                "of topics and groups, without encryption or authentication; set insecure "
                "(--insecure) to allow it",
            )
        for each in self.addresses():
            if not is_loopback(each.host):
                name = "listeners" if self.listeners else "host"
                self.check_open_to_others(name, "connect", each)

    def check_open_to_others(self, name: str, what: str, listener: Listener | None = None) -> None:
        """Raise Conflict if other machines could do something without encryption or authentication."""
        missing = []
        is_encrypted = self.tls_certificate is not None
        is_authenticated = self.users_file is not None
        if listener is not None:
            is_encrypted, is_authenticated = listener.is_encrypted, listener.is_authenticated
        if not is_encrypted:
            missing.append(
                "encryption: set tls_certificate and tls_key (--tls-certificate, --tls-key)"
            )
        if not is_authenticated and not (is_encrypted and self.tls_client_ca is not None):
            missing.append(
                "authentication: set users_file (--users) for SASL, or tls_client_ca (--tls-client-ca) "
                "for mutual TLS"
            )
        if missing:
            shown = listener.name if listener and self.listeners else getattr(self, name)
            raise Conflict(
                (name,),
                f"{name} {shown!r} lets other machines {what}, without "
                f"{'; without '.join(missing)}; or set insecure (--insecure) to let any client read and "
                "write everything",
            )


_DEFAULTS: Final = {each.name: each.default for each in msgspec.structs.fields(BrokerSettings)}

BROKER: Final = Layers(BrokerSettings, variables="KMR_BROKER__")
