"""The checkpoint of a query: the only memory of what an earlier one began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...delivery.announcement import next_generation
from ...errors import SettingsError
from ...record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


_GENERATION = "kmr-generation-"
_GROUP = "kmr-group"


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


def read_generation(session: SparkSession, checkpoint: str, wanted: int | None = None) -> int:
    """Return the generation of a checkpoint; a new one begins its own, by a file that names it.

    So a query that reads records again with a new checkpoint writes them again. 0 for a checkpoint that an
    earlier version began, which must go on with its tokens.

    Args:
        wanted: the generation that a new checkpoint begins; None: one of its own.

    Raises:
        SettingsError: the checkpoint has another generation than the one that is wanted.
    """
    for name in _names(session, checkpoint):
        if name.startswith(_GENERATION):
            return _require(checkpoint, int(name.removeprefix(_GENERATION)), wanted)
    if newest_logged(session, checkpoint) >= 0:
        return _require(checkpoint, 0, wanted)
    generation = next_generation(()) if wanted is None else wanted
    files, path = _hadoop(session, checkpoint, f"{_GENERATION}{generation}")
    files.createNewFile(path)
    return generation


def _require(checkpoint: str, found: int, wanted: int | None) -> int:
    if wanted not in (None, found):
        raise SettingsError(
            f"the checkpoint {checkpoint} belongs to another query (generation {found}, not {wanted}): "
            "give each backfill a checkpoint of its own"
        )
    return found


def checkpoint_uri(session: SparkSession, checkpoint: str) -> str:
    """Return the URI of a checkpoint that Spark may know by a relative path."""
    files, path = _hadoop(session, checkpoint)
    return str(files.makeQualified(path).toString())


def newest_logged(session: SparkSession, checkpoint: str) -> int:
    """Return the newest micro-batch that has begun, -1 before the first.

    Spark logs the offsets of a micro-batch before it runs, and runs it again if it was not completed.
    """
    return _newest(session, checkpoint, "offsets")


def keep_group(session: SparkSession, checkpoint: str, group: str) -> None:
    """Note the group in the checkpoint: tokens and file names of what a micro-batch writes have it.

    Raises:
        SettingsError: a micro-batch of another group is not complete. Its rows may be written already, and
            would be doubled with the tokens of this group.
    """
    noted = _read(session, checkpoint, _GROUP) if _GROUP in _names(session, checkpoint) else None
    if noted == group:
        return
    pending = newest_logged(session, checkpoint)
    if noted is not None and pending > _newest(session, checkpoint, "commits"):
        raise SettingsError(
            f"micro-batch {pending} of the checkpoint {checkpoint} is not complete, and belongs to group "
            f"{noted}: with group {group} its rows may be doubled. Run it once with --group {noted} "
            "--trigger available-now, then change the group"
        )
    files, path = _hadoop(session, checkpoint, _GROUP)
    stream = files.create(path, True)  # noqa: FBT003  Java's `overwrite`
    try:
        stream.write(bytearray(group.encode()))
    finally:
        stream.close()


def _newest(session: SparkSession, checkpoint: str, log: str) -> int:
    names = _names(session, checkpoint, log)
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _read(session: SparkSession, *parts: str) -> str:
    files, path = _hadoop(session, *parts)
    stream = files.open(path)
    try:
        context: Any = session.sparkContext
        text: str = context._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")  # noqa: SLF001
    finally:
        stream.close()
    return text


def _names(session: SparkSession, *parts: str) -> list[str]:
    """Return the names in a directory; none if it is missing."""
    files, path = _hadoop(session, *parts)
    if not files.exists(path):
        return []
    return [status.getPath().getName() for status in files.listStatus(path)]


def _hadoop(session: SparkSession, *parts: str) -> tuple[Any, Any]:
    """Return the file system of a path, and the path."""
    context: Any = session.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path("/".join(parts))  # noqa: SLF001
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path  # noqa: SLF001
