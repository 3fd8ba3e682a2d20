"""`kmr backfill` commits its cut, while members of the group may come back late."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from ..delivery.announcement import BackfillRange, next_generation
from ..errors import ConsumerError
from ..history.cut import commit_as_member
from ..history.plan import BackfillPlan
from .consumer import GroupConsumer
from .group import REBALANCE
from .loop import PROCESS
from .world import SimulatedMember

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Context

    from ..kafka.consumer import CommitOffset
    from ..record import TopicPartition
    from .empty_group import EmptyGroup
    from .group import ModelGroup
    from .schedule import Event
    from .world import World

TOOL: Final = -1
"""The number of the member that commits a cut."""

_SILENT: Final = 10.0  # seconds after which the group notices that it was killed


class CutTool:
    """Chooses a plan for each event `cut`, stops the members, and commits the cut with the code of kmr.

    Args:
        members: of the simulation; a process that commits a cut is one of them.
        context: of the simulation.
    """

    def __init__(
        self,
        world: World,
        group: ModelGroup,
        empty: EmptyGroup,
        members: list[SimulatedMember],
        context: Context,
    ) -> None:
        self._world = world
        self._group = group
        self._empty = empty
        self._members = members
        self._context = context
        self._history = HistoryOffsets(world)

    def run(self, event: Event) -> None:
        """Choose the present ends as the cut, unless the group has committed something."""
        if self._group.offsets.committed or self._group.offsets.pending:
            self._world.note("test", "group", "the cut is refused: the group has commits")
            return
        histories = {
            at: BackfillRange(log.start, log.end) for at, log in self._group.ranges.items()
        }
        generation = self._context.copy().run(next_generation)
        plan = BackfillPlan("simulated", generation, histories)
        self._empty.then(event, lambda: self._start(plan))

    def _start(self, plan: BackfillPlan) -> None:
        member = SimulatedMember(TOOL, 1)
        member.name = "kmr backfill"
        self._members.append(member)
        member.context = self._context.copy()
        member.context.run(PROCESS.set, member)
        self._world.loop.create_task(self._commit(member, plan), context=member.context)

    async def _commit(self, member: SimulatedMember, plan: BackfillPlan) -> None:
        consumer = member.consumer = GroupConsumer(self._world, self._group, member)
        consumer.commits_cut = True
        with anyio.CancelScope() as member.scope, suppress(anyio.get_cancelled_exc_class()):
            try:
                await commit_as_member(consumer, self._history, plan, 2 * REBALANCE)
            except ConsumerError as refused:
                self._world.note("test", "group", f"the cut is not committed: {refused}")
            else:
                self._world.note("test", "group", "the cut is committed")
        if member.dead:
            self._world.later(_SILENT, self._group.leave, consumer.member_id)
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
