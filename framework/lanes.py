"""Lanes: one chain of reduce stages for each partition, for deliveries that need partitions kept apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio

from framework.chains import build_chain
from framework.errors import StrategyError
from framework.promises import AtMostOnce, ExactlyOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectSendStream

    from framework.announcement import Announcement
    from framework.chains import BuildStage
    from framework.commit import Committer
    from framework.ledger import Ledgers
    from framework.promises import Promise
    from framework.record import Cut, Rows, TopicPartition
    from framework.reduce import ReduceStage
    from framework.reducer import Context, Delivery
    from framework.strategy import Strategy

__all__ = ["Lane", "Lanes"]

_CLOSE_TIMEOUT = 5.0


class Lane:
    """The chain of one partition, in one generation of its assignment."""

    def __init__(
        self, inbox: MemoryObjectSendStream[Rows | Cut], stages: Sequence[ReduceStage]
    ) -> None:
        self.inbox = inbox
        self.stages = stages
        self._scope = anyio.CancelScope()

    async def run(self, contexts: Sequence[Context]) -> None:
        """Connect the stages and run them until the inbox is closed and empty, or `cancel`.

        Args:
            contexts: one for each stage.

        Raises:
            KmrError: the first error of a stage.
        """
        try:
            with self._scope:
                for stage, context in zip(self.stages, contexts, strict=True):
                    await stage.open(context)
                async with anyio.create_task_group() as tasks:
                    for stage in self.stages:
                        tasks.start_soon(stage.run)
        finally:
            self.inbox.close()
            with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                for stage in self.stages:
                    await stage.close()

    def cancel(self) -> None:
        """Stop at once: what is collected is dropped, unsettled; a write under way may have succeeded."""
        self._scope.cancel()


class Lanes:
    """The lanes of all assigned partitions.

    An open copy of each reducer stays here: it shows early what cannot work, and its connection may be
    shared by the copies in the lanes.

    Args:
        build: makes one stage.
        queue: rows of so many batches wait in each inbox.
        awaited: told `True` when a lane waits for failed records to be kept, then `False`.
    """

    def __init__(
        self,
        strategy: Strategy,
        build: BuildStage,
        queue: int,
        *,
        ledgers: Ledgers,
        committer: Committer,
        awaited: Callable[[bool], None],
    ) -> None:
        self._strategy = strategy
        self._build = build
        self._queue = queue
        self._ledgers = ledgers
        self._committer = committer
        self._awaited = awaited
        self._opened = [reducer.spawn() for reducer in strategy.reduce]
        self._contexts: list[Context] = []
        self._lanes: dict[TopicPartition, Lane] = {}
        self._writer = uuid4().hex[:12]

    async def open(self, context: Context) -> None:
        """Connect.

        Raises:
            StrategyError: the sink cannot keep the delivery that the strategy demands.
        """
        for number, reducer in enumerate(self._opened, start=1):
            named = replace(context, stage=f"reduce-{number}")
            self._contexts.append(replace(named, opened=reducer))
            await reducer.open(named)
        if self._strategy.delivery == "exactly-once" and self.delivery != "exactly-once":
            name = type(self._opened[-1]).__name__
            raise StrategyError(f"delivery='exactly-once': {name} cannot keep it as it is set up")

    async def close(self) -> None:
        """Disconnect, when all lanes have ended."""
        for reducer in self._opened:
            await reducer.close()

    @property
    def delivery(self) -> Delivery:
        """What is kept: what the strategy asks for, unless its sink turned out not to be able to."""
        promise = self._strategy.promise
        return self._opened[-1].delivery if promise == "exactly-once" else promise

    @property
    def stages(self) -> list[ReduceStage]:
        """The stages of all lanes, in the order of the flow of each."""
        return [stage for lane in self._lanes.values() for stage in lane.stages]

    def start(
        self, tasks: TaskGroup, partition: TopicPartition, replayed: Announcement | None
    ) -> MemoryObjectSendStream[Rows | Cut]:
        """Begin the lane of a partition; returns its inbox."""
        inbox, stages = build_chain(
            self._strategy.reduce,
            self._build,
            self._queue,
            self._promise(partition, replayed),
            partition=partition,
            replaying=replayed is not None,
        )
        lane = self._lanes[partition] = Lane(inbox, stages)
        tasks.start_soon(lane.run, self._contexts)
        return inbox

    def stop(self, partition: TopicPartition) -> None:
        """Drop the lane of a partition and all that is in it, unsettled."""
        if (lane := self._lanes.pop(partition, None)) is not None:
            lane.cancel()

    def _promise(self, partition: TopicPartition, replayed: Announcement | None) -> Promise | None:
        shared = (partition, self._ledgers, self._committer, self._awaited)
        match self.delivery:
            case "exactly-once":
                group = self._contexts[-1].group
                return ExactlyOnce(*shared, group=group, writer=self._writer, replayed=replayed)
            case "at-most-once":
                return AtMostOnce(*shared)
            case "at-least-once":
                return None
