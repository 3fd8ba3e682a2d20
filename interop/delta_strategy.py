"""A strategy whose process kills itself around the flush that the environment names, and its settings."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from kmr import Debezium, Json, Strategy
from kmr.reducers.sink import NEW
from kmr.sinks import SparkWriter
from tests.framework.sinks.histories import Customer

if TYPE_CHECKING:
    from kmr.reducers.sink import Write

__all__ = ["DEATH", "JARS", "PATH", "settings_of", "strategy"]

PATH: Final = "KMR_INTEROP_DELTA_PATH"
JARS: Final = "KMR_INTEROP_DELTA_JARS"
DEATH: Final = "KMR_INTEROP_DELTA_DEATH"
"""`2 after`: the process kills itself after its second MERGE, before anything of it is committed to Kafka."""

_flushes = 0


def settings_of(jars: str) -> dict[str, str]:
    """Return what Spark needs for Delta, and what makes it quick for small tables."""
    return {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.log.level": "ERROR",
    }


class DyingSparkWriter(SparkWriter):
    """Kills its process around a flush."""

    def flush(self, write: Write = NEW) -> None:
        """Write, as `SparkWriter` does."""
        global _flushes  # noqa: PLW0603  all copies of a process count together
        _flushes += 1
        _die_if(f"{_flushes} before")
        super().flush(write)
        _die_if(f"{_flushes} after")


def _die_if(moment: str) -> None:
    if os.environ.get(DEATH) == moment:
        os.kill(os.getpid(), signal.SIGKILL)


strategy = Strategy(
    value=Debezium(Json(Customer), truncates="apply"),
    reduce=DyingSparkWriter(
        path=os.environ.get(PATH, "unknown"),
        format="delta",
        key=["id"],
        changes=True,
        master="local[2]",
        settings=settings_of(os.environ.get(JARS, "")),
        max_rows=60,
        max_age=1.0,
    ),
)
