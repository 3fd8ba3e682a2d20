"""Lanes: the reduce stages of a strategy in a chain. All partitions share one lane, or each has its own.

With at-least-once delivery there is one shared lane, because its flushes are larger; so it is where a sink
commits offsets with its rows, in transactions. Exactly once by announcements and at most once write the
ranges of each partition in order, so each partition has a lane.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import anyio

from .delivery.guarantees import AtMostOnce, ExactlyOnce, Transactional
from .errors import StrategyError
from .record import ReplayEnd, Rows
from .reduce import ReduceStage
from .service.deadline import shield
from .service.identity import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectSendStream

    from .commit import Committer
    from .delivery.announcement import Announcement
    from .delivery.failures import ErrorPort
    from .delivery.guarantees import DeliveryGuarantee
    from .kafka.transactions import Transactions
    from .record import TopicPartition
    from .reduce import SharedParts
    from .reducers.reducer import Context, Delivery
    from .strategy import Strategy

__all__ = ["Lane", "Lanes"]

_CLOSE_TIMEOUT: Final = 5.0


class Lane:
    """A chain of reduce stages, of one partition or of all.

    Args:
        queue: each inbox holds the rows of so many batches.
        errors: the stages get copies of it.
        partition: the lane's partition; None if all partitions share it.
        guarantee: called by the last stage before it writes.
        replaying: the lane begins with an announced range.

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
        *,
        partition: TopicPartition | None = None,
        guarantee: DeliveryGuarantee | None = None,
        replaying: bool = False,
    ) -> None:
        self.inbox, receive = anyio.create_memory_object_stream[Rows | ReplayEnd](queue)
        self.stages: list[ReduceStage] = []
        last = list(strategy.stages)[-1]
        for name, reducer in strategy.stages.items():
            out, following = None, receive
            if name != last:
                out, following = anyio.create_memory_object_stream[Rows | ReplayEnd](queue)
            self.stages.append(
                ReduceStage(
                    name,
                    reducer,
                    receive,
                    shared,
                    out=out,
                    errors=errors.clone(),
                    partition=partition,
                    guarantee=guarantee if name == last else None,
                    replaying=replaying,
                )
            )
            receive = following
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
            with self._scope:
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
        self._committer = committer
        self._awaiting_errors = awaiting_errors
        self._requested = strategy.requested_delivery
        committer.orders_commits = (
            self._requested != "at-least-once" and not strategy.is_transactional
        )
        committer.trusts_attempts = self._requested != "at-most-once"
        self._transactions: Transactions | None = None
        self._transactional = strategy.is_transactional
        self._shared: Lane | None = None
        if self._transactional:
            guarantee = Transactional(self._ledgers, committer, awaiting_errors)
            self._shared = self._build(guarantee=guarantee)
        elif self._requested == "at-least-once":
            self._shared = self._build()
        self._opened = [] if self._shared else [reducer.spawn() for reducer in strategy.reducers]
        self._contexts: list[Context] = []
        self._lanes: dict[TopicPartition, Lane] = {}
        self._writer = new_id()[:12]

    async def open(self, context: Context) -> None:
        """Connect the reducers. Raises StrategyError if the strategy does not fit its sinks."""
        self._contexts = [replace(context, stage=stage) for stage in self._strategy.stages]
        if self._shared is not None:
            if self._transactional:
                self._prepare_transactions()
            await self._shared.open(self._contexts)
            return
        for number, reducer in enumerate(self._opened):
            await reducer.open(self._contexts[number])
            self._contexts[number] = replace(self._contexts[number], opened=reducer)
        if self._strategy.delivery == "exactly-once" and self.delivery != "exactly-once":
            name = type(self._opened[-1]).__name__
            raise StrategyError(
                f"delivery='exactly-once': {name} cannot provide it as it is configured"
            )

    async def take_over(self) -> None:
        """End the transactions of an earlier process of this member. Raises as `Transactions.open`."""
        if self._transactions is not None:
            await self._transactions.open()

    def _prepare_transactions(self) -> None:
        last = self._contexts[-1]
        self._transactions = self._strategy.reducers[-1].transactions(last)
        self._committer.use(self._transactions)
        self._contexts[-1] = replace(last, transactions=self._transactions)

    @property
    def delivery(self) -> Delivery:
        """The requested delivery, unless the sink turned out to be unable to provide it."""
        announced = self._requested == "exactly-once" and not self._transactional
        return self._opened[-1].delivery if announced else self._requested

    @property
    def replays(self) -> bool:
        """Whether announced ranges are written again as they were announced."""
        return self.delivery == "exactly-once" and not self._transactional

    @property
    def mix_partitions(self) -> bool:
        """Whether the output of a reducer may be of several partitions, so that they are lost together."""
        return self._shared is not None and len(self._shared.stages) > 1

    @property
    def stages(self) -> list[ReduceStage]:
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
        lane = self._lanes[partition] = self._build(
            partition=partition,
            guarantee=self._guarantee(partition, replayed),
            replaying=replayed is not None,
        )
        tasks.start_soon(lane.run, self._contexts)
        return lane.inbox

    def _guarantee(
        self, partition: TopicPartition, replayed: Announcement | None
    ) -> DeliveryGuarantee | None:
        parts = (self._ledgers, self._committer, self._awaiting_errors, partition)
        match self.delivery:
            case "exactly-once":
                return ExactlyOnce(*parts, self._contexts[-1].group, self._writer, replayed)
            case "at-most-once":
                return AtMostOnce(*parts)
            case "at-least-once":
                return None

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
            if self._transactions is not None:
                stack.push_async_callback(self._transactions.close)
            if self._shared is not None:
                stack.push_async_callback(self._shared.close)
            for reducer in self._opened:
                stack.push_async_callback(reducer.close)
