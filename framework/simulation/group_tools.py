"""Tools that act on a group without members: offsets are reset by kmr or another tool, a cut is committed.

Members of the group may come back late.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from ..delivery.announcement import BackfillRange, Generation, next_generation, read_metadata
from ..errors import ConsumerError
from ..history.cut import commit_as_member
from ..history.plan import BackfillPlan
from ..kafka.consumer import CommitOffset
from .consumer import GroupConsumer
from .group import REBALANCE
from .loop import PROCESS
from .world import SimulatedMember

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Context

    from ..record import TopicPartition
    from .group import ModelGroup
    from .schedule import Event
    from .sinks import StrategyModels
    from .world import World

TOOL: Final = -1
"""The number of the member that commits a cut."""

_PATIENCE: Final = 30.0  # seconds
_AGAIN: Final = 0.5  # seconds
_SILENT: Final = 10.0  # seconds after which the group notices that a member was killed


@dataclass(eq=False)
class EmptyGroup:
    """Stops the members of a group, and waits until it has none.

    Attributes:
        stop: stops all members, as the event says.
        waiting: the tools that wait. No member starts meanwhile.
    """

    world: World
    group: ModelGroup
    stop: Callable[[Event], None]
    waiting: int = 0

    def then(self, event: Event, act: Callable[[], None]) -> None:
        """Stop the members, and act when the group has none; give up when it keeps some."""
        self.waiting += 1
        self.stop(event)
        self._try(act, self.world.loop.now + _PATIENCE)

    def _try(self, act: Callable[[], None], give_up: float) -> None:
        offsets = self.group.offsets
        if not offsets.members and not offsets.pending:
            self.waiting -= 1
            act()
        elif self.world.loop.now < give_up:
            self.world.later(_AGAIN, self._try, act, give_up)
        else:
            self.waiting -= 1
            self.world.note("test", "group", "the offsets are not moved: the group has members")


@dataclass(eq=False)
class OffsetsTool:
    """Moves the offset of one partition for each event `reset` and `move`.

    Args:
        models: the sinks. Before a reset by kmr, the rows are deleted that are written again.
        empty: the group, without members.
        context: of the simulation; it has the time that generations are made of.
    """

    world: World
    group: ModelGroup
    models: StrategyModels
    empty: EmptyGroup
    context: Context

    def run(self, event: Event) -> None:
        """Stop the members, and move the offset when the group has none."""
        self.empty.then(event, lambda: self.context.run(self._move, event))

    def _move(self, event: Event) -> None:
        group, by_kmr = self.group, event.what == "reset"
        partition = sorted(group.log)[event.number]
        before = group.offsets.committed.get(partition)
        # Tokens without a generation cannot tell rows that are written again: docs/reprocessing.md.
        may_go_back = by_kmr or group.checks.expected.delivery != "exactly-once"
        to = self._place(partition, event.count) if may_go_back else group.ranges[partition].end
        metadata = ""
        if by_kmr:
            metadata = Generation(
                next_generation([read_metadata(partition, before).generation])
            ).metadata
            self.models.delete(partition, to)
        group.offsets.committed[partition] = CommitOffset(to, metadata)
        group.undone.discard(partition)
        group.resets[partition] += 1
        who = "kmr" if by_kmr else "another tool"
        self.world.note("test", "group", f"{who} moves {partition} to {to}")
        group.checks.moved(
            partition, 0 if before is None else before.offset, to, is_again=may_go_back
        )

    def _place(self, partition: TopicPartition, count: int) -> int:
        """Return the offset after the first `count` records of the log, or its end."""
        present, log = self.group.log[partition].offsets, self.group.ranges[partition]
        index = int(present.searchsorted(log.start)) + count
        return min(int(present[index]), log.end) if index < len(present) else log.end


@dataclass(eq=False)
class CutTool:
    """Chooses a plan for each event `cut`, stops the members, and commits the cut with the code of kmr.

    Args:
        members: of the simulation; a process that commits a cut is one of them.
        context: of the simulation.
    """

    world: World
    group: ModelGroup
    empty: EmptyGroup
    members: list[SimulatedMember]
    context: Context

    def __post_init__(self) -> None:
        self._history = HistoryOffsets(self.world)

    def run(self, event: Event) -> None:
        """Choose the present ends as the cut, unless the group has committed something."""
        if self.group.offsets.committed or self.group.offsets.pending:
            self.world.note("test", "group", "the cut is refused: the group has commits")
            return
        histories = {at: BackfillRange(log.start, log.end) for at, log in self.group.ranges.items()}
        generation = self.context.copy().run(next_generation)
        plan = BackfillPlan("simulated", generation, histories)
        self.empty.then(event, lambda: self._start(plan))

    def _start(self, plan: BackfillPlan) -> None:
        member = SimulatedMember(TOOL, 1)
        member.name = "kmr backfill"
        self.members.append(member)
        member.context = self.context.copy()
        member.context.run(PROCESS.set, member)
        self.world.loop.create_task(self._commit(member, plan), context=member.context)

    async def _commit(self, member: SimulatedMember, plan: BackfillPlan) -> None:
        consumer = member.consumer = GroupConsumer(self.world, self.group, member)
        consumer.commits_cut = True
        with anyio.CancelScope() as member.scope, suppress(anyio.get_cancelled_exc_class()):
            try:
                await commit_as_member(consumer, self._history, plan, 2 * REBALANCE)
            except ConsumerError as refused:
                self.world.note("test", "group", f"the cut is not committed: {refused}")
            else:
                self.world.note("test", "group", "the cut is committed")
        if member.dead:
            self.world.later(_SILENT, self.group.leave, consumer.member_id)
        member.ended.set()


class HistoryOffsets:
    """The commits of the groups that read histories. No member has them yet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._offsets: dict[str, dict[TopicPartition, CommitOffset]] = {}

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, CommitOffset]:
        """Return what a group has committed."""
        await anyio.sleep(self._world.latency())
        return dict(self._offsets.get(group, {}))

    async def reset_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommitOffset], *, before_log: bool
    ) -> None:
        """Commit for a group."""
        del before_log
        await anyio.sleep(self._world.latency())
        self._offsets[group] = dict(offsets)
