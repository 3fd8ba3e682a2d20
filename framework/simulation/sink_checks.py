"""The counts of the sink of one branch, and the rules that they are checked by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from ..record import Rows, TopicPartition
    from .world import SimulatedMember, World


def offsets_of(rows: Rows, *, per_row: bool) -> Iterable[tuple[TopicPartition, int]]:
    """Return the records behind rows: one for each row, or each of the ranges once."""
    if per_row and rows.offsets is not None:
        partition = rows.ranges[0].topic_partition
        return [(partition, offset) for offset in rows.offsets.tolist()]
    return [(r.topic_partition, at) for r in rows.ranges for at in range(r.first, r.last + 1)]


class SinkChecks:
    """Counts what reaches the sink of one branch.

    Args:
        rows: as `Expectation.rows`, of the branch.
        per_row: whether rows, or else ranges, are counted.
        once: whether no row may be there twice.
    """

    def __init__(
        self,
        world: World,
        name: str,
        rows: Mapping[TopicPartition, np.ndarray],
        *,
        per_row: bool,
        once: bool,
    ) -> None:
        self._world = world
        self._shown = f"the sink of branch {name}" if name else "the sink"
        self.expected = rows
        self.per_row = per_row
        self._once = once
        self.delivered = {at: np.zeros(len(each), dtype=np.int64) for at, each in rows.items()}
        self.dropped = {at: np.zeros(len(each), dtype=np.bool_) for at, each in rows.items()}
        self._last: dict[tuple[int, int, TopicPartition], int] = {}
        self._forgetful: set[TopicPartition] = set()

    def forgets(self, partition: TopicPartition) -> None:
        """Note that rows of a partition may be there that are duplicates of removed records."""
        self._forgetful.add(partition)

    def wrote(
        self, member: SimulatedMember, parts: Sequence[Rows], only: Container[int] | None = None
    ) -> None:
        """Count rows that the sink has taken, and check their number.

        Args:
            only: the offsets of the rows that it has taken; None: all.
        """
        for rows in parts:
            for partition, offset in offsets_of(rows, per_row=self.per_row):
                if only is not None and offset not in only:
                    continue
                self.delivered[partition][offset] += 1
                if self._once and partition not in self._forgetful:
                    most = self.expected[partition][offset]
                    if self.delivered[partition][offset] > most and most:
                        self._world.problem(
                            "a record is in the sink too often",
                            f"{partition}[{offset}] became {most} rows, but {self._shown} has "
                            f"{self.delivered[partition][offset]}, the last by {member.name}",
                        )

    def sends(self, member: SimulatedMember, parts: Sequence[Rows]) -> None:
        """Check that a member sends the ranges of a partition in order; a write may be sent again."""
        began: dict[tuple[int, int, TopicPartition], int] = {}
        for r in (r for rows in parts for r in rows.ranges):
            at = (id(member), r.generation, r.topic_partition)
            last = began.get(at, self._last.get(at, -1))
            if r.first <= last if at in began else r.first < last:
                self._world.problem(
                    "records of a partition are out of order",
                    f"{member.name} writes {r} after offset {last}",
                )
            if at not in began:
                self._last[at] = r.first
            began[at] = r.last

    def drops(self, rows: Rows) -> None:
        """Note that a reducer has made no rows of these records."""
        for r in rows.ranges:
            self.dropped[r.topic_partition][r.first : r.last + 1] = True

    def has(self, partition: TopicPartition) -> np.ndarray:
        """Return for each offset whether the sink has all expected rows of its record."""
        rows = self.expected[partition]
        found: np.ndarray = (
            (rows == 0) | (self.delivered[partition] >= rows) | self.dropped[partition]
        )
        return found

    def waits(self, partition: TopicPartition, end: int) -> np.ndarray:
        """Return the records below an offset that are not done until later ones come: none."""
        return np.zeros(len(self.expected[partition]), np.bool_)

    def rests(self, partition: TopicPartition, end: int, committed: int) -> bool:
        """Return whether everything below `end` is done when this offset is committed."""
        return committed >= end

    def final(self, partition: TopicPartition, errors: np.ndarray) -> None:
        """Check the number of rows at the end, when everything is committed.

        Args:
            errors: how often each record is in `reduce_err`.
        """
        if partition in self._forgetful:
            return
        wanted, found = self.expected[partition], self.delivered[partition]
        often = np.flatnonzero((found > wanted) & (wanted > 0))
        if self._once and len(often):
            self._world.problem(
                "a record is in the sink too often", f"{partition}[{int(often[0])}]"
            )
        extra = np.flatnonzero((found > 0) & (wanted == 0))
        if self.per_row and len(extra):
            self._world.problem(
                "a record is in the sink that the map filters or fails on",
                f"{partition}[{int(extra[0])}]",
            )
