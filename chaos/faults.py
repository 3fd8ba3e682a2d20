"""Faults: each strikes, holds on until it has had its effect, and heals; also when it is cancelled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import anyio
from anyio import to_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.postgres import PostgresServer
    from chaos.proxies import Link
    from chaos.services import Service
    from chaos.site import Site, Worker

__all__ = ["FAULTS", "Fault", "Need", "Strike", "own", "plan", "way"]

T = TypeVar("T", bound="Link | PostgresServer")
Need = Literal["broker", "clickhouse", "postgres", "links", "peers"]
"""Of a site: a broker, a ClickHouse or a PostgreSQL of its own, proxies, two workers in a group."""


@dataclass(frozen=True)
class Strike:
    """One line of a schedule: which fault, and the seed of what it decides (its target, say)."""

    fault: str
    seed: int


class Fault(ABC):
    """Something that goes wrong. It has no state: what it decides, it takes from its seed."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()

    @abstractmethod
    async def strike(self, site: Site, random: Random) -> str:
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


class KillWorker(Fault):
    """SIGKILL of a worker; another takes its place at once."""

    name = "kill-worker"

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        worker = random.choice(site.workers)
        await worker.restart(kill=True)
        return worker.name


class RestartWorker(Fault):
    """SIGTERM of a worker, which drains and leaves; another takes its place."""

    name = "restart-worker"

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        worker = random.choice(site.workers)
        await worker.restart(kill=False)
        return worker.name


class KillBroker(Fault):
    """SIGKILL of the broker, started again on the same directory."""

    name = "kill-broker"
    needs = frozenset({"broker"})

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        await _kill_and_start(own(site.broker))
        return "broker"


class KillClickHouse(Fault):
    """SIGKILL of ClickHouse, started again on the same directory."""

    name = "kill-clickhouse"
    needs = frozenset({"clickhouse"})

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        await _kill_and_start(own(site.clickhouse))
        return "ClickHouse"


class KillClickHouseWriting(Fault):
    """SIGKILL of ClickHouse within milliseconds after INSERTs have reached it: some are half written."""

    name = "kill-clickhouse-writing"
    needs = frozenset({"clickhouse", "links"})
    latest: ClassVar[float] = 0.03

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        links = [way(worker.clickhouse) for worker in site.workers]
        for link in links:
            link.hold_inserts()
        try:
            for worker, link in zip(site.workers, links, strict=True):
                await site.until_joined(worker)
                await link.until_held()
            held = sum(link.holds for link in links)
        finally:
            for link in links:
                link.release_inserts()
        seconds = random.uniform(0, self.latest)
        await anyio.sleep(seconds)
        await self.kill(site)
        return f"{seconds * 1_000:.0f} ms after {held} INSERTs"

    async def kill(self, site: Site) -> None:
        """Kill ClickHouse, and start it again."""
        await _kill_and_start(own(site.clickhouse))


class KillClickHouseAndWorkers(KillClickHouseWriting):
    """SIGKILL of ClickHouse while it writes, and of every worker: new ones repeat what was half written."""

    name = "kill-clickhouse-and-workers"

    async def kill(self, site: Site) -> None:
        """Kill all of them at once; start ClickHouse first."""
        await _kill_and_start_in_order(
            [own(site.clickhouse)], [worker.service for worker in site.workers]
        )


class KillPostgres(Fault):
    """SIGKILL of PostgreSQL and all of its sessions, started again on the same directory."""

    name = "kill-postgres"
    needs = frozenset({"postgres"})

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        server = way(site.postgres)
        await to_thread.run_sync(server.kill)
        await to_thread.run_sync(server.start)
        return "PostgreSQL"


class KillPostgresAndWorkers(KillPostgres):
    """SIGKILL of PostgreSQL and of every worker: new ones ask for ranges of which no answer came."""

    name = "kill-postgres-and-workers"

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        async with anyio.create_task_group() as tasks:
            for worker in site.workers:
                tasks.start_soon(worker.service.kill)
            tasks.start_soon(to_thread.run_sync, way(site.postgres).kill)
        await to_thread.run_sync(way(site.postgres).start)
        async with anyio.create_task_group() as tasks:
            for worker in site.workers:
                tasks.start_soon(worker.service.start)
        return "PostgreSQL and every worker"


class KillEverything(Fault):
    """SIGKILL of everything at once: a power failure that loses no page of the file system's cache."""

    name = "kill-everything"
    needs = frozenset({"broker", "clickhouse"})

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        below = [own(site.broker), own(site.clickhouse)]
        await _kill_and_start_in_order(below, [worker.service for worker in site.workers])
        return "broker, ClickHouse and every worker"


class PauseWorker(Fault):
    """SIGSTOP of a worker until others have its partitions and have gone on, then SIGCONT."""

    name = "pause-worker"
    needs = frozenset({"peers"})

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        worker = random.choice(site.workers)
        await site.until_joined(worker)
        worker.service.pause()
        try:
            await site.until_expelled(worker)
            await site.until_settled(worker.group)
        finally:
            worker.service.resume()
        return worker.name


class LateInsert(Fault):
    """A worker's INSERT arrives when its partitions have long had another owner, who went on."""

    name = "late-insert"
    needs = frozenset({"peers", "links"})

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        worker = random.choice(site.workers)
        link = way(worker.clickhouse)
        await site.until_joined(worker)
        link.hold_inserts()
        try:
            await link.until_held()
            worker.service.pause()
            await site.until_expelled(worker)
            await site.until_settled(worker.group)
            held = link.holds
        finally:
            link.release_inserts()
            worker.service.resume()
        return f"{worker.name}, late INSERTs: {held}"


class DropAnswers(Fault):
    """INSERTs are written, but the connection is closed before the answer."""

    name = "drop-answers"
    needs = frozenset({"links"})
    count: ClassVar[int] = 3

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        worker = random.choice(site.workers)
        link = way(worker.clickhouse)
        await site.until_joined(worker)
        link.drop_answers(self.count)
        try:
            await link.until_dropped(link.dropped + self.count)
        finally:
            link.drop_answers(0)
        return f"{worker.name}, answers swallowed: {self.count}"


class DropAnswerAndKill(Fault):
    """An INSERT is written, and its worker is killed before it hears of it."""

    name = "drop-answer-and-kill"
    needs = frozenset({"links"})

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        worker = random.choice(site.workers)
        link = way(worker.clickhouse)
        await site.until_joined(worker)
        link.drop_answers(1)
        try:
            await link.until_dropped(link.dropped + 1)
        finally:
            link.drop_answers(0)
        await worker.restart(kill=True)
        return worker.name


class SlowSink(Fault):
    """ClickHouse takes half a second longer for each INSERT, for everybody."""

    name = "slow-sink"
    needs = frozenset({"links"})
    seconds: ClassVar[float] = 0.5
    records: ClassVar[int] = 5_000

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        links = [way(worker.clickhouse) for worker in site.workers]
        for link in links:
            link.delay_answers(self.seconds)
        try:
            await site.load.until_more(self.records)
        finally:
            for link in links:
                link.delay_answers(0)
        return f"{self.seconds:g} s for each INSERT, during {self.records:,} records"


class RebalanceBehind(SlowSink):
    """Workers are killed and come back while INSERTs take two seconds and records pile up."""

    name = "rebalance-behind"
    needs = frozenset({"peers", "links"})
    seconds = 2.0
    records = 5_000

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        links = [way(worker.clickhouse) for worker in site.workers]
        for link in links:
            link.delay_answers(self.seconds)
        try:
            for worker in site.workers:
                await site.load.until_more(self.records)
                await worker.restart(kill=True)  # a drain of so many would outlast its deadline
                await site.until_joined(worker)
        finally:
            for link in links:
                link.delay_answers(0)
        return f"{len(links)} kills, {self.seconds:g} s for each INSERT"


class HangingSink(Fault):
    """ClickHouse says nothing, for longer than a worker waits for it."""

    name = "hanging-sink"
    needs = frozenset({"links"})
    patiences: ClassVar[float] = 1.5

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        links = [way(worker.clickhouse) for worker in site.workers]
        seconds = self.patiences * max(group.workload.sink_timeout for group in site.groups)
        for link in links:
            link.freeze()
        try:
            await anyio.sleep(seconds)
        finally:
            for link in links:
                link.heal()
        return f"for {seconds:g} s"


class _PartedWorker(Fault):
    needs = frozenset({"peers", "links"})

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        worker = random.choice(site.workers)
        link = way(worker.kafka)
        await site.until_joined(worker)
        self.part(link)
        try:
            await site.until_expelled(worker)
            await site.until_settled(worker.group)
        finally:
            link.heal()
        return worker.name

    @abstractmethod
    def part(self, link: Link) -> None: ...


class CutWorker(_PartedWorker):
    """The network between a worker and the broker resets every connection; ClickHouse stays in reach."""

    name = "cut-worker"

    def part(self, link: Link) -> None:
        """Cut."""
        link.cut()


class SilentNetwork(_PartedWorker):
    """The network between a worker and the broker drops everything silently."""

    name = "silent-network"

    def part(self, link: Link) -> None:
        """Freeze."""
        link.freeze()


class DiskFull(Fault):
    """No file of the broker can grow, until producers have stood still."""

    name = "disk-full"
    needs = frozenset({"broker"})
    silence: ClassVar[float] = 1.5

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""
        broker = own(site.broker)
        broker.limit_files(1)
        try:
            await site.load.until_silent(self.silence)
        finally:
            broker.limit_files(None)
        return f"until no record was acknowledged for {self.silence:g} s"


class RebalanceStorm(Fault):
    """Every worker is restarted again and again, by SIGTERM or SIGKILL, all at the same time."""

    name = "rebalance-storm"
    restarts: ClassVar[int] = 16

    async def strike(self, site: Site, random: Random) -> str:
        """See `Fault.strike`."""

        async def restart(worker: Worker, own: Random) -> None:
            for _ in range(self.restarts):
                await worker.restart(kill=own.random() < 0.5)
                with anyio.move_on_after(own.uniform(1, 10)):
                    await site.until_joined(worker)

        async with anyio.create_task_group() as tasks:
            for worker in site.workers:
                tasks.start_soon(restart, worker, Random(random.random()))  # noqa: S311
        return f"{len(site.workers)} workers, {self.restarts} restarts each"


class ShortStorm(RebalanceStorm):
    """The same, twice each."""

    name = "short-storm"
    restarts = 2


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        KillWorker(),
        RestartWorker(),
        KillBroker(),
        KillClickHouse(),
        KillClickHouseWriting(),
        KillClickHouseAndWorkers(),
        KillEverything(),
        KillPostgres(),
        KillPostgresAndWorkers(),
        PauseWorker(),
        LateInsert(),
        DropAnswers(),
        DropAnswerAndKill(),
        SlowSink(),
        RebalanceBehind(),
        HangingSink(),
        CutWorker(),
        SilentNetwork(),
        DiskFull(),
        RebalanceStorm(),
        ShortStorm(),
    )
}


async def _kill_and_start(service: Service) -> None:
    await service.kill()
    await service.start()


async def _kill_and_start_in_order(*groups: Sequence[Service]) -> None:
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


def way(link: T | None) -> T:
    """A way of a worker, or a PostgreSQL. Raises ValueError if the site has none."""
    if link is None:
        raise ValueError("this site has none")
    return link
