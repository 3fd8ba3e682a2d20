"""Every setting of a worker: defaults < TOML file < environment < flags.

Times are in seconds, sizes in bytes; in files, variables and flags they may carry a unit (`16MiB`,
`500ms`). A TOML file has them under `[kmr]` and sub-tables (`[kmr.fetch]`), variables begin with `KMR_`
and separate nested names by two underscores (`KMR_FETCH__MAX_BYTES`), flags by a dash
(`--fetch-max-bytes`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping  # noqa: TC003  msgspec reads the annotations at run time
from pathlib import Path  # noqa: TC003
from typing import Annotated, Any, Final, Literal, Self, cast

import msgspec

from .config.layers import Conflict, Layers
from .config.schema import (
    Addresses,
    Bytes,
    Count,
    NonNegative,
    Port,
    Seconds,
    Text,
    about,
    check_values,
    settings_of,
)
from .errors import SettingsError
from .service import LogFormat, LogLevel  # noqa: TC001
from .service.identity import new_id
from .service.process import memory_limit, processor_limit

__all__ = [
    "CLUSTER",
    "GROUP",
    "WORKER",
    "ClusterSettings",
    "ExecutorKind",
    "FetchSettings",
    "GroupSettings",
    "HttpSettings",
    "IsolationLevel",
    "LogSettings",
    "OffsetReset",
    "SaslMechanism",
    "SecurityProtocol",
    "SecuritySettings",
    "Settings",
]

ExecutorKind = Literal["thread", "process", "inline"]
OffsetReset = Literal["earliest", "latest", "error"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

BootstrapServers = Annotated[
    Addresses, about("Brokers to ask for the others, host:port, separated by commas.")
]
TopicPattern = Annotated[
    Text | None,
    about(
        "Instead of topics: a regular expression that matches the whole names of topics, also those that "
        "are created later."
    ),
]
ClientId = Annotated[Text, about("Our name in the brokers' logs and quotas.")]

MIB = 1024 * 1024
_LARGEST_BUDGET: Final = 192 * MIB


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Encryption and authentication of the connections to the brokers."""

    protocol: Annotated[
        SecurityProtocol,
        about("Encryption (SSL) and authentication (SASL).", section="Security"),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[SaslMechanism, about("SASL mechanism.")] = "PLAIN"
    sasl_user: Annotated[Text | None, about("User name for SASL.")] = None
    sasl_password: Annotated[
        Text | None,
        about("Password for SASL; other users see flags: use a variable.", secret=True),
    ] = None
    oauth_token_provider: Annotated[
        Text | None,
        about("For OAUTHBEARER: module:attribute, a callable that returns a token."),
    ] = None
    oauth_token_url: Annotated[
        Text | None, about("For OAUTHBEARER: where client id and secret are exchanged for a token.")
    ] = None
    oauth_client_id: Annotated[Text | None, about("Client id for the token URL.")] = None
    oauth_client_secret: Annotated[
        Text | None, about("Client secret for the token URL.", secret=True)
    ] = None
    oauth_scope: Annotated[Text | None, about("Scope of the token that is asked for.")] = None
    ssl_cafile: Annotated[
        Text | None, about("Certificates to trust (PEM); default: those of the system.")
    ] = None
    ssl_certfile: Annotated[Text | None, about("Our certificate (PEM), for mutual TLS.")] = None
    ssl_keyfile: Annotated[Text | None, about("The private key of our certificate (PEM).")] = None
    ssl_check_hostname: Annotated[
        bool, about("Check that the broker's certificate names its host.")
    ] = True

    def __post_init__(self) -> None:
        by_token = self.sasl_mechanism == "OAUTHBEARER"
        has_token = (self.oauth_token_provider is None) != (self.oauth_token_url is None)
        if self.protocol.startswith("SASL") and by_token and not has_token:
            raise Conflict(
                ("security.sasl_mechanism",),
                "security.sasl_mechanism OAUTHBEARER needs either security.oauth_token_provider or "
                "security.oauth_token_url",
            )
        has_login = None not in (self.sasl_user, self.sasl_password)
        if self.protocol.startswith("SASL") and not by_token and not has_login:
            raise Conflict(
                ("security.protocol", "security.sasl_user", "security.sasl_password"),
                f"security.protocol {self.protocol} needs security.sasl_user and "
                "security.sasl_password",
            )
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise Conflict(
                ("security.ssl_certfile", "security.ssl_keyfile"),
                "security.ssl_certfile and security.ssl_keyfile go together: set both or neither",
            )

    def __repr__(self) -> str:
        shown = ", ".join(f"{s.name}={s.shown(s.value_in(self))}" for s in settings_of(type(self)))
        return f"SecuritySettings({shown})"


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and wait of fetch requests."""

    max_partition_bytes: Annotated[
        Bytes | None,
        about(
            "Most bytes of one partition in a response. Default: a 64th of inflight_bytes, at least 1MiB, "
            "at most 3MiB.",
            section="Fetching",
        ),
    ] = None
    max_bytes: Annotated[Bytes, about("Most bytes of one response.")] = 16 * MIB
    max_wait: Annotated[
        Seconds, about("How long a broker waits for records before it answers without any.")
    ] = 0.5

    def __post_init__(self) -> None:
        if self.max_partition_bytes and self.max_partition_bytes > self.max_bytes:
            raise Conflict(
                ("fetch.max_partition_bytes", "fetch.max_bytes"),
                f"fetch.max_partition_bytes ({self.max_partition_bytes}) must not be above "
                f"fetch.max_bytes ({self.max_bytes})",
            )


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address of /live, /ready, /metrics and the status page."""

    host: Annotated[
        Text, about("Address to listen on; 0.0.0.0 for every interface.", section="HTTP")
    ] = "127.0.0.1"
    port: Annotated[
        Port | None, about("Port to listen on; 0 takes any free one, none serves nothing.")
    ] = None


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Level and format of logs; they go to stderr."""

    level: Annotated[LogLevel, about("The least severe events to log.", section="Logs")] = "info"
    format: Annotated[LogFormat, about("console: a line for people; json: an object.")] = "console"


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a worker that name its brokers: enough for `kmr dlq list`."""

    bootstrap_servers: BootstrapServers = "127.0.0.1:9092"
    client_id: ClientId = "kmr"
    security: SecuritySettings = SecuritySettings()


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a worker that name its group and its brokers: enough for `kmr offsets`."""

    group: Annotated[Text, about("Consumer group.")]
    topics: Annotated[
        tuple[Text, ...],
        about("Topic; default: every topic that the group has committed.", flag="topic"),
    ] = ()
    topic_pattern: TopicPattern = None
    bootstrap_servers: BootstrapServers = "127.0.0.1:9092"
    client_id: ClientId = "kmr"
    security: SecuritySettings = SecuritySettings()

    def __post_init__(self) -> None:
        _check_topics(self)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting of a worker.

    Raises:
        SettingsError: a value is not allowed, or two do not fit together.
    """

    strategy: Annotated[Text | None, about("What to run: module:attribute.")] = None
    topics: Annotated[
        tuple[Text, ...],
        about("Topic to consume; may be repeated.", flag="topic", unless="topic_pattern"),
    ] = ()
    topic_pattern: TopicPattern = None
    group: Annotated[Text, about("Consumer group: its members share the partitions.")]
    bootstrap_servers: BootstrapServers = "127.0.0.1:9092"
    client_id: ClientId = "kmr"
    broker_timeout: Annotated[
        Seconds, about("How long to wait at the start until a broker answers.")
    ] = 60.0
    group_instance_id: Annotated[
        Text | None, about("A fixed member name: a restart then causes no rebalance (KIP-345).")
    ] = None
    transactional_id_prefix: Annotated[
        Text,
        about(
            "Beginning of the transactional id, for a KafkaWriter with exactly-once: PREFIX-GROUP-MEMBER."
        ),
    ] = "kmr"
    auto_offset_reset: Annotated[
        OffsetReset, about("Where to begin in a partition without a committed offset.")
    ] = "earliest"
    on_out_of_range: Annotated[
        OffsetReset,
        about(
            "What to do when retention has deleted the next record: stop with an error, or continue at "
            "the earliest or the latest record, which skips records."
        ),
    ] = "error"
    isolation_level: Annotated[
        IsolationLevel,
        about("Whether records of open and aborted transactions are read."),
    ] = "read_uncommitted"
    session_timeout: Annotated[
        Seconds, about("Time without a heartbeat after which the group reassigns our partitions.")
    ] = 30.0
    heartbeat_interval: Annotated[Seconds, about("Time between heartbeats.")] = 3.0
    client_rack: Annotated[
        Text | None,
        about(
            "Our rack or zone: records are fetched from a replica there, if there is one (KIP-392)."
        ),
    ] = None
    metadata_max_age: Annotated[Seconds, about("Longest time until added partitions are read.")] = (
        60.0
    )
    rebalance_timeout: Annotated[
        Seconds, about("How long the group waits for its members in a rebalance.")
    ] = 60.0
    revoke_deadline: Annotated[
        Seconds, about("Time to finish work in flight before partitions are given up.")
    ] = 20.0
    commit_interval: Annotated[Seconds, about("Time between commits of watermarks.")] = 1.0
    shutdown_deadline: Annotated[
        Seconds, about("Time to finish work in flight before the worker ends.")
    ] = 25.0
    until_caught_up: Annotated[
        bool,
        about(
            "End when everything that the topics had at the start is processed and committed; "
            "--shutdown-deadline then begins when a flush has to be repeated."
        ),
    ] = False
    history: Annotated[
        bool,
        about(
            "Read only what `kmr backfill` has planned for the group, and nothing of other partitions."
        ),
    ] = False
    archive: Annotated[
        Text | None,
        about(
            "Of a history: directory or URI of Parquet files with records that the topic may not have any "
            "more; see `kmr backfill`."
        ),
    ] = None
    archive_columns: Annotated[
        Text | None,
        about(
            "Columns of the archive: value=payload,offset=meta.offset; default: those of a batch, or of "
            "Redpanda's Iceberg tables."
        ),
    ] = None
    archive_gaps: Annotated[
        bool,
        about(
            "Offsets may be lacking in the archive: of records that compaction removed, or marks of "
            "transactions."
        ),
    ] = False
    rate: Annotated[
        Count | None,
        about("Most records a second that are read, on average; several workers share it equally."),
    ] = None
    workers: Annotated[
        Count | Literal["auto"],
        about(
            "Processes that share the partitions as members of the group, each a whole worker; auto: as many "
            "as the control group has processors."
        ),
    ] = 1
    worker_restarts: Annotated[
        NonNegative,
        about("Restarts of one of several workers in worker_restart_period; then all of them end."),
    ] = 5
    worker_restart_period: Annotated[
        Seconds, about("Time after which a restart of one of several workers no longer counts.")
    ] = 300.0
    worker_live_timeout: Annotated[
        Seconds,
        about(
            "Time that one of several workers may fail /live, or not answer it; then it is killed and "
            "started again."
        ),
    ] = 60.0
    inflight_bytes: Annotated[
        Bytes | None,
        about(
            "Most bytes of records and rows in flight, not yet settled; then intake pauses. Each of several "
            "workers has as much. Default: a sixteenth of the memory that the process may use, divided by "
            "the workers, at most 192MiB."
        ),
    ] = None
    queue_batches: Annotated[Count, about("Most batches in the inbox of a stage.")] = 4
    max_batch_records: Annotated[
        Count,
        about(
            "Most records that a map has at a time. A call for a whole batch ends before a drain does: "
            "lower it if such a call takes seconds."
        ),
    ] = 65_536
    executor: Annotated[
        ExecutorKind, about("Where map functions run: threads, processes, or the event loop.")
    ] = "thread"
    executor_workers: Annotated[
        Count | None,
        about(
            "Threads or processes for map functions; default: one per processor, processes divided by the "
            "workers."
        ),
    ] = None
    prepare_table: Annotated[
        bool, about("Alter a ClickHouse table whose deduplication window is too small.")
    ] = False
    stall_timeout: Annotated[
        Seconds, about("Time that a call or a partition may hang, after which /live fails.")
    ] = 300.0
    otel: Annotated[
        bool,
        about(
            "Send traces and metrics by OpenTelemetry's OTLP over HTTP; the variables OTEL_... say where."
        ),
    ] = False
    security: SecuritySettings = SecuritySettings()
    fetch: FetchSettings = FetchSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        check_values(self)
        _check_topics(self)
        if not self.topics and self.topic_pattern is None:
            raise SettingsError("topics is not set: name one or more, or set topic_pattern")
        below = (
            ("heartbeat_interval", "session_timeout"),
            ("revoke_deadline", "rebalance_timeout"),
        )
        for low, high in below:
            if getattr(self, low) >= getattr(self, high):
                raise Conflict(
                    (low, high),
                    f"{low} ({getattr(self, low):g} s) must be below {high} "
                    f"({getattr(self, high):g} s)",
                )
        least = self.fetch.max_partition_bytes or MIB
        if self.inflight_bytes and self.inflight_bytes < least:
            raise Conflict(
                ("inflight_bytes", "fetch.max_partition_bytes"),
                f"inflight_bytes ({self.inflight_bytes}) must not be below "
                f"fetch.max_partition_bytes ({least}): no fetch would fit",
            )

    @classmethod
    def load(
        cls,
        config: Path | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> Self:
        """Return the settings from all layers.

        Args:
            config: a TOML file.
            environ: environment variables, such as `os.environ`.
            flags: by dotted name (`fetch.max_bytes`); None counts as not given.

        Raises:
            SettingsError: names each wrong setting, its origin, and the allowed values.
        """
        return cast("Self", WORKER.load(config, environ or {}, flags or {}))

    @property
    def worker_count(self) -> int:
        """`workers`, with `auto` as a number."""
        return processor_limit() if self.workers == "auto" else self.workers

    @property
    def map_workers(self) -> int:
        """`executor_workers`, or its default in this process."""
        if self.executor_workers:
            return self.executor_workers
        if self.executor == "process":
            return max(1, processor_limit() // self.worker_count)
        return os.cpu_count() or 1

    @property
    def budget(self) -> int:
        """`inflight_bytes`, or its default in this process."""
        if self.inflight_bytes:
            return self.inflight_bytes
        share = min(_LARGEST_BUDGET, memory_limit() // self.worker_count // 16)
        return max(share, self.fetch.max_partition_bytes or MIB)

    @property
    def rate_share(self) -> float | None:
        """The part of `rate` that one worker has."""
        return None if self.rate is None else self.rate / self.worker_count

    @property
    def partition_bytes(self) -> int:
        """`fetch.max_partition_bytes`, or its default."""
        default = min(max(MIB, self.budget // 64), 3 * MIB, self.fetch.max_bytes)
        return self.fetch.max_partition_bytes or default

    @property
    def response_bytes(self) -> int:
        """`fetch.max_bytes`, or an eighth of a small budget: it counts no response before it is polled."""
        return max(self.partition_bytes, min(self.fetch.max_bytes, self.budget // 8))

    @property
    def transactional_id(self) -> str:
        """The id of this member's transactions: that of a static member is the same after a restart."""
        member = self.group_instance_id or new_id()
        return f"{self.transactional_id_prefix}-{self.group}-{member}"

    def describe(self) -> dict[str, Any]:
        """Return every setting by its dotted name; secrets are masked."""
        return {s.name: s.masked(s.value_in(self)) for s in settings_of(type(self))}

    def changed(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, by dotted name; secrets are masked.

        Without those that have none, the strategy and the topics.
        """
        return {
            s.name: s.masked(value)
            for s in settings_of(type(self))
            if (value := s.value_in(self)) != s.default
            and not s.required
            and s.name not in ("strategy", "topics")
        }


def _check_topics(settings: Settings | GroupSettings) -> None:
    """Raise Conflict for a pattern beside topics, or one that is no regular expression."""
    pattern = settings.topic_pattern
    if pattern is None:
        return
    if settings.topics:
        raise Conflict(
            ("topics", "topic_pattern"), "topics and topic_pattern exclude each other: set one"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise Conflict(
            ("topic_pattern",), f"topic_pattern {pattern!r} is not a regular expression: {error}"
        ) from None


WORKER: Final = Layers(Settings, variables="KMR_", table="kmr")
CLUSTER: Final = Layers(ClusterSettings, variables="KMR_", table="kmr", whole=Settings)
GROUP: Final = Layers(GroupSettings, variables="KMR_", table="kmr", whole=Settings)
