"""The files of an archive: which offsets of which partitions each row group has."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from ..errors import ConsumerError, SettingsError
from ..record import TopicPartition
from .columns import records_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from ..kafka.subscription import Subscription
    from ..service.storage import Storage
    from .columns import ArchiveColumns

_NAME: Final = re.compile(r"(?P<topic>[^/]+)\+(?P<partition>\d+)\+(?P<offset>\d+)\.[^/]*")
"""The names of Confluent's sinks: topic, partition and first offset."""

_THREADS: Final = 8


class FilePlace(NamedTuple):
    """What the path of a file says of its records; None where it says nothing.

    Attributes:
        first: the offset of its first row; the others follow without a gap.
    """

    topic: str | None = None
    partition: int | None = None
    first: int | None = None

    @classmethod
    def of(cls, path: str) -> FilePlace:
        """Read a path below the directory of the archive: `topic=T/partition=N/...`, `T+N+OFFSET.parquet`."""
        *folders, name = path.split("/")
        values = dict(each.split("=", 1) for each in folders if "=" in each)
        number = values.get("partition", "")
        topic = unquote(values["topic"]) if "topic" in values else None
        partition = int(number) if number.isdecimal() else None
        if named := _NAME.fullmatch(name):
            return cls(named["topic"], int(named["partition"]), int(named["offset"]))
        return cls(topic, partition)


class RowGroup(NamedTuple):
    """The records of one partition in one row group.

    Attributes:
        first, last: the lowest and the highest offset.
        rows: how many records.
        place: what the path says; its `first` is that of this row group.
        is_shared: other partitions have records there too.
    """

    path: str
    number: int
    at: TopicPartition
    first: int
    last: int
    rows: int
    place: FilePlace
    is_shared: bool = False


class ArchiveFiles:
    """Parquet files in a directory.

    Args:
        subscription: whose topics are read; a file that does not name its topic is of the only one.
    """

    def __init__(
        self, storage: Storage, columns: ArchiveColumns, subscription: Subscription
    ) -> None:
        self._storage = storage
        self._columns = columns
        self._subscription = subscription

    def index(self) -> list[RowGroup]:
        """Return what all files have of the topics, from their footers.

        Raises:
            SettingsError: there are no files, or one does not say which records it has.
            ConsumerError: a file cannot be read.
        """
        selector = fs.FileSelector(self._storage.root, recursive=True, allow_not_found=True)
        with self._reading(str(self._storage)):
            infos = self._storage.filesystem.get_file_info(selector)
        paths = sorted(
            info.path
            for info in infos
            if info.type == fs.FileType.File
            and info.base_name.endswith(".parquet")
            and not any(
                part.startswith(("_", ".")) for part in self._relative(info.path).split("/")
            )
        )
        if not paths:
            raise SettingsError(f"archive: {self._storage} has no Parquet files")
        with ThreadPoolExecutor(_THREADS) as pool:
            return [group for groups in pool.map(self._groups, paths) for group in groups]

    def _relative(self, path: str) -> str:
        return path.removeprefix(self._storage.root).lstrip("/")

    def _groups(self, path: str) -> list[RowGroup]:
        place = FilePlace.of(self._relative(path))
        if place.topic is not None and place.topic not in self._subscription:
            return []
        with self._open(path) as file:
            paths = self._paths(file, place, path)
            found: list[RowGroup] = []
            begin = place.first
            for number in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                here = place if "offset" in paths else place._replace(first=begin)
                if rows:
                    found += self._of_row_group(file, path, number, paths, here)
                begin = None if begin is None else begin + rows
            return found

    def _paths(self, file: pq.ParquetFile, place: FilePlace, path: str) -> dict[str, str]:
        """Return the columns of the parts of a record. Raises SettingsError if something is lacking."""
        paths = self._columns.find(file.schema_arrow, path)
        topics = self._subscription.topics
        lacking = []
        if "offset" not in paths and place.first is None:
            lacking.append("offset")
        if "partition" not in paths and place.partition is None:
            lacking.append("partition")
        if "topic" not in paths and place.topic is None and len(topics) != 1:
            lacking.append("topic")
        if "value" not in paths:
            lacking.append("value")
        if lacking:
            raise SettingsError(
                f"archive: {path} has no column for the {', '.join(lacking)} of records; it has "
                f"{', '.join(file.schema_arrow.names)}. Name them: --archive-columns {lacking[0]}=COLUMN"
            )
        # A directory says it, whichever column has the same name.
        return {part: name for part, name in paths.items() if getattr(place, part, None) is None}

    def _of_row_group(
        self,
        file: pq.ParquetFile,
        path: str,
        number: int,
        paths: Mapping[str, str],
        place: FilePlace,
    ) -> Iterator[RowGroup]:
        rows = file.metadata.row_group(number).num_rows
        topic: str | None = place.topic
        if "topic" not in paths:
            topic = topic or self._subscription.topics[0]
        if place.first is not None and place.partition is not None and topic is not None:
            at = TopicPartition(topic, place.partition)
            yield RowGroup(path, number, at, place.first, place.first + rows - 1, rows, place)
            return
        bounds = {
            part: _bounds(file, number, paths[part])
            for part in ("topic", "partition", "offset")
            if part in paths
        }
        only = {part: b[0] for part, b in bounds.items() if b is not None and b[0] == b[1]}
        partition = place.partition if place.partition is not None else only.get("partition")
        topic = topic or only.get("topic")
        offsets = bounds.get("offset")
        if topic is not None and partition is not None and offsets is not None:
            if topic in self._subscription:
                at = TopicPartition(topic, partition)
                yield RowGroup(path, number, at, offsets[0], offsets[1], rows, place)
            return
        records = self._coordinates(file, path, number, paths, place)
        yield from _by_partition(records, RowGroup(path, number, _NOWHERE, 0, 0, 0, place), self)

    def _coordinates(
        self,
        file: pq.ParquetFile,
        path: str,
        number: int,
        paths: Mapping[str, str],
        place: FilePlace,
    ) -> pa.RecordBatch:
        wanted = {part: p for part, p in paths.items() if part in ("topic", "partition", "offset")}
        table = file.read_row_group(number, columns=list(wanted.values()))
        return records_of(table, wanted, self._constants(place, wanted, table.num_rows), path)

    def _constants(self, place: FilePlace, paths: Mapping[str, str], rows: int) -> dict[str, Any]:
        constants: dict[str, Any] = {"timed": "timestamp" in paths}
        if "topic" not in paths:
            constants["topic"] = place.topic or self._subscription.topics[0]
        if place.partition is not None:
            constants["partition"] = place.partition
        if place.first is not None:
            constants["offset"] = pa.array(np.arange(place.first, place.first + rows))
        return constants

    def has(self, topic: str) -> bool:
        """Return whether a topic is read."""
        return topic in self._subscription

    def read(self, group: RowGroup) -> pa.RecordBatch:
        """Return the records of a row group, of its partition, in the order of their offsets.

        An offset that is there several times is returned once.

        Raises:
            ConsumerError: the file cannot be read.
            SettingsError: a column does not fit.
        """
        with self._open(group.path) as file:
            paths = self._paths(file, group.place, group.path)
            table = file.read_row_group(group.number, columns=list(paths.values()))
        constants = self._constants(group.place, paths, table.num_rows)
        records = records_of(table, paths, constants, group.path)
        if group.is_shared:
            at = pc.field("partition") == group.at.partition
            records = records.filter((pc.field("topic") == group.at.topic) & at)
        return in_order(records)

    @contextmanager
    def _open(self, path: str) -> Iterator[pq.ParquetFile]:
        with self._reading(path), self._storage.filesystem.open_input_file(path) as opened:
            yield pq.ParquetFile(opened)

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowInvalid) as error:
            raise ConsumerError(f"archive: {path} cannot be read: {error}") from error


_NOWHERE: Final = TopicPartition("", 0)


def _bounds(file: pq.ParquetFile, number: int, path: str) -> tuple[Any, Any] | None:
    """Return the lowest and highest value of a column in a row group; None if the footer lacks them."""
    group = file.metadata.row_group(number)
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == path:
            found = column.statistics
            return (found.min, found.max) if found is not None and found.has_min_max else None
    return None


def _by_partition(
    records: pa.RecordBatch, group: RowGroup, files: ArchiveFiles
) -> Iterator[RowGroup]:
    """Divide a row group of several partitions."""
    table = pa.Table.from_batches([records.select(["topic", "partition", "offset"])])
    found = table.group_by(["topic", "partition"]).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count")]
    )
    for row in found.to_pylist():
        if files.has(row["topic"]):
            yield group._replace(
                at=TopicPartition(row["topic"], row["partition"]),
                first=row["offset_min"],
                last=row["offset_max"],
                rows=row["offset_count"],
                is_shared=found.num_rows > 1,
            )


def offsets_of(records: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the offsets of records."""
    found: NDArray[np.int64] = records.column("offset").to_numpy(zero_copy_only=False)
    return found


def in_order(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records by ascending offsets, each offset once: the first of those that have it."""
    offsets = offsets_of(records)
    if len(offsets) < 2 or bool(np.all(offsets[1:] > offsets[:-1])):
        return records
    _, places = np.unique(offsets, return_index=True)
    return records.take(places)
