"""A tool that moves the committed offsets of a group without members: that of kmr, or a foreign one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..delivery.announcement import Generation, generation_of, next_generation
from ..kafka.consumer import CommitOffset

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from ..record import TopicPartition
    from .group import ModelGroup
    from .schedule import Event
    from .sinks import StrategyModels
    from .world import World

_PATIENCE: Final = 30.0  # seconds
_AGAIN: Final = 0.5  # seconds


class OffsetsTool:
    """Moves the offset of one partition for each event `reset` and `move`.

    Args:
        models: the sinks. Before a reset by kmr, the rows are deleted that are written again.
        stop: stops all members, as the event says.
        context: of the simulation; it has the time that generations are made of.

    Attributes:
        waiting: the tools that wait for the members to leave. No member starts meanwhile.
    """

    def __init__(
        self,
        world: World,
        group: ModelGroup,
        models: StrategyModels,
        stop: Callable[[Event], None],
        context: Context,
    ) -> None:
        self._world = world
        self._group = group
        self._models = models
        self._stop = stop
        self._context = context
        self.waiting = 0

    def run(self, event: Event) -> None:
        """Stop the members, and move the offset when the group has none."""
        self.waiting += 1
        self._stop(event)
        self._try(event, self._world.loop.now + _PATIENCE)

    def _try(self, event: Event, give_up: float) -> None:
        offsets = self._group.offsets
        if not offsets.members and not offsets.pending:
            self.waiting -= 1
            self._context.run(self._move, event)
        elif self._world.loop.now < give_up:
            self._world.later(_AGAIN, self._try, event, give_up)
        else:
            self.waiting -= 1
            self._world.note("test", "group", "the offsets are not moved: the group has members")

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
