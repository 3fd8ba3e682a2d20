"""What the Spark engine needs to know besides the settings of a worker."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from framework.errors import SettingsError
from framework.sinks.spark.writer import SparkWriter
from framework.spark.session import is_connect, open_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from framework.settings import Settings
    from framework.strategy import Strategy

__all__ = ["EngineSettings", "OnStop", "SourceKind", "source_options"]

SourceKind = Literal["python", "jvm"]
OnStop = Literal["finish", "abandon"]

_AVAILABLE_NOW: Final = "available-now"
_INTERVAL: Final = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|min|h)")
_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How a strategy runs on Spark.

    Attributes:
        checkpoint: a directory or URI: which micro-batch is done, and what the next one has. It is the
            truth about what was delivered; the group's committed offsets only follow it.
        master: `local[N]`, `spark://host:port`, ...; None: what `spark-submit` says, else `local[*]`.
        source: who reads Kafka: our Python source, or Spark's own where it is on the class path.
        trigger: time between micro-batches (`2s`), or `available-now`: what is there now, then end.
        max_offsets_per_trigger: the most offsets in a micro-batch, all partitions together.
        min_partitions: divide a micro-batch into at least about so many tasks.
        fail_on_data_loss: stop when records are gone before they were read.
        on_stop: at SIGTERM, `finish` the micro-batch under way, or `abandon` it: it runs again later.
        spark: Spark's own settings, for a session that is started here.
        name: of the application.
    """

    checkpoint: str
    master: str | None = None
    source: SourceKind = "python"
    trigger: str = "2s"
    max_offsets_per_trigger: int = 2_000_000
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    on_stop: OnStop = "finish"
    spark: Mapping[str, str] = field(default_factory=dict)
    name: str = "kmr"

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        if not self.checkpoint:
            raise SettingsError("the Spark engine needs --checkpoint: a directory that outlives it")
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
        """For `DataStreamWriter.trigger`."""
        if self.trigger == _AVAILABLE_NOW:
            return {"availableNow": True}
        return {"processingTime": f"{self._interval()} milliseconds"}

    def open_session(self, strategy: Strategy) -> SparkSession:
        """The session to run a strategy in. Raises as `framework.spark.session.open_session`."""
        # With our source only failures and reports reach the JVM, unless it is Spark that writes.
        by_spark = any(isinstance(r, SparkWriter) and r.needs_session for r in strategy.reduce)
        planning_only = self.source == "python" and not by_spark
        return open_session(
            self.master, name=self.name, settings=self.spark, planning_only=planning_only
        )


def source_options(settings: Settings, engine: EngineSettings) -> dict[str, str]:
    """The options of a Kafka source, ours or Spark's own, for the settings of a worker.

    Raises:
        SettingsError: a setting that the source cannot follow.
    """
    if settings.auto_offset_reset == "error":
        raise SettingsError(
            "auto_offset_reset=error is not for Spark: without a checkpoint there is always a first run; "
            "say earliest or latest"
        )
    options = {
        "subscribe": ",".join(settings.topics),
        "startingOffsets": settings.auto_offset_reset,
        "maxOffsetsPerTrigger": str(engine.max_offsets_per_trigger),
        "failOnDataLoss": str(engine.fail_on_data_loss).lower(),
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.client.id": settings.client_id,
        "kafka.isolation.level": settings.isolation_level,
        "kafka.fetch.max.wait.ms": str(round(settings.fetch.max_wait * 1000)),
    }
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
            "security.ssl_cafile, and use a host name that it carries"
        )
    options: dict[str, str | None] = {"kafka.security.protocol": security.protocol}
    if security.protocol.startswith("SASL"):
        options["kafka.sasl.mechanism"] = security.sasl_mechanism
        if engine.source == "python":
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
