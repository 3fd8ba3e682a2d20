"""The course of a storm: processes start, records flow, faults strike, everything is counted."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code

from ..errors import KmrError
from ..record import TopicPartition
from .faults import PROCESS_FAULTS, Strike, plan
from .journal import Journal
from .load import Load
from .services import START_TIMEOUT, ServiceFailed, Services, free_port
from .sinks import read_batches, read_errors, read_sink
from .site import Site, Worker
from .verdict import Verdict, expect, judge
from .view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from ..record import Batch
    from ..strategy import Strategy
    from .faults import Fault
    from .records import Values
    from .redirect import Places, Redirected
    from .verdict import Found

__all__ = ["Outcome", "Storm", "carry_out", "possible_faults"]

GROUP: Final = "chaos"
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
        patience: seconds until what does not come about is given up.
    """

    strategy: str
    redirected: Redirected
    values: Mapping[str, Values]
    seed: int = 1
    workers: int = 3
    partitions: int = 6
    faults: int = 8
    seconds: float = 0.0
    rate: float = 500.0
    between: int = 200
    patience: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """How a storm ended.

    Attributes:
        given_up: what did not come about in time; empty if everything did.
        died: processes that ended without a signal of ours.
        struck: how many faults did.
    """

    verdict: Verdict
    given_up: str
    died: tuple[str, ...]
    struck: int
    killed: int
    sent: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every guarantee was kept."""
        return not self.verdict.offences and not self.given_up and not self.died


def possible_faults(storm: Storm) -> dict[str, Fault[Any]]:
    """Return the faults that the storm's processes can have."""
    there = {"broker"}
    if storm.redirected.sink == "clickhouse":
        there.add("clickhouse")
    if storm.workers > 1:
        there.add("peers")
    return {fault.name: fault for fault in PROCESS_FAULTS if fault.needs <= there}


def carry_out(
    storm: Storm, strategy: Strategy, places: Places, directory: Path, say: Callable[[str], None]
) -> Outcome:
    """Run a storm from its first process to its verdict. Call it where no event loop runs.

    Args:
        directory: takes data and logs; new or empty.

    Raises:
        ServiceFailed: the processes do not come up.
    """
    began = time.monotonic()
    ended = anyio.run(_carry_out, storm, places, directory, say)
    verdict = judge(
        expect(strategy, ended.batches),
        ended.found,
        ended.errors,
        strategy.requested_delivery,
        ended.acknowledged,
        chain=len(strategy.reducers) > 1,
    )
    killed = sum(line["ending"] == "killed" for line in ended.journal.processes)
    return Outcome(
        verdict,
        ended.given_up,
        tuple(ended.journal.died()),
        ended.struck,
        killed,
        ended.sent,
        time.monotonic() - began,
    )


@dataclass(frozen=True)
class _Ended:
    """What there is to count when all workers have stopped."""

    journal: Journal
    batches: list[Batch]
    found: Found
    errors: Found
    acknowledged: dict[TopicPartition, list[int]]
    given_up: str
    struck: int
    sent: int


async def _carry_out(
    storm: Storm, places: Places, directory: Path, say: Callable[[str], None]
) -> _Ended:
    journal = Journal(say)
    async with _StrategySite(storm, places, directory, journal) as site:
        workers = "1 worker shares" if storm.workers == 1 else f"{storm.workers} workers share"
        say(f"{workers} {storm.partitions} partition{'' if storm.partitions == 1 else 's'}")
        course = _Course(storm, site, say)
        given_up = ""
        try:
            await course.run()
        except (TimeoutError, ServiceFailed) as error:
            given_up = str(error)
            say(f"given up: {given_up}")
            site.load.stop()
        site.stop_supervising()
        await site.stop_workers()
        say("all workers have drained and ended; counting")
        try:
            batches = await read_batches(site.bootstrap_servers, storm.values)
            found = await read_sink(storm.redirected.sink, places, site.bootstrap_servers)
            errors = await read_errors(places, site.bootstrap_servers)
        except (KmrError, OSError) as error:
            raise ServiceFailed(f"what was written cannot be read: {error}") from error
    acknowledged = {
        TopicPartition(*at): sorted(values) for at, values in site.load.acknowledged.items()
    }
    return _Ended(
        journal, batches, found, errors, acknowledged, given_up, course.struck, site.load.sent
    )


class _StrategySite(Site):
    """The processes around one strategy; an async context manager."""

    load: Load

    def __init__(self, storm: Storm, places: Places, directory: Path, journal: Journal) -> None:
        self.bootstrap_servers = f"127.0.0.1:{free_port()}"
        self.view = View(self.bootstrap_servers, [GROUP], journal)
        self.load = Load(
            self.bootstrap_servers, storm.values, storm.partitions, storm.rate, journal
        )
        self._storm = storm
        self._places = places
        self._directory = directory
        self._services = Services(directory / "logs", journal)
        self._stack = AsyncExitStack()
        self._supervision = anyio.CancelScope()
        self.workers = [self._declare(number) for number in range(1, storm.workers + 1)]

    @property
    def acknowledged(self) -> Mapping[tuple[str, int], int]:
        """See `Site.acknowledged`."""
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
        if self._storm.redirected.sink == "clickhouse":
            data, at = (
                str(self._directory / "clickhouse"),
                self._places.clickhouse.rpartition(":")[2],
            )
            self.clickhouse = services.add(
                "clickhouse",
                lambda: ["clickhouse", "serve", "--data", data, "--port", at],
                ready_line="answers on",
            )
            await self.clickhouse.start()
        await self.broker.start()
        await self._create_topics()
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
        partitions, places = self._storm.partitions, self._places
        topics = [*self._storm.values, places.rows, places.errors]
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        await admin.start()
        try:
            answer = await admin.create_topics([NewTopic(name, partitions, 1) for name in topics])
        finally:
            await admin.close()
        for name, code, *_ in answer.topic_errors:
            if code:
                raise ServiceFailed(f"topic {name}: {for_code(code).__name__}")

    def _declare(self, number: int) -> Worker:
        storm, name = self._storm, f"worker-{number}"
        topics = [flag for topic in storm.values for flag in ("--topic", topic)]
        service = self._services.add(
            name,
            lambda: [
                *("run", "kmr.chaos.redirect:strategy", *topics, "--group", GROUP),
                *("--bootstrap-servers", self.bootstrap_servers, *_WORKER_FLAGS),
                *("--client-id", f"{name}.{service.starts}"),
            ],
            ready_line='"assigned"',
            waits=False,
            **self._places.environment(storm.strategy),
        )
        return Worker(service, GROUP)


class _Course:
    """Load, faults, recovery."""

    def __init__(self, storm: Storm, site: _StrategySite, say: Callable[[str], None]) -> None:
        self.struck = 0
        self._storm = storm
        self._site = site
        self._say = say

    async def run(self) -> None:
        """Raises TimeoutError that names what did not come about, and ServiceFailed."""
        storm, site = self._storm, self._site
        finished = await site.start_load()
        await self._in_time("the first records", site.load.until_more(storm.between))
        await self._in_time("the first commits", site.until_settled())
        until = anyio.current_time() + storm.seconds
        for strike in self._schedule():
            if storm.seconds and anyio.current_time() > until:
                break
            await self._strike(strike)
            await self._in_time("records after a fault", site.load.until_more(storm.between))
        site.load.stop()
        await self._in_time("the end of the load", finished.wait())
        self._say(f"{site.load.count:,} records are acknowledged")
        await self._in_time("the last commits", site.until_settled())

    def _schedule(self) -> Sequence[Strike]:
        """As many faults as wanted; each kind strikes before one strikes again."""
        names = list(possible_faults(self._storm))
        wanted = 100_000 if self._storm.seconds else self._storm.faults
        return plan(self._storm.seed, names, -(-wanted // len(names)))[:wanted]

    async def _strike(self, strike: Strike) -> None:
        fault = possible_faults(self._storm)[strike.fault]
        random = Random(strike.seed)  # noqa: S311  no secrets
        detail = await self._in_time(fault.name, fault.strike(self._site, random))
        self.struck += 1
        began = anyio.current_time()
        await self._in_time(f"recovery from {fault.name}", self._recovered())
        self._say(f"{fault.name}: {detail}; recovered after {anyio.current_time() - began:.1f} s")

    async def _recovered(self) -> None:
        await self._site.until_settled()
        await self._site.until_shared()

    async def _in_time(self, what: str, action: Any) -> Any:
        with anyio.move_on_after(self._storm.patience):
            return await action
        raise TimeoutError(f"{what}: not within {self._storm.patience:g} s")
