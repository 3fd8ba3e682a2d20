"""The broker's settings."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  msgspec reads the annotations at run time

import msgspec

from broker.log.config import FsyncPolicy  # noqa: TC001
from broker.security.exposure import is_loopback

__all__ = ["BrokerSettings"]

KIB = 1024
MIB = 1024 * KIB
HOUR = 3600.0
DAY = 24 * HOUR

_MAX_NODE_ID = 2**31 - 1


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set about a broker; times in seconds, sizes in bytes.

    Settings of topics (partitions, retention, segments, message size) are defaults: a topic's own
    configuration goes before them. Raises ValueError that names the setting when a value makes no sense.
    """

    # where
    data_dir: Path
    node_id: int = 0  # as clients see this node; it is written nowhere and may change
    host: str = "127.0.0.1"
    port: int = 9092  # 0: any free port
    advertised_host: str | None = None  # default: the address that a client connected to
    advertised_port: int | None = None  # default: the port that was bound

    http_port: int | None = (
        None  # for /live, /ready and /metrics; None: not served; 0: any free port
    )
    http_host: str = "127.0.0.1"

    # security
    tls_certificate: Path | None = None  # a chain in PEM; with it, connections must be encrypted
    tls_key: Path | None = None  # its private key in PEM
    tls_client_ca: Path | None = None  # who signs the certificates that clients must then have
    users_file: Path | None = None  # with it, clients must authenticate by SASL
    acl_file: Path | None = None  # with it, what it does not allow is denied
    insecure: bool = False  # other machines may connect without encryption or authentication
    authentication_timeout: float = 10.0  # for TLS, and again for SASL
    max_unauthenticated_connections: int = 1_000
    produce_quota_bytes: int | None = None  # per second and user, or client id; None: no limit
    fetch_quota_bytes: int | None = None  # the same

    # topics
    auto_create_topics: bool = True
    default_partitions: int = 1
    max_partitions: int = 4_000  # of all topics together; each keeps files open
    message_max_bytes: int = 1_048_588  # of one record batch, as Kafka's message.max.bytes
    retention_seconds: float | None = 7 * DAY  # None: no limit
    retention_bytes: int | None = None  # of one partition; None: no limit
    retention_check_interval: float = 60.0
    compaction_check_interval: float = 15.0
    segment_bytes: int = 256 * MIB
    segment_seconds: float = 7 * DAY
    index_interval_bytes: int = 4 * KIB

    # durability
    fsync: FsyncPolicy = "interval"
    fsync_interval: float = 1.0

    # consumer groups
    group_initial_rebalance_delay: float = 0.0
    group_min_session_timeout: float = 6.0
    group_max_session_timeout: float = 1800.0
    group_max_size: int = 10_000
    offsets_retention_seconds: float = 7 * DAY
    offset_metadata_max_bytes: int = 4 * KIB

    # transactions and idempotent producers
    transaction_max_timeout: float = 900.0
    transactional_id_expiration_seconds: float = 7 * DAY
    producer_id_expiration_seconds: float = DAY

    # connections
    request_max_bytes: int = 100 * MIB  # a larger request closes its connection
    control_request_max_bytes: int = 4 * MIB  # the same, of all requests but Produce
    request_memory_bytes: int = 256 * MIB  # all requests that are being received, together
    fetch_max_bytes: int = 4 * MIB  # of one fetch response, unless its first batch is larger
    response_memory_bytes: int = 256 * MIB  # all fetch responses that are being sent, together
    max_connections: int = 10_000
    max_connections_per_address: int | None = None
    connection_idle_seconds: float = 600.0  # without a request
    request_timeout: float = 30.0  # without progress of a request that has begun to arrive
    response_timeout: float = 120.0  # without progress of a response that the client should read
    shutdown_timeout: float = 5.0  # for responses that are being sent
    shutdown_deadline: float = 25.0  # for the whole stop; then `kmr broker serve` ends its process

    def __post_init__(self) -> None:
        for name in ("port", "advertised_port", "http_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65_535:
                raise ValueError(f"{name} must be between 0 and 65535, not {value}")
        if not 0 <= self.node_id <= _MAX_NODE_ID:
            raise ValueError(f"node_id must be between 0 and {_MAX_NODE_ID}, not {self.node_id}")
        positive = (
            "default_partitions",
            "max_partitions",
            "message_max_bytes",
            "retention_seconds",
            "retention_bytes",
            "retention_check_interval",
            "compaction_check_interval",
            "segment_seconds",
            "index_interval_bytes",
            "fsync_interval",
            "group_min_session_timeout",
            "group_max_size",
            "offsets_retention_seconds",
            "transaction_max_timeout",
            "transactional_id_expiration_seconds",
            "producer_id_expiration_seconds",
            "request_memory_bytes",
            "fetch_max_bytes",
            "control_request_max_bytes",
            "max_connections",
            "max_connections_per_address",
            "max_unauthenticated_connections",
            "authentication_timeout",
            "produce_quota_bytes",
            "fetch_quota_bytes",
            "connection_idle_seconds",
            "request_timeout",
            "response_timeout",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be greater than 0, not {value}")
        for name in (
            "group_initial_rebalance_delay",
            "offset_metadata_max_bytes",
            "shutdown_timeout",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        ordered = (
            ("default_partitions", "max_partitions"),
            ("group_min_session_timeout", "group_max_session_timeout"),
            ("message_max_bytes", "request_max_bytes"),
            ("message_max_bytes", "segment_bytes"),
            ("request_max_bytes", "request_memory_bytes"),
            ("fetch_max_bytes", "response_memory_bytes"),
            ("shutdown_timeout", "shutdown_deadline"),
        )
        for low, high in ordered:
            if getattr(self, low) > getattr(self, high):
                raise ValueError(
                    f"{low} ({getattr(self, low)}) must not be greater than {high} ({getattr(self, high)})"
                )
        self._check_security()
        if self.fsync not in ("always", "interval", "os"):
            raise ValueError(f"fsync must be always, interval or os, not {self.fsync!r}")

    @property
    def security_protocol(self) -> str:
        """How clients must connect, in Kafka's words."""
        encrypted, authenticated = self.tls_certificate is not None, self.users_file is not None
        if authenticated:
            return "SASL_SSL" if encrypted else "SASL_PLAINTEXT"
        return "SSL" if encrypted else "PLAINTEXT"

    def _check_security(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together: set both or neither")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        if self.insecure:
            return
        if self.http_port is not None and not is_loopback(self.http_host):
            raise ValueError(
                f"http_host {self.http_host!r} lets other machines read the metrics, with the names of"
                " topics and groups, without encryption or authentication; set insecure if they may"
            )
        if is_loopback(self.host):
            return
        missing = []
        if self.tls_certificate is None:
            missing.append("encryption: set tls_certificate and tls_key")
        if self.users_file is None and self.tls_client_ca is None:
            missing.append("authentication: set users_file (SASL) or tls_client_ca (mutual TLS)")
        if missing:
            raise ValueError(
                f"host {self.host!r} lets other machines connect, without {'; without '.join(missing)};"
                " or set insecure if whoever reaches it may read and write everything"
            )
