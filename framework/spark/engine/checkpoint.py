"""The checkpoint of a query: the only memory of what an earlier one began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...delivery.announcement import next_generation
from ...record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["CheckpointGeneration", "newest_logged", "read_generation"]

_GENERATION = "kmr-generation-"


class CheckpointGeneration(Mapping[TopicPartition, int]):
    """The generation of the offsets: a checkpoint has one, for every partition.

    Attributes:
        value: set it before anything is written.
    """

    def __init__(self) -> None:
        self.value = 0

    def __getitem__(self, partition: TopicPartition) -> int:
        return self.value

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(())

    def __len__(self) -> int:
        return 0


def read_generation(session: SparkSession, checkpoint: str) -> int:
    """Return the generation of a checkpoint; a new one begins its own, by a file that names it.

    So a query that reads records again with a new checkpoint writes them again. 0 for a checkpoint that an
    earlier version began, which must go on with its tokens.
    """
    for name in _names(session, checkpoint):
        if name.startswith(_GENERATION):
            return int(name.removeprefix(_GENERATION))
    if newest_logged(session, checkpoint) >= 0:
        return 0
    generation = next_generation(())
    files, path = _hadoop(session, checkpoint, f"{_GENERATION}{generation}")
    files.createNewFile(path)
    return generation


def newest_logged(session: SparkSession, checkpoint: str) -> int:
    """Return the newest micro-batch that has begun, -1 before the first.

    Spark logs the offsets of a micro-batch before it runs, and runs it again if it was not completed.
    """
    names = _names(session, checkpoint, "offsets")
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _names(session: SparkSession, *parts: str) -> list[str]:
    """Return the names in a directory; none if it is missing."""
    files, path = _hadoop(session, *parts)
    if not files.exists(path):
        return []
    return [status.getPath().getName() for status in files.listStatus(path)]


def _hadoop(session: SparkSession, *parts: str) -> tuple[Any, Any]:
    """Return the file system of a path, and the path."""
    context: Any = session.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(*parts)  # noqa: SLF001
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path  # noqa: SLF001
