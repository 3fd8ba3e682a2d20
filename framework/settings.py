"""Every setting of a worker: defaults < TOML file < environment < flags.

Times are in seconds, sizes in bytes; in files, variables and flags they may carry a unit (`16MiB`,
`500ms`). A TOML file has them under `[kmr]` and sub-tables (`[kmr.fetch]`), variables begin with `KMR_`
and separate nested names by two underscores (`KMR_FETCH__MAX_BYTES`), flags by a dash
(`--fetch-max-bytes`).
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  msgspec reads the annotations at run time
from pathlib import Path  # noqa: TC003
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from framework.config.layers import Conflict, Found, build, resolve
from framework.config.schema import check_values, settings_of
from framework.config.units import BYTES, SECONDS

__all__ = [
    "PREFIX",
    "ExecutorKind",
    "FetchSettings",
    "GroupSettings",
    "HttpSettings",
    "LogFormat",
    "LogSettings",
    "SecuritySettings",
    "Settings",
    "find_settings",
]

PREFIX = "kmr"
"""The table in a TOML file, and what variables begin with."""

ExecutorKind = Literal["thread", "process", "inline"]
LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]
OffsetReset = Literal["earliest", "latest", "error"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

Seconds = Annotated[float, Meta(gt=0, extra={"unit": SECONDS})]
Bytes = Annotated[int, Meta(gt=0, extra={"unit": BYTES})]
Count = Annotated[int, Meta(gt=0)]
Text = Annotated[str, Meta(min_length=1)]

MIB = 1024 * 1024


def about(description: str, **extra: str | bool) -> Meta:
    """What a setting is for; `flag` where its name differs, `secret` where it must not be shown."""
    return Meta(description=description, extra=extra)


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach the brokers: encryption and who we are."""

    protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        about("Encryption (SSL) and authentication (SASL)."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[SaslMechanism, about("How the user is authenticated.")] = "PLAIN"
    sasl_user: Annotated[Text | None, about("User name for SASL.")] = None
    sasl_password: Annotated[
        Text | None,
        about("Password for SASL; other users see flags, so better a variable.", secret=True),
    ] = None
    ssl_cafile: Annotated[
        Text | None, about("Certificates of the authorities to trust; default: the system's.")
    ] = None
    ssl_certfile: Annotated[Text | None, about("Our own certificate, for mutual TLS.")] = None
    ssl_keyfile: Annotated[Text | None, about("The key of our own certificate.")] = None
    ssl_check_hostname: Annotated[
        bool, about("Whether the broker's certificate must carry its host name.")
    ] = True

    def __post_init__(self) -> None:
        if self.protocol.startswith("SASL") and None in (self.sasl_user, self.sasl_password):
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
    """How much is read from the brokers at once."""

    max_partition_bytes: Annotated[Bytes, about("Most bytes of one partition in a response.")] = MIB
    max_bytes: Annotated[Bytes, about("Most bytes of one response.")] = 16 * MIB
    max_wait: Annotated[
        Seconds, about("How long a broker may wait for records before it answers with none.")
    ] = 0.5

    def __post_init__(self) -> None:
        if self.max_partition_bytes > self.max_bytes:
            raise Conflict(
                ("fetch.max_partition_bytes", "fetch.max_bytes"),
                f"fetch.max_partition_bytes ({self.max_partition_bytes}) must not be above "
                f"fetch.max_bytes ({self.max_bytes})",
            )


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where /live, /ready, /metrics and the status page are served."""

    host: Annotated[Text, about("Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1"
    port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        about("Port to listen on; 0 takes any free one, none serves nothing."),
    ] = None


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is logged, and how; logs go to stderr."""

    level: Annotated[LogLevel, about("The least severe events to log.")] = "info"
    format: Annotated[
        LogFormat, about("json, console, or auto: console on a terminal, else json.")
    ] = "auto"


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a worker's settings that is needed to look at its group from outside."""

    group: Annotated[Text, about("Consumer group.")]
    topics: Annotated[
        tuple[Text, ...],
        about("Topic to look at; without it, all that the group has committed.", flag="topic"),
    ] = ()
    bootstrap_servers: Annotated[
        Text, about("Brokers to ask for the others, host:port, separated by commas.")
    ] = "127.0.0.1:9092"
    client_id: Annotated[Text, about("Our name in the brokers' logs and quotas.")] = "kmr"
    security: SecuritySettings = SecuritySettings()


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set about a worker.

    Raises:
        SettingsError: a value is not allowed, or two do not fit together.
    """

    strategy: Annotated[Text | None, about("What to run: module:attribute.")] = None
    topics: Annotated[
        Annotated[tuple[Text, ...], Meta(min_length=1)],
        about("Topic to consume; may be given more than once.", flag="topic"),
    ]
    group: Annotated[Text, about("Consumer group: its members share the partitions.")]
    bootstrap_servers: Annotated[
        Text, about("Brokers to ask for the others, host:port, separated by commas.")
    ] = "127.0.0.1:9092"
    client_id: Annotated[Text, about("Our name in the brokers' logs and quotas.")] = "kmr"
    group_instance_id: Annotated[
        Text | None, about("A fixed member name: a restart then causes no rebalance (KIP-345).")
    ] = None
    auto_offset_reset: Annotated[
        OffsetReset, about("Where to begin in a partition that the group never committed.")
    ] = "earliest"
    on_out_of_range: Annotated[
        OffsetReset,
        about(
            "What to do when the next record is no longer on the broker (retention was faster): stop "
            "with an error, or go on at the earliest or the latest, which skips records."
        ),
    ] = "error"
    isolation_level: Annotated[
        Literal["read_uncommitted", "read_committed"],
        about("Whether records of open and aborted transactions are read."),
    ] = "read_uncommitted"
    session_timeout: Annotated[
        Seconds, about("Silence after which the group gives our partitions to others.")
    ] = 30.0
    heartbeat_interval: Annotated[Seconds, about("How often the group hears from us.")] = 3.0
    metadata_max_age: Annotated[
        Seconds, about("How long it takes at most until partitions that were added are read.")
    ] = 60.0
    rebalance_timeout: Annotated[
        Seconds, about("How long the group waits for its members in a rebalance.")
    ] = 60.0
    revoke_deadline: Annotated[
        Seconds, about("How long to finish work in flight before partitions are given up.")
    ] = 20.0
    commit_interval: Annotated[Seconds, about("How often watermarks are committed.")] = 1.0
    shutdown_deadline: Annotated[
        Seconds, about("How long to finish work in flight before the worker ends, all in all.")
    ] = 25.0
    inflight_bytes: Annotated[
        Bytes, about("Most bytes of records taken in and not yet settled; then intake pauses.")
    ] = 128 * MIB
    queue_batches: Annotated[Count, about("Most batches that wait before a stage.")] = 4
    executor: Annotated[
        ExecutorKind, about("Where map functions run: threads, processes, or the event loop.")
    ] = "thread"
    executor_workers: Annotated[
        Count | None, about("Threads or processes for map functions; none: one per processor.")
    ] = None
    prepare_table: Annotated[
        bool, about("Alter a table that remembers too few inserts to keep them from being doubled.")
    ] = False
    stall_timeout: Annotated[
        Seconds, about("Time without progress, with work in flight, after which /live fails.")
    ] = 300.0
    security: SecuritySettings = SecuritySettings()
    fetch: FetchSettings = FetchSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        check_values(self)
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
        if self.inflight_bytes < self.fetch.max_partition_bytes:
            raise Conflict(
                ("inflight_bytes", "fetch.max_partition_bytes"),
                f"inflight_bytes ({self.inflight_bytes}) must not be below "
                f"fetch.max_partition_bytes ({self.fetch.max_partition_bytes}), "
                "or no fetch would ever fit",
            )

    @classmethod
    def load(
        cls,
        config: Path | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> Self:
        """The settings from all layers.

        Args:
            config: a TOML file.
            environ: `os.environ`, usually; None is no variables.
            flags: by dotted name (`fetch.max_bytes`); None counts as not given.

        Raises:
            SettingsError: names each wrong setting, where it came from, and what is allowed.
        """
        return build(cls, find_settings(config, environ, flags), prefix=PREFIX)

    def describe(self) -> dict[str, Any]:
        """Every setting by its dotted name; secrets masked."""
        return {s.name: s.masked(s.value_in(self)) for s in settings_of(type(self))}


def find_settings(
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> dict[str, Found]:
    """The value and the origin of every setting that has one; takes and raises what `load` does."""
    return resolve(Settings, config=config, environ=environ or {}, flags=flags or {}, prefix=PREFIX)
