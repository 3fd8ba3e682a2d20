"""Lanes: the reduce stages of a strategy in a chain. All partitions share one lane, or each has its own.

With at-least-once delivery there is one shared lane, because its flushes are larger; so it is where a sink
commits offsets with its rows, in transactions. Exactly once by announcements and at most once write the
ranges of each partition in order, so each partition has a lane.
"""

from __future__ import annotations

import copy
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

import anyio

from .commit import TransactionalCommitter
from .delivery.announcement import Closed, WindowAnnouncement
from .errors import StrategyError, no_escape
from .guarantees import (
    AtLeastOnce,
    AtMostOnce,
    ExactlyOnce,
    Transactional,
    WindowsAtLeastOnce,
    WindowsExactlyOnce,
)
from .memory.window import Window
from .parts import ReducePorts
from .record import ReplayEnd, Rows
from .reduce import ReduceStage
from .reducers.sink import capabilities_of
from .reducers.turns import Turns
from .service.deadline import shield
from .service.identity import new_id
from .window_stage import WindowStage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectSendStream

    from .commit import Committer
    from .delivery.announcement import Announcement
    from .delivery.failures import ErrorPort
    from .guarantees import Guarantee
    from .parts import SharedParts
    from .record import TopicPartition
    from .reducers.reducer import Context
    from .reducers.sink import Delivery
    from .strategy import Strategy

_CLOSE_TIMEOUT: Final = 5.0


class Lane:
    """A chain of reduce stages, of one partition or of all.

    Args:
        queue: each inbox holds the rows of so many batches.
        errors: the stages get copies of it.
        partition: the lane's partition; None if all partitions share it.
        guarantee: of the last stage.
        replayed: the range that the lane begins with, which was announced.
        closed: which windows are closed at its beginning.
        turns: the flushes by age of the last stage wait for one.

    Attributes:
        inbox: the inbox of the first stage.
        stages: the stages in the order of the flow.
    """

    def __init__(
        self,
        strategy: Strategy,
        shared: SharedParts,
        errors: ErrorPort,
        queue: int,
        guarantee: Guarantee,
        *,
        partition: TopicPartition | None = None,
        replayed: Announcement | None = None,
        closed: Closed | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.inbox, receive = anyio.create_memory_object_stream[Rows | ReplayEnd](queue)
        self.stages: list[ReduceStage | WindowStage] = []
        last = list(strategy.stages)[-1]
        before = AtLeastOnce(shared.ledgers, shared.gate)
        for name, reducer in strategy.stages.items():
            out, following = None, receive
            if name != last:
                out, following = anyio.create_memory_object_stream[Rows | ReplayEnd](queue)
            ports = ReducePorts(receive, out, errors.clone())
            receive = following
            if isinstance(reducer, Window) and partition is not None:
                begin = closed or Closed(definition=reducer.definition)
                ends = replayed if isinstance(replayed, WindowAnnouncement) else None
                self.stages.append(
                    WindowStage(name, reducer, ports, shared, partition, begin, replayed=ends)
                )
                continue
            self.stages.append(
                ReduceStage(
                    name,
                    reducer,
                    ports,
                    shared,
                    guarantee if name == last else before,
                    partition=partition,
                    replaying=replayed is not None,
                    turns=turns if name == last else None,
                )
            )
        for stage, after in pairwise(self.stages):
            if isinstance(stage, WindowStage):
                stage.expedite = partial(_await, after)
        self._scope = anyio.CancelScope()

    async def open(self, contexts: Sequence[Context]) -> None:
        """Connect the stages. Raises StrategyError if the strategy does not fit its sinks."""
        for stage, context in zip(self.stages, contexts, strict=True):
            await stage.open(context)

    async def run(self, contexts: Sequence[Context]) -> None:
        """Connect the stages, run them until the inbox is closed and empty or `cancel`, disconnect them.

        Raises:
            KmrError: the first error of a stage.
        """
        try:
            with self._scope, no_escape():
                await self.open(contexts)
                async with anyio.create_task_group() as tasks:
                    for stage in self.stages:
                        tasks.start_soon(stage.run)
        finally:
            with shield(_CLOSE_TIMEOUT):
                await self.close()

    def cancel(self) -> None:
        """Stop at once. Collected rows are dropped, unsettled; a write under way may have succeeded."""
        self._scope.cancel()

    async def close(self) -> None:
        """Disconnect the stages, also after a failure."""
        self.inbox.close()
        async with AsyncExitStack() as stack:
            for stage in self.stages:
                stack.push_async_callback(stage.close)


def _await(stage: ReduceStage | WindowStage, on: bool) -> None:
    stage.trigger.awaited(on=on)


def _require_same(window: Window, partition: TopicPartition, closed: Closed) -> None:
    """Raise StrategyError if other windows were open before."""
    if closed.definition != window.definition:
        raise StrategyError(
            f"{partition}: the group has open windows of {closed.definition!r}, and the strategy has windows "
            f"of {window.definition!r}: rows of both would overlap. Go back to those, use another group, or "
            "begin anew at an offset: kmr offsets reset"
        )


class Lanes:
    """The lanes of a worker: one that all partitions share, or one for each assigned partition.

    Where each partition has a lane, an open copy of each reducer stays here: it reports early if the
    strategy does not fit, and the copies in the lanes may share its connection.

    Args:
        queue: each inbox holds the rows of so many batches.
        awaiting_errors: called with True while a lane waits for failed records to be settled, then False.
    """

    def __init__(
        self,
        strategy: Strategy,
        shared: SharedParts,
        errors: ErrorPort,
        queue: int,
        *,
        committer: Committer,
        awaiting_errors: Callable[[bool], None],
    ) -> None:
        self._strategy = strategy
        self._build = partial(Lane, strategy, shared, errors, queue)
        self._ledgers = shared.ledgers
        self._gate = shared.gate
        self._committer = committer
        self._awaiting_errors = awaiting_errors
        self._requested = strategy.requested_delivery
        self._shared: Lane | None = None
        if isinstance(committer, TransactionalCommitter):
            self._shared = self._build(
                Transactional(self._ledgers, self._gate, awaiting_errors, committer)
            )
        elif self._requested == "at-least-once" and strategy.window is None:
            self._shared = self._build(AtLeastOnce(self._ledgers, self._gate))
        self._opened = [] if self._shared else [copy.deepcopy(each) for each in strategy.reducers]
        self._contexts: list[Context] = []
        self._lanes: dict[TopicPartition, Lane] = {}
        self._writer = new_id()[:12]
        self._late = shared.metrics.flush_late.set
        self._turns: Turns | None = None

    async def open(self, context: Context) -> None:
        """Connect the reducers. Raises StrategyError if the strategy does not fit its sinks."""
        self._contexts = [replace(context, stage=stage) for stage in self._strategy.stages]
        if self._shared is not None:
            await self._shared.open(self._contexts)
            return
        for number, reducer in enumerate(self._opened):
            await reducer.open(self._contexts[number])
            self._contexts[number] = self._contexts[number].with_sinks(opened=reducer)
        if self._strategy.delivery == "exactly-once" and self.delivery != "exactly-once":
            name = type(self._opened[-1]).__name__
            raise StrategyError(
                f"delivery='exactly-once': {name} cannot provide it as it is configured"
            )
        last = capabilities_of(self._opened[-1])
        joins = self.replays and self._strategy.window is None
        joined_rows = last.joins_rows if joins else 0
        self._turns = Turns(last.flushes_per_second, self._late, joins=joined_rows)

    @property
    def delivery(self) -> Delivery:
        """The requested delivery, unless the sink turned out to be unable to provide it."""
        if self._requested == "exactly-once" and self._opened:
            return capabilities_of(self._opened[-1]).delivery
        return self._requested

    @property
    def replays(self) -> bool:
        """Whether announced ranges are written again as they were announced."""
        return self.delivery == "exactly-once" and self._shared is None

    @property
    def mix_partitions(self) -> bool:
        """Whether the output of a reducer may be of several partitions, so that they are lost together."""
        return self._shared is not None and len(self._shared.stages) > 1

    @property
    def stages(self) -> list[ReduceStage | WindowStage]:
        """The stages of all lanes in the order of the flow; the copies of one by partition."""
        if self._shared is not None:
            return self._shared.stages
        copies = zip(*(lane.stages for _, lane in sorted(self._lanes.items())), strict=True)
        return list(chain.from_iterable(copies))

    def run(self, tasks: TaskGroup) -> None:
        """Start the stages of a shared lane; a lane of its own starts with its partition."""
        if self._shared is not None:
            for stage in self._shared.stages:
                tasks.start_soon(stage.run)

    def start(
        self, tasks: TaskGroup, partition: TopicPartition, replayed: Announcement | None
    ) -> MemoryObjectSendStream[Rows | ReplayEnd]:
        """Begin a generation of a partition; return the map's own end of the lane's inbox."""
        if self._shared is not None:
            return self._shared.inbox.clone()
        closed, window = self._committer.closed(partition), self._strategy.window
        if closed is not None and window is not None:
            _require_same(window, partition, closed)
        lane = self._lanes[partition] = self._build(
            self._guarantee(partition, replayed),
            partition=partition,
            replayed=replayed,
            closed=closed,
            turns=self._turns,
        )
        tasks.start_soon(lane.run, self._contexts)
        return lane.inbox

    def first_stage(self, partition: TopicPartition) -> ReduceStage | WindowStage:
        """Return the stage that collects the rows of a partition's map."""
        return (self._shared or self._lanes[partition]).stages[0]

    def _guarantee(self, partition: TopicPartition, replayed: Announcement | None) -> Guarantee:
        parts = (self._ledgers, self._gate)
        windows = self._strategy.window is not None
        if self.delivery == "at-least-once" and windows:
            return WindowsAtLeastOnce(*parts, self._awaiting_errors, self._committer, partition)
        if self.delivery == "at-least-once":
            return AtLeastOnce(*parts)
        if self.delivery == "at-most-once":
            return AtMostOnce(*parts, self._awaiting_errors, self._committer)
        group = self._contexts[-1].group
        return (WindowsExactlyOnce if windows else ExactlyOnce)(
            *parts,
            self._awaiting_errors,
            self._committer,
            partition,
            group,
            self._writer,
            replayed,
        )

    def stop(self, partition: TopicPartition) -> None:
        """Drop a partition. Its rows in a lane of its own are dropped; in the shared lane they are stale."""
        if (lane := self._lanes.pop(partition, None)) is not None:
            lane.cancel()

    def finish(self) -> None:
        """Let the lanes end when all maps have ended: each map closes its own end of an inbox."""
        if self._shared is not None:
            self._shared.inbox.close()

    async def close(self) -> None:
        """Disconnect the reducers, also after a failure; partitions' lanes have ended."""
        async with AsyncExitStack() as stack:
            if self._shared is not None:
                stack.push_async_callback(self._shared.close)
            for reducer in self._opened:
                stack.push_async_callback(reducer.close)
