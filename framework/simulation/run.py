"""One simulation: members of a group run a strategy through one schedule, then everything recovers."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from prometheus_client.metrics import MetricWrapperBase

from ..errors import DeadlineExceeded, reason_of
from ..observe.metrics import Metrics
from ..service.identity import ids_from
from ..service.threads import without_threads
from ..settings import FetchSettings, Settings
from ..worker import Worker
from .checks import QUEUE_BATCHES, Checks
from .consumer import SESSION, GroupConsumer
from .group import ModelGroup
from .group_tools import TOOL, CutTool, EmptyGroup, OffsetsTool
from .loop import PROCESS, NothingLeft, SimulationLoop
from .schedule import LENGTH
from .sinks import with_models
from .transactions import Coordinator
from .world import SimulatedMember, World

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from ..record import TopicPartition
    from ..strategy import Strategy
    from .checks import Expectation
    from .log import LogRecords
    from .schedule import Event, Schedule
    from .sinks import StrategyModels
    from .world import Problem, Step


_RECOVERY: Final = 120.0
_LOOK: Final = 0.5
_SHUTDOWN: Final = 20.0
_ENOUGH: Final = 64 * 1024 * 1024
_LEAST: Final = 1024  # the least `inflight_bytes`: one fetch


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """What a simulation has shown.

    Attributes:
        problems: the rules that were broken; empty if all is well.
        steps: what happened, in order.
        seconds: the virtual time that it took.
        diverted: how often each offset of a partition reached `reduce_err`.
        gone: whether retention had removed the offset before it was read.
    """

    problems: tuple[Problem, ...]
    steps: tuple[Step, ...]
    seconds: float
    diverted: Mapping[TopicPartition, np.ndarray]
    gone: Mapping[TopicPartition, np.ndarray]


@cache
def _settings_of(topics: tuple[str, ...], budget: int, revoke: float) -> Settings:
    """Return the settings of all members; checking them anew takes 3 % of a schedule."""
    return Settings(
        topics=topics,
        group="simulated",
        executor="inline",
        executor_workers=1,  # to count the processors takes 1 % of a schedule
        inflight_bytes=budget,
        fetch=FetchSettings(max_partition_bytes=1024),
        queue_batches=QUEUE_BATCHES,
        commit_interval=2.0,
        revoke_deadline=revoke,
        shutdown_deadline=_SHUTDOWN,
    )


class _Simulation:
    def __init__(
        self,
        loop: SimulationLoop,
        strategy: Strategy,
        log: Mapping[TopicPartition, LogRecords],
        schedule: Schedule,
        strategy_models: StrategyModels,
        expected: Expectation,
        metrics: Metrics,
    ) -> None:
        self.loop = loop
        loop.set_exception_handler(self._judge_callback)
        self.schedule = schedule
        self.world = world = World(loop, schedule)
        self.checks = Checks(world, expected, orderly=schedule.is_orderly)
        strategy_models.begin()
        strategy_models.world, strategy_models.checks = world, self.checks
        self.group = ModelGroup(world, log, self.checks)
        wrote = next(iter(self.checks.sinks.values())).wrote
        strategy_models.coordinator = Coordinator(self.group.offsets, wrote, self.group.check)
        world.expel = self._expel
        self._empty = EmptyGroup(world, self.group, self._stop_all)
        self._tool = OffsetsTool(world, self.group, strategy_models, self._empty, copy_context())
        self.strategy = with_models(strategy, strategy_models, schedule.max_rows)
        self.metrics = metrics
        self._topics = tuple(sorted({at.topic for at in log}))
        self.members: list[SimulatedMember] = []
        self._context = copy_context()
        self._cuts = CutTool(world, self.group, self._empty, self.members, self._context)
        self._is_over = False
        self._lives = dict.fromkeys(range(schedule.members), 0)

    async def run(self) -> None:
        for number in self._lives:
            self._start(number)
        for event in self.schedule.events:
            self.world.later(event.at, self._do, event)
        await self._until(LENGTH)
        if not self.world.broken.done():
            await self._recover()
        self._is_over = True
        for member in self.members:
            self.world.kill(member)
        for member in self.members:
            await member.ended.wait()

    async def _until(self, at: float) -> None:
        await asyncio.wait((self.world.broken,), timeout=max(at - self.loop.now, 0.0))

    def _do(self, event: Event) -> None:
        if self._is_over:
            return
        world = self.world
        member = self._present(event.number)
        match event.what:
            case "append":
                self.group.append(event.number, event.count)
            case "trim":
                self.group.trim(event.number, event.count)
            case "deal":
                self.group.deal(event.number)
            case "fault":
                world.arm(event)
            case "jump":
                world.note("test", "test", f"the machine stands still for {event.seconds:g} s")
                self.loop.now += event.seconds
                world.stood_still = self.loop.now
            case "kill" if member is not None:
                world.kill(member)
            case "sleep" if member is not None:
                world.sleep(member, event.seconds)
            case "drain" if member is not None:
                self._drain(member)
            case "reset" | "move":
                self._tool.run(event)
            case "cut":
                self._cuts.run(event)

    def _drain(self, member: SimulatedMember) -> None:
        if member.worker is not None and member.asked_to_end is None:
            self.world.note("test", member.name, "is asked to drain")
            member.asked_to_end = self.loop.now
            member.slept_since_asked = member.asleep
            self.loop.call_soon(member.worker.shutdown, "simulated", context=member.context)

    def _stop_all(self, event: Event) -> None:
        """Stop all members before a tool moves offsets."""
        for member in [m for m in self.members if not m.ended.is_set() and not m.dead]:
            match event.how:
                case "kill before":
                    self.world.kill(member)
                case "sleep before":
                    self.world.sleep(member, SESSION * 1.5)
                case _:
                    self._drain(member)

    def _present(self, number: int) -> SimulatedMember | None:
        return next(
            (m for m in self.members if m.number == number and not m.ended.is_set() and not m.dead),
            None,
        )

    def _settings(self, number: int) -> Settings:
        """Return the settings of a member; each second life of it has half of the budget."""
        budget = self.schedule.budget // (1 if self._lives[number] % 2 else 2)
        if self.strategy.distincts or self.strategy.window is not None:
            budget = 0  # half of a small one could not have the keys, which ends a worker
        budget = max(budget, _LEAST) if budget else _ENOUGH
        return _settings_of(self._topics, budget, self.schedule.revoke)

    def _start(self, number: int) -> None:
        self._lives[number] += 1
        member = SimulatedMember(number, self._lives[number])
        self.members.append(member)
        self.world.note("test", member.name, "starts")
        member.context = self._context.copy()
        member.context.run(PROCESS.set, member)
        self.loop.create_task(self._live(member), context=member.context)

    async def _live(self, member: SimulatedMember) -> None:
        consumer = member.consumer = GroupConsumer(self.world, self.group, member)
        failure: BaseException | None = None
        with anyio.CancelScope() as member.scope:
            if member.dead:
                member.scope.cancel()
            try:
                worker = member.worker = Worker(
                    self.strategy,
                    self._settings(member.number),
                    metrics=self.metrics,
                    consumer=consumer,
                )
                await worker.run()
            except Exception as error:  # noqa: BLE001  judged below
                failure = error
        with suppress(Exception):
            await consumer.stop()
        if not member.dead:
            self._judge(member, failure)
        else:
            self.world.later(10.0, self.group.leave, consumer.member_id)
        member.ended.set()
        if not self._is_over:
            self.world.later(self._restart_after(member), self._restart, member)

    def _judge_callback(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take an error of a member's callback for a broken rule: an event loop would only log it."""
        match context:
            case {
                "process": SimulatedMember(dead=False) as member,
                "exception": error,
                "message": message,
            }:
                self.world.problem("a callback failed", f"{member.name}: {message}: {error!r}")
            case {"process": _}:
                pass
            case _:
                loop.default_exception_handler(context)

    def _judge(self, member: SimulatedMember, failure: BaseException | None) -> None:
        """Check how a member ended that was not killed."""
        asked, now, world = member.asked_to_end, self.loop.now, self.world
        world.note(member.name, member.name, f"ends{'' if failure is None else f': {failure}'}")
        if asked is not None:
            took = now - max(asked, world.stood_still)
            if took > _SHUTDOWN + 1.0 and not member.slept_since_asked:
                world.problem(
                    "a drain is not over at its deadline",
                    f"{member.name} took {took:.1f} s, shutdown_deadline is {_SHUTDOWN:g} s",
                )
            if isinstance(failure, DeadlineExceeded):
                self.checks.waited(member, asked, what="a drain")
        stops = any(reducer.on_error == "stop" for reducer in self.strategy.all_stages.values())
        expected = isinstance(failure, DeadlineExceeded) and asked is not None
        if failure is not None and not expected and not stops:
            world.problem("a worker failed", f"{member.name}: {reason_of(failure)}")
        elif failure is None and asked is None:
            world.problem("a worker ended though it was not asked to", member.name)

    def _restart_after(self, member: SimulatedMember) -> float:
        after = [
            e.seconds
            for e in self.schedule.events
            if e.what in ("kill", "drain") and e.number == member.number
        ]
        return min(after, default=1.0)

    def _restart(self, member: SimulatedMember) -> None:
        if self._empty.waiting and not self._is_over:
            self.world.later(_LOOK, self._restart, member)
        elif not self._is_over:
            self._start(member.number)

    def _expel(self, member: SimulatedMember) -> None:
        if member.consumer is not None:
            self.group.leave(member.consumer.member_id)

    async def _recover(self) -> None:
        """Let nothing fail any more, and wait until everything is committed."""
        world = self.world
        world.disarm()
        world.note("test", "test", "no more faults: everything has to recover")
        give_up = self.loop.now + _RECOVERY
        while not self._is_done():
            if self.loop.now >= give_up:
                world.problem("something is stuck", self._stuck())
                return
            await self._until(self.loop.now + _LOOK)
            if world.broken.done():
                return
        self.checks.final({at: log.end for at, log in self.group.ranges.items()})
        for member, _ in self._working():
            self.checks.stages(member)

    def _is_done(self) -> bool:
        """Return whether all is done, and no bytes are in flight but those of open windows."""
        return (
            not self._empty.waiting
            and all(member.ended.is_set() for member in self.members if member.number == TOOL)
            and not self._behind()
            and not any(
                member.asleep
                or worker.pipeline.intake.budget.used > worker.pipeline.ledgers.held_bytes
                for member, worker in self._working()
            )
        )

    def _working(self) -> list[tuple[SimulatedMember, Worker]]:
        return [
            (m, m.worker) for m in self.members if not m.ended.is_set() and m.worker is not None
        ]

    def _behind(self) -> list[TopicPartition]:
        """Return the partitions with records that are not committed: in the log, or read from it."""
        return [partition for partition in self.group.ranges if self._is_behind(partition)]

    def _is_behind(self, partition: TopicPartition) -> bool:
        group = self.group
        entry = group.offsets.committed.get(partition)
        committed = 0 if entry is None else entry.offset
        log = group.ranges[partition]
        found = (worker.pipeline.ledgers.get(partition) for _, worker in self._working())
        ledgers = [ledger for ledger in found if ledger is not None]
        if self.checks.rests(partition, log.end, committed):
            # A late record above it is a dead letter of who reads it again.
            return committed < log.end and all((e.position or 0) < log.end for e in ledgers)
        if partition in group.undone and any(
            self.checks.rests(partition, log.end, e.watermark or 0) for e in ledgers
        ):
            return False
        if log.has_records_from(committed):
            return True
        for ledger in ledgers:
            if ledger.has_unsettled or (ledger.watermark or 0) > committed:
                return True
        self.checks.skips(partition, committed, log.start)
        return False

    def _stuck(self) -> str:
        behind = [
            f"{at} is not committed up to {self.group.ranges[at].end}" for at in self._behind()
        ]
        busy = [
            f"{member.name}: {stage.name} is {stage.activity}"
            for member, worker in self._working()
            for stage in worker.status().stages
            if stage.activity != "idle"
        ]
        used = [
            f"{member.name}: {worker.pipeline.intake.budget.used} bytes in flight"
            for member, worker in self._working()
            if worker.pipeline.intake.budget.used
        ]
        return "; ".join((*behind, *busy, *used))


def run_schedule(
    strategy: Strategy,
    log: Mapping[TopicPartition, LogRecords],
    schedule: Schedule,
    strategy_models: StrategyModels,
    expected: Expectation,
    metrics: Metrics,
) -> SimulationOutcome:
    """Run one schedule, in this thread; no event loop may run in it.

    Args:
        log: the records of each partition.
        strategy_models: where the models of the strategy's sinks find their surroundings.
        expected: what shall become of the records.
        metrics: recorded in, and never read: making them anew takes longer than a simulation.
    """
    loop = SimulationLoop()
    chance = random.getstate()
    random.seed(schedule.seed)  # decides the backoff of retries
    try:
        with without_threads(), ids_from(random.Random(schedule.seed)):  # noqa: S311  repeatable
            simulation = _Simulation(
                loop, strategy, log, schedule, strategy_models, expected, metrics
            )

            try:
                loop.run_until_complete(simulation.run())
            except NothingLeft:
                simulation.world.problem(
                    "something is stuck", "nothing is left that could wake a task"
                )
        world, checks = simulation.world, simulation.checks
        return SimulationOutcome(
            tuple(world.problems), tuple(world.trace), loop.now, checks.diverted, checks.gone
        )
    finally:
        random.setstate(chance)
        strategy_models.end()
        loop.close()


class _UnreadCollector:
    """Any of Prometheus' collectors; it keeps nothing."""

    def labels(self, *_values: object) -> Self:
        return self

    def remove(self, *_values: object) -> None:
        pass

    def clear(self) -> None:
        pass

    def inc(self, amount: float = 1) -> None:
        if amount < 0:
            raise ValueError(f"a counter cannot fall (by {-amount})")

    def set(self, _value: float) -> None:
        pass

    def observe(self, _value: float) -> None:
        pass

    def info(self, _values: dict[str, str]) -> None:
        pass

    def set_function(self, _function: Any) -> None:
        pass


class UnreadMetrics(Metrics):
    """A worker's metrics without their series, which would take 5 % of a schedule; failures are counted."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in list(vars(self).items()):
            if isinstance(value, MetricWrapperBase):
                setattr(self, name, _UnreadCollector())
