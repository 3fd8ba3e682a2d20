"""A tool that moves the committed offsets of a group without members: that of kmr, or a foreign one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..delivery.announcement import Generation, generation_of, next_generation
from ..kafka.consumer import CommitOffset

if TYPE_CHECKING:
    from contextvars import Context

    from ..record import TopicPartition
    from .empty_group import EmptyGroup
    from .group import ModelGroup
    from .schedule import Event
    from .sinks import StrategyModels
    from .world import World


class OffsetsTool:
    """Moves the offset of one partition for each event `reset` and `move`.

    Args:
        models: the sinks. Before a reset by kmr, the rows are deleted that are written again.
        empty: the group, without members.
        context: of the simulation; it has the time that generations are made of.
    """

    def __init__(
        self,
        world: World,
        group: ModelGroup,
        models: StrategyModels,
        empty: EmptyGroup,
        context: Context,
    ) -> None:
        self._world = world
        self._group = group
        self._models = models
        self._empty = empty
        self._context = context

    def run(self, event: Event) -> None:
        """Stop the members, and move the offset when the group has none."""
        self._empty.then(event, lambda: self._context.run(self._move, event))

    def _move(self, event: Event) -> None:
        group, by_kmr = self._group, event.what == "reset"
        partition = sorted(group.log)[event.number]
        before = group.offsets.committed.get(partition)
        # Tokens without a generation cannot tell rows that are written again: docs/reprocessing.md.
        may_go_back = by_kmr or group.checks.expected.delivery != "exactly-once"
        to = self._place(partition, event.count) if may_go_back else group.ranges[partition].end
        metadata = ""
        if by_kmr:
            metadata = Generation(next_generation([generation_of(partition, before)])).metadata
            self._models.delete(partition, to)
        group.offsets.committed[partition] = CommitOffset(to, metadata)
        group.undone.discard(partition)
        group.resets[partition] += 1
        who = "kmr" if by_kmr else "another tool"
        self._world.note("test", "group", f"{who} moves {partition} to {to}")
        group.checks.moved(
            partition, 0 if before is None else before.offset, to, is_again=may_go_back
        )

    def _place(self, partition: TopicPartition, count: int) -> int:
        """Return the offset after the first `count` records of the log, or its end."""
        present, log = self._group.log[partition].offsets, self._group.ranges[partition]
        index = int(present.searchsorted(log.start)) + count
        return min(int(present[index]), log.end) if index < len(present) else log.end
