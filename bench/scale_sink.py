"""The sink of `bench.scale`: it forgets the rows and notes their ranges, so that losses are counted."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from kmr import Strategy
from kmr.sinks import RangeRows, RangeWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kmr.record import Record

MAX_AGE: Final = 4.0
TURNS: Final = (
    4.0  # INSERTs a second of a worker: the default of ClickHouseWriter and PostgresWriter
)
NOTES: Final = "KMR_BENCH_NOTES"
"""The variable with the directory that all workers write their notes to."""


class NotingWriter(RangeWriter):
    """Exactly once: one line in a file of the process for each INSERT, with the ranges that are in it.

    A line is one `write(2)`: a process that is killed has written all of it or nothing.

    Args:
        together: ranges of several partitions are one INSERT, and take turns, as with ClickHouse.
    """

    def __init__(self, *, together: bool) -> None:
        super().__init__(
            max_age=MAX_AGE, max_rows=100_000, inserts_per_second=TURNS if together else None
        )
        if together:
            self.capabilities = replace(self.capabilities, joins_rows=100_000)

    def may_join(self) -> bool:
        """See `Sink.may_join`."""
        return bool(self.capabilities.joins_rows)

    def has(self, rows: RangeRows) -> bool:
        """Look for the range in the notes of all processes."""
        return bool(_present([rows]))

    async def found_among(self, ranges: Sequence[RangeRows]) -> Sequence[RangeRows]:
        """Look for all of them at once."""
        return _present(ranges)

    def write(self, rows: RangeRows) -> None:
        """Note the range."""
        _note([rows])

    async def write_together(self, ranges: Sequence[RangeRows]) -> Sequence[Mapping[int, str]]:
        """Note the ranges, but those that are there."""
        there = _present([rows for rows in ranges if rows.repeated])
        _note([rows for rows in ranges if rows not in there])
        return [{} for _ in ranges]


def _key(rows: RangeRows) -> str:
    (span,) = rows.ranges
    return f" {span.partition}:{span.first}-{span.last} "


def _present(ranges: Sequence[RangeRows]) -> list[RangeRows]:
    if not ranges:
        return []
    noted = "".join(path.read_text() for path in Path(os.environ[NOTES]).iterdir())
    return [rows for rows in ranges if _key(rows) in noted]


def _note(ranges: Sequence[RangeRows]) -> None:
    if ranges:
        line = f"{time.time():.3f}{''.join(map(_key, ranges))}\n"
        path = Path(os.environ[NOTES]) / str(os.getpid())
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def size_of(record: Record) -> dict[str, int]:
    """Make a row of one column."""
    return {"size": len(record.value or b"")}


together = Strategy(map=size_of, reduce=NotingWriter(together=True))
apart = Strategy(map=size_of, reduce=NotingWriter(together=False))


@dataclass(frozen=True, slots=True)
class Notes:
    """What all workers have written.

    Attributes:
        inserts: their times, ascending, and the number of ranges in each.
        ranges: the first and the last offset of each, by partition, ascending.
    """

    inserts: list[tuple[float, int]]
    ranges: dict[int, list[tuple[int, int]]]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the notes of all processes."""
        inserts, ranges = [], defaultdict(list)
        for path in directory.iterdir():
            for line in path.read_text().splitlines():
                at, *keys = line.split()
                inserts.append((float(at), len(keys)))
                for key in keys:
                    partition, _, offsets = key.partition(":")
                    first, _, last = offsets.partition("-")
                    ranges[int(partition)].append((int(first), int(last)))
        return cls(sorted(inserts), {at: sorted(each) for at, each in ranges.items()})

    def per_second(self, begin: float, end: float) -> tuple[float, float]:
        """Return INSERTs and ranges a second between two times."""
        counts = [ranges for at, ranges in self.inserts if begin <= at < end]
        return len(counts) / (end - begin), sum(counts) / (end - begin)

    def pause(self, begin: float, end: float) -> float:
        """Return the longest time between two times in which no worker has written anything."""
        times = [begin, *(at for at, _ in self.inserts if begin <= at < end), end]
        return max(b - a for a, b in pairwise(times))

    def lost_and_doubled(self, partitions: int, each: int) -> tuple[int, int]:
        """Count records that are in no range, and that are in more than one.

        Args:
            each: records of each partition.
        """
        lost = doubled = 0
        for partition in range(partitions):
            reached = 0
            for first, last in self.ranges.get(partition, ()):
                lost += max(0, first - reached)
                doubled += max(0, min(reached, last + 1) - first)
                reached = max(reached, last + 1)
            lost += each - reached
        return lost, doubled
