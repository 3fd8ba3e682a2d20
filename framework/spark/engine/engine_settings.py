"""The settings that only the Spark engine has, and a worker's settings as options of a Kafka source."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003  cyclopts reads the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import msgspec
from cyclopts import Group, Parameter

from ...errors import SettingsError
from ...kafka.connection import oauth_config
from ...reducers.sink import capabilities_of
from ..runtime.session import is_connect, open_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import Token
    from pyspark.sql import SparkSession

    from ...settings import Settings
    from ...strategy import Strategy

__all__ = ["EngineSettings", "OnStop", "SourceKind", "source_options"]

SourceKind = Literal["python", "jvm"]
OnStop = Literal["finish", "abandon"]

_AVAILABLE_NOW: Final = "available-now"
_INTERVAL: Final = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|min|h)")
_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


def _pairs(_type: object, tokens: Sequence[Token]) -> dict[str, str]:
    pairs = [token.value.partition("=") for token in tokens]
    for name, separator, value in pairs:
        if not separator or not name:
            raise SettingsError(f"--spark-conf must be name=value, not {name + value!r}")
    return {name: value for name, _, value in pairs}


@Parameter(name="*", group=Group("Spark (--engine spark)", sort_key=6), negative_iterable=())
@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How a strategy runs on Spark; also the flags of `kmr run` for it.

    Parameters
    ----------
    checkpoint
        Directory or URI of the query's progress; must outlive the engine. Required. It is the truth about
        deliveries; the group's committed offsets only follow it.
    master
        local[N] or spark://host:port; default: that of spark-submit, else local[*].
    source
        Source: ours (python), or Spark's own connector (jvm) if it is on the class path.
    trigger
        Time between micro-batches; available-now: read to the current end, then exit.
    max_offsets_per_trigger
        Most offsets in one micro-batch, all partitions together.
    min_partitions
        Least number of tasks of a micro-batch, approximately.
    fail_on_data_loss
        Stop when records were deleted before they were read.
    on_stop
        What a stop does with the running micro-batch; an abandoned one runs again later.
    spark
        A setting of Spark, name=value; may be repeated.
    name
        The application's name.
    """

    checkpoint: Annotated[str, Parameter(show_default=False)] = ""
    master: str | None = None
    source: Annotated[SourceKind, Parameter(name="--spark-source")] = "python"
    trigger: str = "2s"
    max_offsets_per_trigger: int = 2_000_000
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    on_stop: OnStop = "finish"
    spark: Annotated[
        Mapping[str, str],
        Parameter(
            name="--spark-conf",
            accepts_keys=False,
            n_tokens=-1,
            converter=_pairs,
            show_default=False,
        ),
    ] = field(default_factory=dict)
    name: Annotated[str, Parameter(parse=False)] = "kmr"

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        if not self.checkpoint:
            raise SettingsError("--engine spark needs --checkpoint: a directory that outlives it")
        if is_connect(self.master):
            raise SettingsError(
                f"the engine cannot run on Spark Connect ({self.master}): it watches its query from the "
                "driver; use local[N] or spark://host:port, or spark-submit (see `kmr spark package`)"
            )
        if self.source not in get_args(SourceKind):
            raise SettingsError(f"--spark-source must be python or jvm, not {self.source!r}")
        if self.on_stop not in get_args(OnStop):
            raise SettingsError(f"--on-stop must be finish or abandon, not {self.on_stop!r}")
        for name, number in (
            ("max-offsets-per-trigger", self.max_offsets_per_trigger),
            ("min-partitions", self.min_partitions),
        ):
            if number is not None and number < 1:
                raise SettingsError(f"--{name} must be above 0, not {number}")
        if self.trigger != _AVAILABLE_NOW:
            self._interval()

    def _interval(self) -> int:
        found = _INTERVAL.fullmatch(self.trigger.strip())
        if found is None:
            raise SettingsError(
                f"--trigger must be a time such as 2s or 500ms, or {_AVAILABLE_NOW}, not {self.trigger!r}"
            )
        return round(float(found[1]) * _MILLISECONDS[found[2]])

    def trigger_arguments(self) -> dict[str, Any]:
        """Return the arguments for `DataStreamWriter.trigger`."""
        if self.trigger == _AVAILABLE_NOW:
            return {"availableNow": True}
        return {"processingTime": f"{self._interval()} milliseconds"}

    def open_session(self, strategy: Strategy) -> SparkSession:
        """Open the session for a strategy; for errors see `kmr.spark.runtime.session.open_session`."""
        # With the Python source, only failures and reports go through the JVM, unless Spark writes.
        by_spark = any(capabilities_of(reducer).needs_session for reducer in strategy.reducers)
        planning_only = self.source == "python" and not by_spark
        return open_session(
            self.master, name=self.name, settings=self.spark, planning_only=planning_only
        )


def source_options(settings: Settings, engine: EngineSettings) -> dict[str, str]:
    """Convert a worker's settings to options of a Kafka source, ours or Spark's own.

    Raises:
        SettingsError: the source does not support a setting.
    """
    if settings.auto_offset_reset == "error":
        raise SettingsError(
            "auto_offset_reset=error is not supported on Spark: a query without a checkpoint must begin "
            "somewhere; set earliest or latest"
        )
    options = {
        **(
            {"subscribe": ",".join(settings.topics)}
            if settings.topic_pattern is None
            else {"subscribePattern": settings.topic_pattern}
        ),
        "startingOffsets": settings.auto_offset_reset,
        "maxOffsetsPerTrigger": str(engine.max_offsets_per_trigger),
        "failOnDataLoss": str(engine.fail_on_data_loss).lower(),
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.client.id": settings.client_id,
        "kafka.isolation.level": settings.isolation_level,
        "kafka.fetch.max.wait.ms": str(round(settings.fetch.max_wait * 1000)),
    }
    if settings.client_rack is not None:
        options["kafka.client.rack"] = settings.client_rack
    if engine.source == "python":
        options["kafka.group.id"] = settings.group
    else:
        options["includeHeaders"] = "true"
        options["groupIdPrefix"] = f"{settings.group}-spark"
    if engine.min_partitions is not None:
        options["minPartitions"] = str(engine.min_partitions)
    if settings.fetch != type(settings.fetch)():
        options["kafka.max.partition.fetch.bytes"] = str(settings.fetch.max_partition_bytes)
    return options | _security(settings, engine)


def _security(settings: Settings, engine: EngineSettings) -> dict[str, str]:
    security = settings.security
    if not security.ssl_check_hostname:
        raise SettingsError(
            "security.ssl_check_hostname=false is not supported: trust the broker's certificate with "
            "security.ssl_cafile, and use a host name of that certificate"
        )
    options: dict[str, str | None] = {"kafka.security.protocol": security.protocol}
    if security.protocol.startswith("SASL"):
        options["kafka.sasl.mechanism"] = security.sasl_mechanism
        oauth = oauth_config(security)
        if oauth is not None and engine.source != "python":
            raise SettingsError(
                "security.sasl_mechanism OAUTHBEARER needs --spark-source python: Java's client cannot call "
                "our provider of tokens"
            )
        if oauth is not None:
            options["kafka.kmr.oauth.token"] = msgspec.json.encode(oauth).decode()
        elif engine.source == "python":
            options["kafka.sasl.username"] = security.sasl_user
            options["kafka.sasl.password"] = security.sasl_password
        else:
            options["kafka.sasl.jaas.config"] = _jaas(settings)
    if security.protocol.endswith("SSL"):
        options["kafka.ssl.truststore.location"] = security.ssl_cafile
        options["kafka.ssl.keystore.location"] = security.ssl_certfile
        if engine.source == "python":
            options["kafka.ssl.key.location"] = security.ssl_keyfile
        options["kafka.ssl.truststore.type"] = "PEM" if security.ssl_cafile else None
        options["kafka.ssl.keystore.type"] = "PEM" if security.ssl_certfile else None
    return {name: value for name, value in options.items() if value is not None}


def _jaas(settings: Settings) -> str:
    security = settings.security
    plain = security.sasl_mechanism == "PLAIN"
    module = "plain.PlainLoginModule" if plain else "scram.ScramLoginModule"
    user, password = (
        msgspec.json.encode(text or "").decode()
        for text in (security.sasl_user, security.sasl_password)
    )
    return (
        f"org.apache.kafka.common.security.{module} required username={user} password={password};"
    )
