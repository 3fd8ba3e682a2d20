"""The faults of our own suite: those of any strategy, and those that need proxies or a PostgreSQL."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar

import anyio
from anyio import to_thread

from chaos.site import Site
from kmr.chaos.faults import (
    KillBroker,
    KillClickHouse,
    KillEverything,
    KillWorker,
    PauseWorker,
    RebalanceStorm,
    RestartWorker,
    ShortStorm,
    StormFault,
    kill_and_start,
    kill_and_start_in_order,
    own,
)

if TYPE_CHECKING:
    from random import Random

    from chaos.postgres import PostgresServer
    from chaos.proxies import Link

T = TypeVar("T", bound="Link | PostgresServer")


class KillClickHouseWriting(StormFault[Site]):
    """SIGKILL of ClickHouse within milliseconds after INSERTs have reached it: some are half written."""

    name = "kill-clickhouse-writing"
    needs = frozenset({"clickhouse", "links"})
    latest: ClassVar[float] = 0.03

    async def strike(self, site: Site, random: Random) -> str:
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
        await kill_and_start(own(site.clickhouse))


class KillClickHouseAndWorkers(KillClickHouseWriting):
    """SIGKILL of ClickHouse while it writes, and of every worker: new ones repeat what was half written."""

    name = "kill-clickhouse-and-workers"

    async def kill(self, site: Site) -> None:
        """Kill all of them at once; start ClickHouse first."""
        await kill_and_start_in_order(
            [own(site.clickhouse)], [worker.service for worker in site.workers]
        )


class KillPostgres(StormFault[Site]):
    """SIGKILL of PostgreSQL and all of its sessions, started again on the same directory."""

    name = "kill-postgres"
    needs = frozenset({"postgres"})

    async def strike(self, site: Site, random: Random) -> str:
        server = way(site.postgres)
        await to_thread.run_sync(server.kill)
        await to_thread.run_sync(server.start)
        return "PostgreSQL"


class KillPostgresAndWorkers(KillPostgres):
    """SIGKILL of PostgreSQL and of every worker: new ones ask for ranges of which no answer came."""

    name = "kill-postgres-and-workers"

    async def strike(self, site: Site, random: Random) -> str:
        async with anyio.create_task_group() as tasks:
            for worker in site.workers:
                tasks.start_soon(worker.service.kill)
            tasks.start_soon(to_thread.run_sync, way(site.postgres).kill)
        await to_thread.run_sync(way(site.postgres).start)
        async with anyio.create_task_group() as tasks:
            for worker in site.workers:
                tasks.start_soon(worker.service.start)
        return "PostgreSQL and every worker"


class LateInsert(StormFault[Site]):
    """A worker's INSERT arrives when its partitions have long had another owner, who went on."""

    name = "late-insert"
    needs = frozenset({"peers", "links"})

    async def strike(self, site: Site, random: Random) -> str:
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


class DropAnswers(StormFault[Site]):
    """INSERTs are written, but the connection is closed before the answer."""

    name = "drop-answers"
    needs = frozenset({"links"})
    count: ClassVar[int] = 3

    async def strike(self, site: Site, random: Random) -> str:
        worker = random.choice(site.workers)
        link = way(worker.clickhouse)
        await site.until_joined(worker)
        link.drop_answers(self.count)
        try:
            await link.until_dropped(link.dropped + self.count)
        finally:
            link.drop_answers(0)
        return f"{worker.name}, answers swallowed: {self.count}"


class DropAnswerAndKill(StormFault[Site]):
    """An INSERT is written, and its worker is killed before it hears of it."""

    name = "drop-answer-and-kill"
    needs = frozenset({"links"})

    async def strike(self, site: Site, random: Random) -> str:
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


class SlowSink(StormFault[Site]):
    """ClickHouse takes half a second longer for each INSERT, for everybody."""

    name = "slow-sink"
    needs = frozenset({"links"})
    seconds: ClassVar[float] = 0.5
    records: ClassVar[int] = 5_000

    async def strike(self, site: Site, random: Random) -> str:
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


class HangingSink(StormFault[Site]):
    """ClickHouse says nothing, for longer than a worker waits for it."""

    name = "hanging-sink"
    needs = frozenset({"links"})
    patiences: ClassVar[float] = 1.5

    async def strike(self, site: Site, random: Random) -> str:
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


class _PartedWorker(StormFault[Site]):
    needs = frozenset({"peers", "links"})

    async def strike(self, site: Site, random: Random) -> str:
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


class DiskFull(StormFault[Site]):
    """No file of the broker can grow, until producers have stood still."""

    name = "disk-full"
    needs = frozenset({"broker"})
    silence: ClassVar[float] = 1.5

    async def strike(self, site: Site, random: Random) -> str:
        broker = own(site.broker)
        broker.limit_files(1)
        try:
            await site.load.until_silent(self.silence)
        finally:
            broker.limit_files(None)
        return f"until no record was acknowledged for {self.silence:g} s"


FAULTS: dict[str, StormFault[Site]] = {
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


def way(link: T | None) -> T:
    """A way of a worker, or a PostgreSQL. Raises ValueError if the site has none."""
    if link is None:
        raise ValueError("this site has none")
    return link
