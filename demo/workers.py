"""The demo's first half: workers come and go while records are produced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import anyio

from demo.flights import messages
from demo.outcome import STRATEGY, Engine, Outcome, fetch_status
from demo.processes import STALL, Child, ChildFailed, Children, free_port, give_up_after
from demo.services import TOPIC, row_counter
from kmr.broker.client import BatchProducer

if TYPE_CHECKING:
    import pyarrow as pa

    from demo.display import Display
    from demo.services import Services
    from kmr.observe.status import WorkerStatus

__all__ = ["RECORDS_PER_SECOND", "WORKERS", "WorkerHalf"]

WORKERS: Final = Engine("workers", group="demo", database="default")
RECORDS_PER_SECOND: Final = 40_000
"""The pace of the producer: it leaves time to watch."""

_CHUNK: Final = 2_000
_SETTINGS: Final = Path(__file__).with_name("kmr.toml")


class WorkerHalf:
    """Produces all flights, and lets workers deliver them.

    Args:
        services: started, with the tables in the database of `WORKERS`.
    """

    def __init__(
        self, services: Services, flights: pa.Table, display: Display, children: Children
    ) -> None:
        self._services = services
        self._flights = flights
        self._display = display
        self._children = children
        self._workers: dict[str, tuple[Child, str]] = {}
        self._statuses: dict[str, WorkerStatus | None] = {}
        self._produced = 0
        self._delivered = 0
        self._chunk_sent = anyio.Event()
        self._url = services.database_url(WORKERS.database)

    async def run(self) -> Outcome:
        """The whole course.

        Raises:
            ChildFailed: a process ended with an error, or nothing moved for `STALL` seconds.
        """
        begun = anyio.current_time()
        await self._start_worker("worker-1")
        await self._start_worker("worker-2")
        await self._until_ready("worker-1", "worker-2")
        started = anyio.current_time()
        self._display.event("two workers share the topic's partitions; producing begins")
        _, page = self._workers["worker-2"]  # it stays to the end
        self._display.event(f"watch worker-2 in a browser while it runs: {page}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            async with anyio.create_task_group() as changes:
                changes.start_soon(self._come_and_go)
                await self._produce()
                self._display.event(f"all {self._produced:,} records are produced")
            await self._until_delivered()
            seconds = anyio.current_time() - started
            await self._until_ready(*self._workers)  # SIGTERM would end one that is only starting
            tasks.cancel_scope.cancel()
        for name in list(self._workers):
            await self._stop_worker(name)
        return Outcome(WORKERS, self._url, start=started - begun, seconds=seconds)

    async def _start_worker(self, name: str) -> None:
        port = free_port()
        child = await self._children.start(
            name,
            *("run", STRATEGY),
            *("--topic", TOPIC, "--group", WORKERS.group),
            *("--bootstrap-servers", self._services.broker),
            *("--config", str(_SETTINGS), "--http-port", str(port)),
            KMR_CLICKHOUSE_URL=self._url,
        )
        self._workers[name] = child, f"http://127.0.0.1:{port}"
        self._statuses[name] = None

    async def _stop_worker(self, name: str) -> None:
        child, _ = self._workers.pop(name)
        code = await child.stop()
        self._statuses.pop(name, None)
        if code != 0:
            raise ChildFailed(f"{name} ended with exit code {code} after SIGTERM:\n{child.tail()}")

    async def _until_ready(self, *names: str) -> None:
        with give_up_after(STALL, f"{' and '.join(names)} are not ready"):
            while not all((s := self._statuses.get(name)) and s.ready for name in names):
                self._children.check()
                await self._ask_workers()
                await anyio.sleep(0.05)

    async def _come_and_go(self) -> None:
        """The group changes twice while records flow: one worker leaves, another joins."""
        total = self._flights.num_rows
        await self._until_produced(total // 3)
        self._display.event("worker-1 gets SIGTERM: it drains and leaves; worker-2 takes over")
        await self._stop_worker("worker-1")
        await self._until_produced(total * 3 // 5)
        self._display.event("worker-3 joins: the partitions are shared again")
        await self._start_worker("worker-3")

    async def _until_produced(self, records: int) -> None:
        while self._produced < records:
            await self._chunk_sent.wait()

    async def _produce(self) -> None:
        """Send all flights, at a pace that leaves time to watch."""
        async with BatchProducer(self._services.broker, TOPIC, compression="lz4") as producer:
            started = anyio.current_time()
            for keys, values in messages(self._flights, _CHUNK):
                await producer.send(values, keys)
                self._produced += len(values)
                self._chunk_sent.set()
                self._chunk_sent = anyio.Event()
                await anyio.sleep_until(started + self._produced / RECORDS_PER_SECOND)

    async def _until_delivered(self) -> None:
        """Every record is in the table."""
        last, since = self._delivered, anyio.current_time()
        while self._delivered < self._produced:
            await anyio.sleep(0.05)
            if self._delivered != last:
                last, since = self._delivered, anyio.current_time()
            elif anyio.current_time() - since > STALL:
                raise ChildFailed(
                    f"nothing was delivered for {STALL:.0f} s, {last:,} records were before"
                )

    async def _watch(self) -> None:
        """Keep the display up to date, and notice a process that ends."""
        async with row_counter(self._url) as count:
            while True:
                self._children.check()
                await self._ask_workers()
                self._delivered = await count()
                self._display.workers(self._produced, self._delivered, self._statuses)
                await anyio.sleep(0.2)

    async def _ask_workers(self) -> None:
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for name, (_, url) in list(self._workers.items()):
                status = await fetch_status(session, url)
                if status is not None and name in self._workers:
                    self._statuses[name] = status
