"""Faults of processes: each strikes, holds on until it has had its effect, and heals; also when cancelled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Literal, TypeVar

import anyio

from .site import SystemUnderTest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .services import Service
    from .site import WorkerUnderTest

SiteT = TypeVar("SiteT", bound=SystemUnderTest, contravariant=True)
Need = Literal["broker", "clickhouse", "postgres", "links", "peers"]
"""What a site must have for a fault: a broker, ClickHouse or PostgreSQL of its own, proxies, two workers."""


@dataclass(frozen=True)
class Strike:
    """One line of a schedule: which fault, and the seed of what it decides (its target, say)."""

    fault: str
    seed: int


class StormFault(ABC, Generic[SiteT]):
    """Something that goes wrong. It has no state: what it decides, it takes from its seed."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()

    @abstractmethod
    async def strike(self, site: SiteT, random: Random) -> str:
        """Let it happen and pass; returns what exactly happened, for the report."""


def plan(seed: int, faults: Sequence[str], rounds: int = 1) -> list[Strike]:
    """The schedule of a run: every fault once a round, in an order that only the seed decides."""
    random = Random(seed)  # noqa: S311  no secrets
    schedule: list[Strike] = []
    for _ in range(rounds):
        order = list(faults)
        random.shuffle(order)
        schedule += [Strike(name, random.getrandbits(32)) for name in order]
    return schedule


class KillWorker(StormFault[SystemUnderTest]):
    """SIGKILL of a worker; another takes its place at once."""

    name = "kill-worker"
    kill: ClassVar[bool] = True

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        worker = random.choice(site.workers)
        await worker.restart(kill=self.kill)
        return worker.name


class RestartWorker(KillWorker):
    """SIGTERM of a worker, which drains and leaves; another takes its place."""

    name = "restart-worker"
    kill = False


class KillBroker(StormFault[SystemUnderTest]):
    """SIGKILL of the broker, started again on the same directory."""

    name = "kill-broker"
    needs = frozenset({"broker"})

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        await kill_and_start(own(site.broker))
        return "broker"


class KillClickHouse(StormFault[SystemUnderTest]):
    """SIGKILL of ClickHouse, started again on the same directory."""

    name = "kill-clickhouse"
    needs = frozenset({"clickhouse"})

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        await kill_and_start(own(site.clickhouse))
        return "ClickHouse"


class StopBroker(StormFault[SystemUnderTest]):
    """SIGTERM of the broker, which hands over its state and ends; started again on the same directory."""

    name = "stop-broker"
    needs = frozenset({"broker"})

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        broker = own(site.broker)
        await broker.stop()
        await anyio.sleep(random.uniform(0, 2))
        await broker.start()
        return "broker"


class SuspendClickHouse(StormFault[SystemUnderTest]):
    """SIGSTOP of ClickHouse for longer than a worker waits for an answer, then SIGCONT."""

    name = "suspend-clickhouse"
    needs = frozenset({"clickhouse"})

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        server, seconds = own(site.clickhouse), random.uniform(2, 8)
        server.pause()
        try:
            await anyio.sleep(seconds)
        finally:
            server.resume()
        return f"clickhouse, for {seconds:.1f} s"


class KillEverything(StormFault[SystemUnderTest]):
    """SIGKILL of everything at once: a power failure that loses no page of the file system's cache."""

    name = "kill-everything"
    needs = frozenset({"broker"})

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        below = [own(site.broker), *([site.clickhouse] if site.clickhouse else [])]
        await kill_and_start_in_order(below, [worker.service for worker in site.workers])
        return f"{', '.join(service.name for service in below)} and every worker"


class PauseWorker(StormFault[SystemUnderTest]):
    """SIGSTOP of a worker until others have its partitions and have gone on, then SIGCONT."""

    name = "pause-worker"
    needs = frozenset({"peers"})

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        worker = random.choice(site.workers)
        await site.until_joined(worker)
        worker.service.pause()
        try:
            await site.until_expelled(worker)
            await site.until_settled(worker.group)
        finally:
            worker.service.resume()
        return worker.name


class RebalanceStorm(StormFault[SystemUnderTest]):
    """Every worker is restarted again and again, by SIGTERM or SIGKILL, all at the same time."""

    name = "rebalance-storm"
    restarts: ClassVar[int] = 16

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        async def restart(worker: WorkerUnderTest, own: Random) -> None:
            for _ in range(self.restarts):
                await worker.restart(kill=own.random() < 0.5)
                with anyio.move_on_after(own.uniform(1, 10)):
                    await site.until_joined(worker)

        async with anyio.create_task_group() as tasks:
            for worker in site.workers:
                tasks.start_soon(restart, worker, Random(random.random()))  # noqa: S311
        return f"{len(site.workers)} workers, {self.restarts} restarts each"


class ShortStorm(RebalanceStorm):
    """Every worker is restarted twice, by SIGTERM or SIGKILL, all at the same time."""

    name = "short-storm"
    restarts = 2


class FewerAndMore(StormFault[SystemUnderTest]):
    """Workers drain and leave one by one, up to the last; then they come back one by one."""

    name = "fewer-and-more"
    needs = frozenset({"peers"})

    async def strike(self, site: SystemUnderTest, random: Random) -> str:
        leaving = random.sample(site.workers, len(site.workers) - 1)
        for worker in leaving:
            await worker.service.stop()
            await site.until_shared()
        for worker in reversed(leaving):
            await worker.service.start()
            await site.until_joined(worker)
        return f"{len(site.workers)} workers, 1 worker, {len(site.workers)} workers"


PROCESS_FAULTS: Final[Sequence[StormFault[SystemUnderTest]]] = (
    KillWorker(),
    PauseWorker(),
    KillBroker(),
    RestartWorker(),
    ShortStorm(),
    StopBroker(),
    KillEverything(),
    FewerAndMore(),
    KillClickHouse(),
    SuspendClickHouse(),
)
"""The faults of processes. Any strategy can have them; none needs a proxy."""


async def kill_and_start(service: Service) -> None:
    """SIGKILL, and a new process on the same directory."""
    await service.kill()
    await service.start()


async def kill_and_start_in_order(*groups: Sequence[Service]) -> None:
    """Kill all of them at once; start one group after the other."""
    async with anyio.create_task_group() as tasks:
        for services in groups:
            for service in services:
                tasks.start_soon(service.kill)
    for services in groups:
        async with anyio.create_task_group() as tasks:
            for service in services:
                tasks.start_soon(service.start)


def own(service: Service | None) -> Service:
    """A service of the site's own. Raises ValueError for one that was there already."""
    if service is None:
        raise ValueError("this service is not ours to harm")
    return service
