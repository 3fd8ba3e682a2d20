"""The counts of the sink of one branch, and the rules that they are checked by."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from ..record import Rows, TopicPartition
    from .world import SimulatedMember, World


_Holding: TypeAlias = "tuple[int, int, TopicPartition]"
"""A member (its `id`), its generation of a partition, and the partition."""


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
        self._last: dict[_Holding, int] = {}
        self._resets = dict.fromkeys(rows, 0)
        self._resets_of: dict[_Holding, int] = {}
        self._asked: dict[_Holding, int] = {}
        self._written = {at: np.zeros(len(each), dtype=np.int64) for at, each in rows.items()}
        self._forgetful: set[TopicPartition] = set()
        self._cuts: dict[TopicPartition, int] = {}

    def forgets(self, partition: TopicPartition) -> None:
        """Note that rows of a partition may be there that are duplicates of removed records."""
        self._forgetful.add(partition)

    def cut(self, partition: TopicPartition, to: int) -> None:
        """Check that the group has written nothing below a cut: the history writes it."""
        self._cuts[partition] = to
        self._require_above_cut(partition, np.flatnonzero(self.delivered[partition][:to]).tolist())

    def _require_above_cut(self, partition: TopicPartition, offsets: Sequence[int]) -> None:
        below = [offset for offset in offsets if offset < self._cuts.get(partition, 0)]
        if below and self._once:
            self._world.problem(
                "the group writes a record below its cut",
                f"{partition}[{below[0]}] is in {self._shown}, and the history up to "
                f"{self._cuts[partition]} is written by others",
            )

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
                self._require_above_cut(partition, [offset])
                if not self._is_of_last_reset(member, rows, partition):
                    continue
                self._written[partition][offset] += 1
                if self._once and partition not in self._forgetful:
                    most = self.expected[partition][offset]
                    if self._written[partition][offset] > most and most:
                        self._world.problem(
                            "a record is in the sink too often",
                            f"{partition}[{offset}] became {most} rows, but {self._shown} has "
                            f"{self._written[partition][offset]}, the last by {member.name}",
                        )

    def refused(self, rows: Rows) -> dict[int, str]:
        """Return the rows that the sink refuses each time, by number, with the reasons: none."""
        return {}

    def begins_again(self, partition: TopicPartition, first: int, *, is_again: bool) -> None:
        """Note that the records from an offset on are written again.

        Args:
            is_again: also those that the sink has.
        """
        self._resets[partition] += 1
        self._written[partition][first:] = 0
        if is_again:
            self.delivered[partition][first:] = 0
            self.dropped[partition][first:] = False

    def _is_of_last_reset(
        self, member: SimulatedMember, rows: Rows, partition: TopicPartition
    ) -> bool:
        """Return whether the member knew of the last reset when it got the partition.

        What it had sent before may arrive after it, and no worker can prevent that.
        """
        known = (
            self._resets_of.get((id(member), r.generation, partition))
            for r in rows.ranges
            if r.topic_partition == partition
        )
        return self._resets[partition] in known

    def has_asked(self, member: SimulatedMember, parts: Sequence[Rows]) -> None:
        """Check that a member that has lost a partition asks the group before it writes a range once more."""
        first = {r.topic_partition: r for rows in parts for r in rows.ranges[:1]}
        for partition, r in first.items():
            at = (id(member), r.generation, partition)
            is_late = self._resets_of.get(at, 0) < self._resets[partition]
            if self._once and is_late and self._asked.get(at) == member.commits:
                self._world.problem(
                    "a range is written again after a reset of the offsets",
                    f"{member.name} writes {r}, and the group has not confirmed it since the last attempt",
                )
            self._asked[at] = member.commits

    def sends(self, member: SimulatedMember, parts: Sequence[Rows]) -> None:
        """Check that a member sends the ranges of a partition in order; a write may be sent again."""
        began: dict[_Holding, int] = {}
        for r in (r for rows in parts for r in rows.ranges):
            at = (id(member), r.generation, r.topic_partition)
            if at not in self._resets_of:
                known = (
                    0 if member.consumer is None else member.consumer.resets_seen(r.topic_partition)
                )
                self._resets_of[at] = known
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
        wanted, found = self.expected[partition], self._written[partition]
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
