"""Which INSERTs a flush is made of: one per partition, each with a token that names its offsets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from framework.announcement import token_of
from framework.ranges import ranges_of
from framework.record import Rows
from framework.reducer import Poisoned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from framework.record import TopicPartition

__all__ = ["MAX_BLOCK_ROWS", "Insert", "Section", "plan_inserts"]

MAX_BLOCK_ROWS = 1_000_000
"""ClickHouse divides what is larger into several blocks, which are not written all or none."""


@dataclass(frozen=True, slots=True)
class Section:
    """Rows `[start, stop)` of the insert `of` that are sent together; `whole` if these are all of it."""

    of: str
    start: int
    stop: int
    whole: bool = False

    @property
    def token(self) -> str:
        """What ClickHouse recognises a repetition by."""
        return self.of if self.whole else f"{self.of}/{self.start}-{self.stop}"

    def halves(self) -> tuple[Section, Section]:
        """The two parts that are tried when a section of two rows or more is refused."""
        middle = (self.start + self.stop) // 2
        return Section(self.of, self.start, middle), Section(self.of, middle, self.stop)


@dataclass(frozen=True, slots=True)
class Insert:
    """The rows of one partition in a flush, or the rows that belong to no single partition."""

    token: str
    parts: tuple[Rows, ...]
    block_rows: int = MAX_BLOCK_ROWS

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def sections(self) -> list[Section]:
        """The whole, or as many parts as it takes to stay below the largest block."""
        rows = len(self)
        size = self.block_rows
        if rows <= size:
            return [Section(self.token, 0, rows, whole=True)]
        return [
            Section(self.token, start, min(start + size, rows)) for start in range(0, rows, size)
        ]

    def poisoned(self, refused: Mapping[int, str]) -> Iterator[Poisoned]:
        """The rows that were refused, given by their number, as what they were added as."""
        first = 0
        for part in self.parts:
            rows = sorted(row - first for row in refused if first <= row < first + len(part))
            if rows and part.offsets is None:
                # They belong to no single record: what is known is that all of these records are in it.
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
    assert part.offsets is not None  # noqa: S101  the caller has looked
    offsets = part.offsets[rows]
    ranges = ranges_of(np.unique(offsets), part.ranges[0])
    return Rows(part.table.take(rows), ranges, offsets, part.sources)


def plan_inserts(added: Sequence[Rows], group: str) -> list[Insert]:
    """Divide a flush into inserts, one per partition.

    Rows that came from several partitions at once, such as aggregates, make one insert together. A token
    is `group:topic:partition:first-last`, over all offsets that the flush has of the partition, so that
    the same offsets have the same token in whichever process they are written again.
    """
    partitions: dict[TopicPartition | None, list[Rows]] = defaultdict(list)
    for rows in added:
        owners = {r.topic_partition for r in rows.ranges}
        if len(owners) == 1:
            partitions[owners.pop()].append(rows)
        else:
            partitions[None].append(replace(rows, offsets=None))
    inserts = (Insert(_token(group, parts), tuple(parts)) for parts in partitions.values())
    return [insert for insert in inserts if len(insert)]


def _token(group: str, parts: Sequence[Rows]) -> str:
    ranges = [r for rows in parts for r in rows.ranges]
    if not ranges:
        return f"{group[:64]}:{_digest(parts)}"
    return token_of(group, ranges)


def _digest(parts: Sequence[Rows]) -> str:
    """A name for rows that stand for no offsets: what they contain."""
    digest = sha256()
    for rows in parts:
        for batch in rows.table.to_batches():
            digest.update(batch.serialize())
    return digest.hexdigest()
