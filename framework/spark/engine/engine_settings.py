"""The settings that only the Spark engine has, and those of its source."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003  cyclopts reads the annotations
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from cyclopts import Group, Parameter

from ...archives.archive import ArchiveSource
from ...errors import SettingsError
from ...kafka.connection import connection_config
from ...kafka.subscription import Subscription
from ...reducers.sink import capabilities_of
from ..session import is_connect, open_session
from ..source_settings import ClientConfig, SourceBounds, SourceSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import Token
    from pyspark.sql import SparkSession

    from ...settings import Settings
    from ...strategy import Strategy

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
        """Open the session for a strategy; for errors see `kmr.spark.session.open_session`."""
        # Only failures and reports go through the JVM, unless Spark writes.
        planning_only = not any(
            capabilities_of(reducer).needs_session for reducer in strategy.reducers
        )
        return open_session(
            self.master, name=self.name, settings=self.spark, planning_only=planning_only
        )


def source_settings(
    settings: Settings, engine: EngineSettings, bounds: SourceBounds | None = None
) -> SourceSettings:
    """Return what the query reads. Raises SettingsError for a setting that Spark cannot have."""
    if settings.auto_offset_reset == "error":
        raise SettingsError(
            "auto_offset_reset=error is not supported on Spark: a query without a checkpoint must begin "
            "somewhere; set earliest or latest"
        )
    client = ClientConfig(
        **vars(connection_config(settings)),
        isolation_level=settings.isolation_level,
        fetch_max_wait=settings.fetch.max_wait,
    )
    if (most := settings.fetch.max_partition_bytes) is not None:
        client = replace(client, max_partition_fetch_bytes=most)
    return SourceSettings(
        subscription=Subscription(settings.topics, settings.topic_pattern),
        client=client,
        group=settings.group,
        from_end=settings.auto_offset_reset == "latest",
        max_offsets_per_trigger=engine.max_offsets_per_trigger,
        min_partitions=engine.min_partitions,
        fail_on_data_loss=engine.fail_on_data_loss,
        bounds=bounds,
        archive=None if bounds is None else ArchiveSource.of(settings),
    )
