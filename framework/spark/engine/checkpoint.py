"""The checkpoint of a query: the only memory of what an earlier one began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["newest_logged"]


def newest_logged(session: SparkSession, checkpoint: str) -> int:
    """Return the newest micro-batch that has begun, -1 before the first.

    Spark logs the offsets of a micro-batch before it runs, and runs it again if it was not completed.
    """
    context: Any = session.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(checkpoint, "offsets")  # noqa: SLF001
    files = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
    if not files.exists(path):
        return -1
    names = [status.getPath().getName() for status in files.listStatus(path)]
    return max((int(name) for name in names if name.isdigit()), default=-1)
