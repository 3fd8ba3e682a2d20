"""The course of a storm: processes start, records flow, faults strike, everything is counted."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code
from anyio import to_thread

from ..config.schema import show_count
from ..errors import KmrError, SettingsError, StrategyError
from ..memory.window_model import with_offsets
from ..record import TopicPartition
from ..sinks.clickhouse.client import URL_VARIABLE
from .course import Load, ScheduleRun
from .delivered import needs_clickhouse, read_batches
from .faults import PROCESS_FAULTS, Strike, plan
from .hurried import STRATEGY_VARIABLE
from .records import map_all
from .services import START_TIMEOUT, ProcessRecord, RunningServices, ServiceFailed, free_port
from .site import GroupsView, SystemUnderTest, WorkerUnderTest
from .verdict import Verdict, expect, judge
from .windows import errors_of, records_of, require_countable, sink_of, wrong_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from ..record import Batch
    from ..reducers.reducer import Reducer
    from ..strategy import Strategy
    from .delivered import Counts, Delivered
    from .faults import StormFault
    from .records import Values

GROUP: Final = "chaos"
_PASSED_ON: Final = (URL_VARIABLE, "KMR_POSTGRES_URL")
_SESSION_TIMEOUT: Final = "3"
_WORKER_FLAGS: Final = (
    *("--session-timeout", _SESSION_TIMEOUT, "--heartbeat-interval", "0.3"),
    *("--commit-interval", "0.3", "--isolation-level", "read_committed"),
)


@dataclass(frozen=True)
class Storm:
    """What is done to a strategy.

    Attributes:
        strategy: `module:attribute`.
        values: the records, by topic.
        faults: how many strike.
        seconds: instead, for how long they do; 0: `faults` counts.
        rate: records per second.
        between: records between two faults.
        patience: seconds that the storm waits for an effect or a recovery before it gives up.
    """

    strategy: str
    values: Mapping[str, Values]
    seed: int = 1
    workers: int = 3
    partitions: int = 6
    faults: int = 8
    seconds: float = 0.0
    rate: float = 500.0
    between: int = 200
    patience: float = 120.0

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        """The partitions of all topics."""
        return [TopicPartition(topic, at) for topic in self.values for at in range(self.partitions)]


@dataclass(frozen=True)
class StormOutcome:
    """How a storm ended.

    Attributes:
        given_up: what the storm waited for in vain; empty if nothing.
        died: processes that ended without a signal of ours.
        struck: how many faults did.
    """

    verdicts: Mapping[str, Verdict]
    given_up: str
    died: tuple[str, ...]
    struck: int
    killed: int
    sent: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every guarantee was kept."""
        offences = any(verdict.offences for verdict in self.verdicts.values())
        return not offences and not self.given_up and not self.died


def possible_faults(storm: Storm, strategy: Strategy) -> dict[str, StormFault[Any]]:
    """Return the faults that the storm's processes can have."""
    there = {"broker"}
    if needs_clickhouse(_sinks(strategy)):
        there.add("clickhouse")
    if storm.workers > 1:
        there.add("peers")
    return {fault.name: fault for fault in PROCESS_FAULTS if fault.needs <= there}


def _sinks(strategy: Strategy) -> list[Reducer | None]:
    return [*strategy.writers.values(), strategy.reduce_err]


def carry_out(
    storm: Storm, strategy: Strategy, directory: Path, say: Callable[[str], None]
) -> StormOutcome:
    """Run a storm from its first process to its verdict. Call it where no event loop runs.

    Args:
        directory: takes data and logs; new or empty.

    Raises:
        StrategyError: nothing can be read where the strategy writes.
        SettingsError: there are rows of these topics already.
        ServiceFailed: the processes do not come up.
    """
    began = time.monotonic()
    require_countable(strategy)
    strategy = with_offsets(strategy, keyed=False)
    ended = anyio.run(_carry_out, storm, strategy, directory, say)
    window, delivery, diverted = strategy.window, strategy.requested_delivery, ended.errors
    if diverted is not None and window is not None:
        diverted = diverted + records_of(ended.letters, next(iter(storm.values)))
    verdicts = {
        branch: judge(expected, ended.found[branch], diverted, delivery, ended.acknowledged)
        for branch, expected in expect(strategy, ended.batches).items()
    }
    if window is not None:
        wrong = wrong_windows(
            *(window, map_all(strategy, ended.batches), [*ended.windows, *ended.letters]),
            ended.errors or Counter(),
            once=delivery != "at-least-once",
        )
        verdicts = {at: each.with_offences(wrong) for at, each in verdicts.items()}
    killed = sum(line["ending"] == "killed" for line in ended.record.processes)
    return StormOutcome(
        verdicts,
        ended.given_up,
        tuple(ended.record.died()),
        ended.struck,
        killed,
        ended.sent,
        time.monotonic() - began,
    )


@dataclass(frozen=True)
class _Ended:
    """What there is to count when all workers have stopped."""

    record: ProcessRecord
    batches: list[Batch]
    found: dict[str, Counts]
    errors: Counts | None
    acknowledged: dict[TopicPartition, list[int]]
    given_up: str
    struck: int
    sent: int
    windows: Sequence[Mapping[str, Any]] = ()
    letters: Sequence[Mapping[str, Any]] = ()


async def _carry_out(
    storm: Storm, strategy: Strategy, directory: Path, say: Callable[[str], None]
) -> _Ended:
    record, faults = ProcessRecord(say), possible_faults(storm, strategy)
    async with _StrategyUnderTest(storm, strategy, directory, record) as site:
        workers = "1 worker shares" if storm.workers == 1 else f"{storm.workers} workers share"
        say(f"{workers} {show_count(storm.partitions, 'partition')}")
        course = ScheduleRun(
            *(site, site.load, faults.__getitem__, record, say),
            between=storm.between,
            patience=storm.patience,
            lasts=storm.seconds or math.inf,
        )
        given_up = ""
        try:
            await course.run(await site.start_load(), _schedule(storm, list(faults)))
        except (TimeoutError, ServiceFailed) as error:
            given_up = str(error)
            say(f"given up: {given_up}")
            site.load.stop()
        site.stop_supervising()
        await site.stop_workers()
        say("all workers have drained and ended; counting")
        try:
            batches = await read_batches(site.bootstrap_servers, storm.values)
            found = {
                branch: await sink.count(site.bootstrap_servers)
                for branch, sink in site.sinks.items()
            }
            errors = await site.errors.count(site.bootstrap_servers) if site.errors else None
        except (KmrError, OSError) as error:
            raise ServiceFailed(f"what was written cannot be read: {error}") from error
    acknowledged = {
        TopicPartition(*at): sorted(values) for at, values in site.load.acknowledged.items()
    }
    rows = [row for sink in site.sinks.values() for row in sink.rows]
    letters = [] if site.errors is None else site.errors.rows
    return _Ended(
        *(record, batches, found, errors, acknowledged, given_up, course.struck, site.load.sent),
        *(rows, letters),
    )


def _schedule(storm: Storm, names: Sequence[str]) -> Sequence[Strike]:
    """As many faults as wanted; each kind strikes before one strikes again."""
    wanted = 100_000 if storm.seconds else storm.faults
    return plan(storm.seed, names, -(-wanted // len(names)))[:wanted]


class _StrategyUnderTest(SystemUnderTest):
    """The processes around one strategy; an async context manager."""

    load: Load

    def __init__(
        self, storm: Storm, strategy: Strategy, directory: Path, record: ProcessRecord
    ) -> None:
        partitions = storm.topic_partitions
        self.sinks: dict[str, Delivered] = {}
        for branch, chain in strategy.chains.items():
            sink = sink_of(strategy, chain[-1], partitions)
            if sink is None:
                raise StrategyError(
                    f"{type(chain[-1]).__name__}: kmr chaos cannot read what it has written, so it "
                    "cannot count; it reads ClickHouse, PostgreSQL, Parquet files and topics. kmr simulate "
                    "tries any strategy"
                )
            self.sinks[branch] = sink
        self.errors = errors_of(strategy, partitions)
        self.bootstrap_servers = f"127.0.0.1:{free_port()}"
        self.view = GroupsView(self.bootstrap_servers, [GROUP], record)
        self.load = Load(self.bootstrap_servers, storm.values, storm.partitions, storm.rate, record)
        self._storm = storm
        self._strategy = strategy
        self._clickhouse_url = (
            f"http://127.0.0.1:{free_port()}" if needs_clickhouse(_sinks(strategy)) else ""
        )
        self._directory = directory
        self._services = RunningServices(directory / "logs", record)
        self._stack = AsyncExitStack()
        self._supervision = anyio.CancelScope()
        self.workers = [self._declare(number) for number in range(1, storm.workers + 1)]

    @property
    def acknowledged(self) -> Mapping[tuple[str, int], int]:
        return {at: max(values) + 1 for at, values in self.load.acknowledged.items() if values}

    async def __aenter__(self) -> Self:
        try:
            await self._set_up()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def stop_supervising(self) -> None:
        """Start no worker again that ends."""
        self._supervision.cancel()

    async def _set_up(self) -> None:
        stack, services = self._stack, self._services
        await stack.enter_async_context(services)
        host, _, port = self.bootstrap_servers.rpartition(":")
        self.broker = services.add(
            "broker",
            lambda: [
                *("broker", "serve", "--data", str(self._directory / "broker"), "--host", host),
                *("--port", port, "--no-auto-create-topics"),
                *("--group-min-session-timeout", _SESSION_TIMEOUT),
            ],
            ready_line="listening on",
        )
        if self._clickhouse_url:
            data, at = str(self._directory / "clickhouse"), self._clickhouse_url.rpartition(":")[2]
            self.clickhouse = services.add(
                "clickhouse",
                lambda: ["clickhouse", "serve", "--data", data, "--port", at],
                ready_line="answers on",
            )
            await self.clickhouse.start()
            os.environ[URL_VARIABLE] = self._clickhouse_url  # for what counts, too
            stack.callback(os.environ.pop, URL_VARIABLE)
        await self.broker.start()
        await self._create_topics()
        await self._require_no_rows()
        self._tasks: TaskGroup = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(self._tasks.cancel_scope.cancel)
        self._tasks.start_soon(self.view.watch)
        for worker in self.workers:
            await worker.service.start()
        with anyio.move_on_after(START_TIMEOUT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._until_one_ends, tasks.cancel_scope)
                await self.until_shared()
                tasks.cancel_scope.cancel()
                self._tasks.start_soon(self._supervise)
                return
        ended = [each.service for each in self.workers if not each.service.running]
        if ended:
            raise ServiceFailed(f"{ended[0].name} has ended:\n{ended[0].tail()}")
        raise ServiceFailed(f"the workers do not share the partitions within {START_TIMEOUT:g} s")

    async def _until_one_ends(self, waiting: anyio.CancelScope) -> None:
        """Give up waiting for workers when one of them has ended: it would never join."""
        while all(worker.service.running for worker in self.workers):  # noqa: ASYNC110
            await anyio.sleep(0.1)
        waiting.cancel()

    async def start_load(self) -> anyio.Event:
        """Let records flow until `load.stop`; the event is set when all of them were answered."""
        finished = anyio.Event()

        async def run() -> None:
            await self.load.run()
            finished.set()

        self._tasks.start_soon(run)
        return finished

    async def _supervise(self) -> None:
        with self._supervision:
            await self.supervise()

    async def _create_topics(self) -> None:
        partitions = self._storm.partitions
        sinks = [*self.sinks.values(), self.errors]
        written = [each.topic for each in sinks if each and each.topic]
        topics = [*self._storm.values, *written]
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        await admin.start()
        try:
            answer = await admin.create_topics([NewTopic(name, partitions, 1) for name in topics])
        finally:
            await admin.close()
        for name, code, *_ in answer.topic_errors:
            if code:
                raise ServiceFailed(f"topic {name}: {for_code(code).__name__}")

    async def _require_no_rows(self) -> None:
        """Make the table, if that is ours to do; rows of an earlier storm would count for this one."""
        for stage, sink in zip(self._strategy.writers, self.sinks.values(), strict=True):
            declared = await to_thread.run_sync(self._strategy.schema_of, stage)
            await to_thread.run_sync(sink.prepare, declared)
        for each in (*self.sinks.values(), self.errors):
            if each is None:
                continue
            if rows := (await each.count(self.bootstrap_servers)).total() or len(each.rows):
                raise SettingsError(
                    f"{each.place} has {rows:,} rows of {', '.join(self._storm.values)}: they "
                    "would count too; empty it, or choose another --topic"
                )

    def _declare(self, number: int) -> WorkerUnderTest:
        storm, name = self._storm, f"worker-{number}"
        topics = [flag for topic in storm.values for flag in ("--topic", topic)]
        service = self._services.add(
            name,
            lambda: [
                *("run", "kmr.chaos.hurried:strategy", *topics, "--group", GROUP),
                *("--bootstrap-servers", self.bootstrap_servers, *_WORKER_FLAGS),
                *("--client-id", f"{name}.{service.starts}"),
            ],
            ready_line="] assigned ",
            waits=False,
            **{name: value for name, value in os.environ.items() if name in _PASSED_ON},
            **({URL_VARIABLE: self._clickhouse_url} if self._clickhouse_url else {}),
            **{STRATEGY_VARIABLE: storm.strategy},
        )
        return WorkerUnderTest(service, GROUP)
