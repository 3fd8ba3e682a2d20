"""The demo's course: real data through the pipeline while workers come and go."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import anyio
import clickhouse_connect
import msgspec
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from broker.producer import BatchProducer
from demo.flights import messages
from demo.processes import Child, ChildFailed, Children, free_port
from framework.status import WorkerStatus

if TYPE_CHECKING:
    import pyarrow as pa

    from demo.display import Display

__all__ = ["Outcome", "Scenario"]

TOPIC = "flights"
GROUP = "demo"
PARTITIONS = 8
CHUNK = 2_000
RECORDS_PER_SECOND = 40_000
STALL = 60.0

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """What came of it: how many seconds from the first record produced to the last one delivered."""

    records: int
    seconds: float


class Scenario:
    """Runs the pipeline in child processes, with everything they keep in one directory.

    Args:
        directory: emptied before; it keeps the broker's log, the tables and the processes' logs.
    """

    def __init__(
        self, directory: Path, flights: pa.Table, display: Display, children: Children
    ) -> None:
        self._directory = directory
        self._flights = flights
        self._display = display
        self._children = children
        self._broker = f"127.0.0.1:{free_port()}"
        self._workers: dict[str, tuple[Child, str]] = {}
        self._statuses: dict[str, WorkerStatus | None] = {}
        self._produced = 0
        self._delivered = 0
        self._chunk_sent = anyio.Event()
        self.clickhouse_url = f"http://127.0.0.1:{free_port()}"

    async def run(self) -> Outcome:
        """The whole course.

        Raises:
            ChildFailed: a process ended with an error, or nothing moved for a minute.
        """
        await self._start_services()
        await self._start_worker("worker-1")
        await self._start_worker("worker-2")
        await self._until_ready("worker-1", "worker-2")
        self._display.event("two workers share the topic's partitions; producing begins")
        started = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            tasks.start_soon(self._come_and_go)
            await self._produce()
            self._display.event(f"all {self._produced:,} records are produced")
            await self._until_delivered()
            seconds = anyio.current_time() - started
            tasks.cancel_scope.cancel()
        for name in list(self._workers):
            await self._stop_worker(name)
        return Outcome(self._produced, seconds)

    async def _start_services(self) -> None:
        broker_port = self._broker.rpartition(":")[2]
        clickhouse_port = self.clickhouse_url.rpartition(":")[2]
        broker = await self._children.start(
            "broker",
            "broker",
            "serve",
            "--data",
            str(self._directory / "broker"),
            "--port",
            broker_port,
        )
        clickhouse = await self._children.start(
            "clickhouse",
            "clickhouse",
            "serve",
            "--data",
            str(self._directory / "clickhouse"),
            "--port",
            clickhouse_port,
        )
        await self._children.wait_for_port(broker, int(broker_port))
        await self._children.wait_for_port(clickhouse, int(clickhouse_port))
        self._display.event(f"broker on {self._broker}, ClickHouse on {self.clickhouse_url}")
        admin = AIOKafkaAdminClient(bootstrap_servers=self._broker)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        finally:
            await admin.close()
        await anyio.to_thread.run_sync(self._create_tables)
        self._display.event(f"topic {TOPIC} with {PARTITIONS} partitions, table {TOPIC}")

    def _create_tables(self) -> None:
        client = clickhouse_connect.get_client(dsn=self.clickhouse_url)
        try:
            for statement in (HERE / "tables.sql").read_text().split(";"):
                if statement.strip():
                    client.command(statement)
        finally:
            client.close()

    async def _start_worker(self, name: str) -> None:
        port = free_port()
        child = await self._children.start(
            name,
            *("run", "demo.pipeline:strategy"),
            *("--topic", TOPIC, "--group", GROUP),
            *("--bootstrap-servers", self._broker),
            *("--config", str(HERE / "kmr.toml"), "--http-port", str(port)),
            KMR_CLICKHOUSE_URL=self.clickhouse_url,
        )
        self._workers[name] = child, f"http://127.0.0.1:{port}/status"
        self._statuses[name] = None

    async def _stop_worker(self, name: str) -> None:
        child, _ = self._workers.pop(name)
        code = await child.stop()
        self._statuses.pop(name, None)
        if code != 0:
            raise ChildFailed(f"{name} ended with exit code {code} after SIGTERM:\n{child.tail()}")

    async def _until_ready(self, *names: str) -> None:
        with anyio.fail_after(STALL):
            while not all((s := self._statuses.get(name)) and s.ready for name in names):
                self._children.check()
                await self._ask_workers()
                await anyio.sleep(0.05)

    async def _come_and_go(self) -> None:
        """The group changes twice while records flow: one worker leaves, another joins."""
        total = self._flights.num_rows
        await self._until_produced(total // 3)
        self._display.event(
            "worker-1 gets SIGTERM: it drains, commits and leaves; worker-2 takes over"
        )
        await self._stop_worker("worker-1")
        await self._until_produced(total * 3 // 5)
        self._display.event("worker-3 joins: the partitions are shared again")
        await self._start_worker("worker-3")

    async def _until_produced(self, records: int) -> None:
        while self._produced < records:
            await self._chunk_sent.wait()

    async def _produce(self) -> None:
        """Send all flights, at a pace that leaves time to watch."""
        async with BatchProducer(self._broker, TOPIC, compression="lz4") as producer:
            started = anyio.current_time()
            for keys, values in messages(self._flights, CHUNK):
                await producer.send(values, keys)
                self._produced += len(values)
                self._chunk_sent.set()
                self._chunk_sent = anyio.Event()
                await anyio.sleep_until(started + self._produced / RECORDS_PER_SECOND)

    async def _until_delivered(self) -> None:
        """Every record's watermark is passed, so that every record is in the table."""
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
        client = await clickhouse_connect.get_async_client(dsn=self.clickhouse_url)
        try:
            while True:
                self._children.check()
                await self._ask_workers()
                result = await client.query("SELECT count() FROM flights")
                self._delivered = int(result.result_rows[0][0])
                self._display.update(self._produced, self._delivered, self._statuses)
                await anyio.sleep(0.2)
        finally:
            with anyio.CancelScope(shield=True):
                await client.close()

    async def _ask_workers(self) -> None:
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for name, (_, url) in list(self._workers.items()):
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(url) as response:
                        status = msgspec.json.decode(await response.read(), type=WorkerStatus)
                    if name in self._workers:
                        self._statuses[name] = status
