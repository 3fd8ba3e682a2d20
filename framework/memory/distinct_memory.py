"""What `Distinct` remembers of one partition, and how far it looks back."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import structlog

from ..columns.times import shown_time
from ..delivery.announcement import LookBack
from ..errors import MANY, KmrError, StrategyError
from ..mapping.results import NO_OFFSETS, Failure, MapResult, kept_records
from ..tagged_rows import rows_by_branch
from .distinct_keys import RecentKeys, hashes_of
from .event_time import NO_TIME, event_times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..record import Batch, TopicPartition
    from .distinct import Distinct

_log = structlog.get_logger(__name__)

_TIME: Final = b"event_time"  # in the metadata of a saved memory
_MARKS_BEFORE: Final = b"marks"
_MARKS: Final = 64  # marks of the event time for each `within`
_MOST_MARKS: Final = 4096
_SAMPLE_EVERY: Final = 60.0  # seconds


class Marks:
    """The event time that was reached before some offsets.

    A row is remembered while the event time goes on by less than `within`. It never goes back, so what is
    remembered at an offset are the rows from some earlier offset on: nothing below it has to be read again.
    Open windows hold the committed offset back for longer than `within`: then fewer marks are kept of that
    time, and a start reads a little more.
    """

    def __init__(self, within: int) -> None:
        self._within = within
        self._offsets: list[int] = []
        self._times: list[int] = []

    def note(self, offset: int, time: int) -> None:
        """Note the event time before the rows from an offset on; offsets ascend."""
        if not self._offsets or time - self._times[-1] >= self._within // _MARKS:
            self._offsets.append(offset)
            self._times.append(time)
            if len(self._offsets) > _MOST_MARKS:
                del self._offsets[1:-1:2], self._times[1:-1:2]

    def saved(self) -> bytes:
        """Return the marks as text, for `restore`."""
        return msgspec.json.encode((self._offsets, self._times))

    def restore(self, text: bytes) -> None:
        """Go on with the marks that `saved` returned."""
        self._offsets, self._times = msgspec.json.decode(text, type=tuple[list[int], list[int]])

    def look_back(self, offset: int) -> int | None:
        """Return where a memory has to begin that is complete before an offset; None: nothing was read.

        Offsets much earlier than the highest one that was asked for are forgotten.
        """
        at = bisect_right(self._offsets, offset) - 1
        if at < 0:
            return self._offsets[0] if self._offsets else None
        begin = max(0, bisect_right(self._times, self._times[at] - self._within) - 1)
        forget = bisect_right(self._times, self._times[begin] - self._within) - 1
        if forget > 0:
            del self._offsets[:forget], self._times[:forget]
            begin -= forget
        return self._offsets[begin]


class DistinctMemory:
    """The keys of one partition, or of one branch of it, and its event time."""

    def __init__(self, distinct: Distinct) -> None:
        self.distinct = distinct
        self.keys = RecentKeys(distinct.microseconds)
        self.marks = Marks(distinct.microseconds)
        self.time = NO_TIME

    def repeated(
        self, batch: Batch, table: pa.Table, offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], int]:
        """Note rows, in their order; return which are duplicates, and how many have no key.

        Raises:
            StrategyError: a column is missing, or of a type that is not allowed.
        """
        hashes, valid = hashes_of(table, self.distinct.key)
        times = self._times(batch, table, offsets)
        reached = np.maximum.accumulate(np.maximum(times, self.time))
        if len(reached):
            self.time = int(reached[-1])
        return self.keys.see(hashes, reached, valid), int(np.count_nonzero(~valid))

    def saved(self) -> pa.Table:
        """Return the memory as a table, for `restore`: hashes, when they were seen, the event time, marks."""
        entries = self.keys.entries(self.time)
        low, high, seen = (pa.array(np.ascontiguousarray(column)) for column in entries.T)
        table = pa.table({"low": low, "high": high, "seen": seen})
        return table.replace_schema_metadata(
            {_TIME: str(self.time).encode(), _MARKS_BEFORE: self.marks.saved()}
        )

    def restore(self, table: pa.Table) -> None:
        """Remember what `saved` returned."""
        low, high, seen = (table.column(name).to_numpy() for name in ("low", "high", "seen"))
        hashes = np.ascontiguousarray(np.column_stack([low, high]))
        self.keys.see(hashes, np.ascontiguousarray(seen), np.ones(len(seen), np.bool_))
        about = table.schema.metadata or {}
        self.time = int(about[_TIME])
        if _MARKS_BEFORE in about:  # a file of kmr 0.1 has none
            self.marks.restore(about[_MARKS_BEFORE])

    def _times(
        self, batch: Batch, table: pa.Table, offsets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        name = self.distinct.time

        def recorded() -> pa.Array[Any]:
            return batch.times.column("timestamp").take(np.searchsorted(batch.offsets(), offsets))

        if name is None:
            times: NDArray[np.int64] = recorded().cast(pa.int64()).to_numpy(zero_copy_only=False)
            return times
        self.distinct.require(table.schema)
        return event_times(table.column(name), [batch], recorded, self.distinct.ahead)


class Distinction(NamedTuple):
    """What became of the rows of some records.

    Attributes:
        mapped: without the duplicates.
        letters: records for `reduce_err`, whose rows are all duplicates.
        passed: rows that are no duplicates.
        duplicates: rows that are.
        without_key: of those that passed.
    """

    mapped: MapResult
    letters: tuple[Failure, ...] = ()
    passed: int = 0
    duplicates: int = 0
    without_key: int = 0


class PartitionMemory:
    """The memories of all `Distinct` of a strategy, for one partition in one generation of its assignment.

    Args:
        distincts: by the names of their branches, "" without branches.
        begin: where the memory begins; None: with the first record.

    Attributes:
        within: the longest `within`, in microseconds.
    """

    def __init__(
        self, distincts: Mapping[str, Distinct], partition: TopicPartition, begin: int | None
    ) -> None:
        self._memories = {name: DistinctMemory(each) for name, each in distincts.items()}
        self._partition = partition
        self.within = max(each.microseconds for each in distincts.values())
        self._sampled_at = -_SAMPLE_EVERY
        self._checked: pa.Schema | None = None  # the columns of rows that had keys and times
        if begin is not None:
            for memory in self._memories.values():
                memory.marks.note(begin, NO_TIME)

    def note(self, batch: Batch, mapped: MapResult) -> Distinction:
        """Note the rows of mapped records, in the order of their offsets, and take duplicates out.

        Raises:
            StrategyError: of 100 rows or more a column is missing, or of a type that is not allowed. The
                records of fewer rows fail.
        """
        for memory in self._memories.values():
            memory.marks.note(batch.first, memory.time)
        mapped = self._with_keys(mapped)
        table = mapped.table
        if table is None:
            return Distinction(mapped)
        repeated = np.zeros(table.num_rows, np.bool_)
        for_letters = np.zeros(table.num_rows, np.bool_)
        without_key = 0
        for name, rows, places in rows_by_branch(table):
            if (known := self._memories.get(name)) is not None:
                found, lacking = known.repeated(batch, rows, mapped.offsets[places])
                repeated[places] = found
                for_letters[places] = found & (known.distinct.on_duplicate == "dead-letter")
                without_key += lacking
        duplicates = int(np.count_nonzero(repeated))
        passed = table.num_rows - duplicates
        if not duplicates:
            return Distinction(mapped, (), passed, 0, without_key)
        kept = mapped.offsets[~repeated]
        wanted = np.setdiff1d(mapped.offsets[for_letters], kept)
        letters = tuple(Failure(at, self._reason()) for at in wanted.tolist())
        return Distinction(_filter(mapped, ~repeated), letters, passed, duplicates, without_key)

    def _with_keys(self, mapped: MapResult) -> MapResult:
        """Return the rows that can have a key and a time; the records of the others fail."""
        if mapped.table is None or mapped.table.schema == self._checked:
            return mapped
        misfits: dict[int, str] = {}
        for name, rows, places in rows_by_branch(mapped.table):
            if (known := self._memories.get(name)) is not None:
                try:
                    known.distinct.require(rows.schema)
                except StrategyError as error:
                    if len(rows) >= MANY:
                        raise
                    misfits |= dict.fromkeys(
                        np.arange(mapped.table.num_rows)[places].tolist(), str(error)
                    )
        if not misfits:
            self._checked = mapped.table.schema
            return mapped
        kept = kept_records(mapped.table, mapped.offsets, misfits, mapped.failures, mapped.places)
        return replace(kept, rest=mapped.rest, retries=mapped.retries, seconds=mapped.seconds)

    def sample(self, mapped: MapResult, kept: MapResult, now: float) -> None:
        """Log one duplicate, at most once a minute."""
        if now - self._sampled_at < _SAMPLE_EVERY or mapped.table is None:
            return
        self._sampled_at = now
        dropped = np.setdiff1d(mapped.offsets, kept.offsets)
        at = int(dropped[0]) if len(dropped) else int(mapped.offsets[0])
        _log.info(
            "duplicates were found, such as this record",
            record=f"{self._partition}[{at}]",
            rule=self._reason(),
            **self._key_at(mapped, at),
        )

    def _key_at(self, mapped: MapResult, offset: int) -> dict[str, str]:
        assert mapped.table is not None  # noqa: S101  the caller has looked
        at = int(np.searchsorted(mapped.offsets, offset))
        row = mapped.table.slice(at, 1)
        for name, rows, _ in rows_by_branch(row):
            if (known := self._memories.get(name)) is not None:
                values = rows.select(list(known.distinct.key)).to_pylist()[0].values()
                return {"key": ", ".join(map(str, values))[:200]}
        return {}

    def _reason(self) -> str:
        return "duplicate: " + "; ".join(str(each.distinct) for each in self._memories.values())

    def saved(self) -> dict[str, pa.Table]:
        """Return the memories as tables, for `restore`."""
        return {name: memory.saved() for name, memory in self._memories.items()}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Remember what `saved` returned; a new branch begins with nothing."""
        for name, memory in self._memories.items():
            if name in tables:
                memory.restore(tables[name])

    def look_back(self, offset: int) -> LookBack | None:
        """Return from where on records must be read again to remember all before an offset; None: unknown."""
        found = [memory.marks.look_back(offset) for memory in self._memories.values()]
        known = [each for each in found if each is not None]
        return LookBack(min(known), self.within) if len(known) == len(found) else None

    @property
    def nbytes(self) -> int:
        """The size of the memory."""
        return sum(memory.keys.nbytes for memory in self._memories.values())

    def __len__(self) -> int:
        return sum(len(memory.keys) for memory in self._memories.values())

    def __str__(self) -> str:
        """Its size and event time in words."""
        times = [memory.time for memory in self._memories.values() if memory.time > NO_TIME]
        shown = shown_time(max(times)) if times else "unknown"
        return (
            f"{self._partition} with {len(self):,} keys in {self.nbytes / 1e6:,.1f} MB at the event time "
            f"{shown}"
        )


def _filter(mapped: MapResult, kept: NDArray[np.bool_]) -> MapResult:
    if not kept.any():
        return replace(mapped, table=None, offsets=NO_OFFSETS, places=None)
    rows = np.flatnonzero(kept)
    assert mapped.table is not None  # noqa: S101  it has duplicates
    return replace(
        mapped,
        table=mapped.table.take(rows),
        offsets=mapped.offsets[kept],
        places=None if mapped.places is None else mapped.places.take(rows),
    )


class MemoryLimit(KmrError):
    """What a strategy remembers would take more than half of the budget."""
