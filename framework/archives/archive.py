"""An archive of topics: how far it reaches without a gap, and its records as batches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from ..errors import OffsetOutOfRange, SettingsError
from ..kafka.subscription import Subscription
from ..record import SCHEMA, Batch, Range
from ..service.storage import open_storage, without_secrets
from .columns import ArchiveColumns
from .files import ArchiveFiles, in_order, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..record import TopicPartition
    from ..settings import Settings
    from .files import RowGroup

_OFFSETS: Final = 65_536  # in a batch, at most
_BYTES: Final = 16 * 1024 * 1024  # in a batch, at most


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """Where an archive is.

    Attributes:
        path: a directory, or its URI.
        gaps: offsets may be lacking: compaction removed their records, or they are marks of transactions.
    """

    path: str
    columns: ArchiveColumns
    subscription: Subscription
    gaps: bool = False

    @classmethod
    def of(cls, settings: Settings) -> ArchiveSource | None:
        """Return the archive of settings; None if they have none. Raises SettingsError."""
        if settings.archive is None:
            return None
        columns = ArchiveColumns.parse(settings.archive_columns)
        subscription = Subscription(settings.topics, settings.topic_pattern)
        return cls(settings.archive, columns, subscription, settings.archive_gaps)


class Archive:
    """What an archive has of each partition. Several threads may read it.

    Args:
        groups: of the files, in any order.
    """

    def __init__(
        self, source: ArchiveSource, files: ArchiveFiles, groups: Sequence[RowGroup]
    ) -> None:
        self._source = source
        self._files = files
        by_partition: dict[TopicPartition, list[RowGroup]] = defaultdict(list)
        for group in sorted(groups, key=lambda each: (each.at, each.first, each.last)):
            by_partition[group.at].append(group)
        self._groups: Mapping[TopicPartition, list[RowGroup]] = by_partition

    @classmethod
    def open(cls, source: ArchiveSource) -> Archive:
        """Read the footers of all files.

        Raises:
            SettingsError: there are no files, or columns are lacking.
            StrategyError: the file system cannot be opened.
            ConsumerError: a file cannot be read.
        """
        files = ArchiveFiles(open_storage(source.path), source.columns, source.subscription)
        groups = files.index()
        counted = next((group.path for group in groups if group.place.first is not None), None)
        if source.gaps and counted is not None:
            raise SettingsError(
                f"--archive-gaps: {counted} has no column of offsets, so that its rows are counted from the "
                "offset in its name; this needs a topic without gaps"
            )
        return cls(source, files, groups)

    def __str__(self) -> str:
        return without_secrets(self._source.path)

    def first(self, at: TopicPartition) -> int | None:
        """Return the first offset of a partition; None if the archive has nothing of it."""
        groups = self._groups.get(at)
        return groups[0].first if groups else None

    def end(self, at: TopicPartition, first: int) -> int:
        """Return the offset up to which the archive has everything from `first` on; `first` for nothing."""
        end = first
        for group in self._groups.get(at, ()):
            if group.last < end:
                continue
            if group.first > end and not (self._source.gaps and end > first):
                break
            end = group.last + 1
        return end

    def require_joined(self, at: TopicPartition, first: int, until: int, start: int) -> None:
        """Check that archive and topic have all offsets of a history between them.

        Args:
            first, until: the history: its first offset, and the one after its last.
            start: the first offset of the topic.

        Raises:
            OffsetOutOfRange: there is a gap, which the message names.
        """
        end = self.end(at, first)
        if end < min(start, until):
            after = min((g.first for g in self._groups.get(at, ()) if g.first > end), default=start)
            raise OffsetOutOfRange(
                f"{at}: offsets {end} to {min(after, start, until) - 1} are neither in the archive {self} "
                f"nor in the topic, which begins at {start}. {self._advice}",
                at,
            )
        if not self._source.gaps:
            self._require_all(at, first, min(end, until))

    @property
    def _advice(self) -> str:
        if self._source.gaps:
            return "Complete the archive, or begin after them with --from"
        return (
            "Complete the archive, or begin after them with --from; if compaction removed the records, or "
            "they are marks of transactions, give --archive-gaps"
        )

    def _require_all(self, at: TopicPartition, first: int, end: int) -> None:
        """Raise OffsetOutOfRange if offsets are lacking; reads groups with fewer records than offsets."""
        begin, reach, rows = first, first, 0
        for group in [*(g for g in self._groups.get(at, ()) if g.last >= first), None]:
            if group is None or group.first >= reach:
                if rows and rows < reach - begin:
                    for _ in self.batches(Range(*at, max(begin, first), min(reach, end) - 1)):
                        pass
                if group is None or group.first >= end:
                    return
                begin, reach, rows = group.first, group.first, 0
            begin, reach = min(begin, group.first), max(reach, group.last + 1)
            rows += group.rows

    def reader(self, at: TopicPartition) -> PartitionReader:
        """Return a reader of one partition, which keeps what it has decoded."""
        groups = self._groups.get(at, [])
        return PartitionReader(
            self._files,
            at,
            groups,
            f"the archive {self}",
            None if self._source.gaps else self._advice,
        )

    def batches(self, wanted: Range) -> Iterator[Batch]:
        """Yield the records of a range, which the archive has, in batches that follow each other."""
        reader, position = self.reader(wanted.topic_partition), wanted.first
        while position <= wanted.last:
            batch = reader.read(position, wanted.last + 1)
            position = batch.last + 1
            yield batch


@dataclass(eq=False)
class PartitionReader:
    """Reads one partition, from low to high offsets; one call at a time.

    Args:
        where: the archive, for messages.
        advice: what to do about offsets that are lacking; None: they may be.
    """

    files: ArchiveFiles
    at: TopicPartition
    groups: Sequence[RowGroup]
    where: str
    advice: str | None
    _decoded: dict[RowGroup, pa.RecordBatch] = field(default_factory=dict, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def read(self, first: int, until: int) -> Batch:
        """Return a batch from `first` on, that ends before `until`: at most 65,536 offsets and 16 MiB.

        Row groups may overlap, as do those of files by the hour; a record is returned once.

        Raises:
            OffsetOutOfRange: an offset is lacking.
            ConsumerError: a file cannot be read.
            SettingsError: a column does not fit.
        """
        with self._lock:
            stop = min(first + _OFFSETS, until)
            parts = [
                _between(self._records(group), first, stop)
                for group in self.groups
                if group.first < stop and group.last >= first
            ]
            self._decoded = {g: r for g, r in self._decoded.items() if g.last >= stop}
        records = _joined(parts)
        if records.nbytes > _BYTES and len(records) > 1:
            kept = max(1, len(records) * _BYTES // records.nbytes)
            stop = int(offsets_of(records)[kept - 1]) + 1 if kept < len(records) else stop
            records = records.slice(0, kept)
        if self.advice is not None:
            self._require_all(offsets_of(records), first, stop)
        return Batch(
            *self.at,
            first,
            stop - 1,
            nbytes=max(1, records.nbytes),
            load=lambda: records,
            max_timestamp_ms=_newest(records),
        )

    def _records(self, group: RowGroup) -> pa.RecordBatch:
        if group not in self._decoded:
            self._decoded[group] = self.files.read(group)
        return self._decoded[group]

    def _require_all(self, offsets: np.ndarray, first: int, stop: int) -> None:
        if len(offsets) == stop - first:
            return
        lacking = np.setdiff1d(np.arange(first, stop), offsets)
        end = int(lacking[np.argmax(np.diff(lacking, append=-1) != 1)])
        raise OffsetOutOfRange(
            f"{self.at}: {self.where} lacks the offsets {int(lacking[0])} to {end}. {self.advice}",
            self.at,
        )


def _between(records: pa.RecordBatch, first: int, stop: int) -> pa.RecordBatch:
    begin, end = np.searchsorted(offsets_of(records), [first, stop])
    return records.slice(int(begin), int(end - begin))


def _joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the records of all parts by their offsets, each once."""
    if len(parts) == 1:
        return parts[0]
    batches = pa.Table.from_batches(parts, SCHEMA).combine_chunks().to_batches()
    return in_order(batches[0]) if batches else pa.RecordBatch.from_pylist([], schema=SCHEMA)


def _newest(records: pa.RecordBatch) -> int:
    if not len(records):
        return -1
    times = records.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return int(np.nanmax(times)) // 1000


@lru_cache(maxsize=4)
def shared_archive(source: ArchiveSource) -> Archive:
    """Return the archive that the tasks of this process share. Raises as `Archive.open`."""
    return Archive.open(source)
