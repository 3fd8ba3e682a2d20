"""Divide a flush into inserts, one per partition, each with a token made of its offsets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from ..delivery.announcement import token_of
from ..delivery.ranges import merge_ranges, ranges_of
from ..record import Rows
from ..reducers.reducer import Poisoned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..record import Range, TopicPartition

__all__ = ["MAX_BLOCK_ROWS", "Insert", "Section", "plan_inserts"]

MAX_BLOCK_ROWS = 1_000_000
"""ClickHouse divides larger inserts into several blocks, which it does not write atomically."""


@dataclass(frozen=True, slots=True)
class Section:
    """Rows `[start, stop)` of the insert with the token `of`, sent together; `whole`: all of its rows."""

    of: str
    start: int
    stop: int
    whole: bool = False

    @property
    def token(self) -> str:
        """The deduplication token."""
        return self.of if self.whole else f"{self.of}/{self.start}-{self.stop}"

    def halves(self) -> tuple[Section, Section]:
        """Bisect a refused section of two rows or more."""
        middle = (self.start + self.stop) // 2
        return Section(self.of, self.start, middle), Section(self.of, middle, self.stop)


@dataclass(frozen=True, slots=True)
class Insert:
    """The rows of one partition in a flush, or its rows that belong to several partitions at once."""

    token: str
    parts: tuple[Rows, ...]
    block_rows: int = MAX_BLOCK_ROWS

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The offsets that the rows came from."""
        return merge_ranges(r for rows in self.parts for r in rows.ranges)

    def sections(self) -> list[Section]:
        """Return the whole, or as many parts as needed to stay below the largest block."""
        rows = len(self)
        size = self.block_rows
        if rows <= size:
            return [Section(self.token, 0, rows, whole=True)]
        return [
            Section(self.token, start, min(start + size, rows)) for start in range(0, rows, size)
        ]

    def poisoned(self, refused: Mapping[int, str]) -> Iterator[Poisoned]:
        """Return the refused rows, given by row number, as parts of the `Rows` that were added."""
        first = 0
        for part in self.parts:
            rows = sorted(row - first for row in refused if first <= row < first + len(part))
            if rows and part.offsets is None:
                # A row belongs to no single record: all records of this part go to the error sink.
                more = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
                reason = refused[first + rows[0]] + more
                yield Poisoned(Rows(part.table.take(rows), part.ranges, None, part.sources), reason)
            elif rows:
                by_reason: dict[str, list[int]] = defaultdict(list)
                for row in rows:
                    by_reason[refused[first + row]].append(row)
                for reason, alike in by_reason.items():
                    yield Poisoned(_some(part, alike), reason)
            first += len(part)


def _some(part: Rows, rows: Sequence[int]) -> Rows:
    assert part.offsets is not None  # noqa: S101  the caller has checked
    offsets = part.offsets[rows]
    ranges = ranges_of(np.unique(offsets), part.ranges[0])
    return Rows(part.table.take(rows), ranges, offsets, part.sources)


def plan_inserts(
    added: Sequence[Rows], group: str, generations: Mapping[TopicPartition, int]
) -> list[Insert]:
    """Divide a flush into inserts, one per partition.

    Rows that came from several partitions at once, such as aggregates, make one insert together. A token
    is `group:topic:partition:first-last`, over all offsets of the partition in the flush, so that any
    process that writes the same offsets of the same generation again uses the same token.
    """
    partitions: dict[TopicPartition | None, list[Rows]] = defaultdict(list)
    for rows in added:
        owners = {r.topic_partition for r in rows.ranges}
        if len(owners) == 1:
            partitions[owners.pop()].append(rows)
        else:
            partitions[None].append(replace(rows, offsets=None))
    inserts = (
        Insert(_token(group, parts, generations), tuple(parts)) for parts in partitions.values()
    )
    return [insert for insert in inserts if len(insert)]


def _token(group: str, parts: Sequence[Rows], generations: Mapping[TopicPartition, int]) -> str:
    ranges = [r for rows in parts for r in rows.ranges]
    if ranges:
        return token_of(group, ranges, generations)
    digest = sha256()  # of the content, for rows without offsets
    for rows in parts:
        for batch in rows.table.to_batches():
            digest.update(batch.serialize())
    return f"{group[:64]}:{digest.hexdigest()}"
