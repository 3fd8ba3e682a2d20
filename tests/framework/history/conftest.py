"""A topic with a history, and `kmr` as real processes beside the broker of the test."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiokafka
import anyio
import clickhouse_connect
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import RecordsToDelete

from kmr.delivery.announcement import history_group
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import connection_config
from kmr.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from clickhouse_connect.driver.client import Client

    from kmr.broker import Broker
    from kmr.kafka.consumer import CommitOffset
    from kmr.record import TopicPartition
    from kmr.testing import StartBroker
    from tests.framework.conftest import CreateTopic, Produce

KMR = Path(sys.executable).with_name("kmr")
EXAMPLES = Path(__file__).parents[3] / "examples"
PARTITIONS = 3
QUICK = ("--session-timeout", "2s", "--heartbeat-interval", "0.3", "--commit-interval", "0.1")
"""A worker that commits soon, and whose successor after a kill waits no longer than that."""

STRATEGY = """
import os

import pyarrow as pa

from kmr import Strategy
from kmr.mapping.functions import map_record
from kmr.sinks import ClickHouseWriter, DeadLetterWriter

WRITER = {{"max_rows": 500, "max_age": 0.1}}


@map_record
def parse(record):
    number = int(record.value)  # `wrong` fails
    return None if number % 10 == 3 else {{"number": number}}


@map_record
def twice(record):
    return [{{"number": int(record.value)}}, {{"number": -1}}]


def writer(**options):
    return ClickHouseWriter("{table}", **WRITER, **options)


strategy = Strategy(map=parse, reduce=writer(), reduce_err=DeadLetterWriter("dead", max_age=0.1))
twin = Strategy(map=twice, reduce=writer())
new = Strategy(map=parse, reduce=writer(create=pa.schema({{"number": pa.int64()}})))
loose = Strategy(map=parse, reduce=writer(delivery="at-least-once"), reduce_err=DeadLetterWriter("dead"))
"""


@dataclass
class Run:
    """A process that has ended."""

    code: int
    out: str
    err: str


@dataclass
class Past:
    """A topic, a table, and the commands that fill it.

    Attributes:
        sent: records of each partition.
    """

    broker: Broker
    folder: Path
    url: str
    table: str
    client: Client
    produce: Produce
    group: str = "g"
    sent: dict[int, int] = field(default_factory=dict)

    async def send(self, partition: int, count: int, **fields: Any) -> None:
        """Produce numbers; every hundredth is no number."""
        first = self.sent.get(partition, 0)
        numbers = range(first, first + count)
        values = [b"wrong" if n % 100 == 7 else str(n).encode() for n in numbers]
        for begin in range(0, count, 500):
            await self.produce("t", values[begin : begin + 500], partition, **fields)
        self.sent[partition] = first + count

    async def send_to_new(self, partition: int, count: int) -> None:
        """The same for a partition that producers do not know yet."""
        producer = AIOKafkaProducer(bootstrap_servers=self.broker.bootstrap_servers)
        await producer.start()
        try:
            for n in range(count):
                value = b"wrong" if n % 100 == 7 else str(n).encode()
                await producer.send("t", value, partition=partition)
            await producer.flush()
        finally:
            await producer.stop()
        self.sent[partition] = count

    def command(self, name: str, *flags: str, strategy: str = "strategy") -> list[str]:
        """Return the command line."""
        where = ("--topic", "t", "--group", self.group)
        broker = ("--bootstrap-servers", self.broker.bootstrap_servers)
        return [str(KMR), name, f"past:{strategy}", *where, *broker, *QUICK, *flags]

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KMR_CLICKHOUSE_URL": self.url,
            "COLUMNS": "200",
            "KMR_LOG__FORMAT": "json",
        }

    async def run(self, *flags: str, strategy: str = "strategy") -> Run:
        """Run `kmr backfill` to its end."""
        command = self.command("backfill", *flags, strategy=strategy)
        done = await anyio.run_process(command, cwd=self.folder, env=self.environment, check=False)
        return Run(done.returncode, done.stdout.decode(), done.stderr.decode())

    @asynccontextmanager
    async def running(self, name: str, *flags: str) -> AsyncIterator[Any]:
        """Run a command until the end of the block; it drains then."""
        with (self.folder / f"{name}.log").open("ab") as log:
            async with await anyio.open_process(
                self.command(name, *flags),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:
                try:
                    yield process
                finally:
                    if process.returncode is None:
                        process.send_signal(signal.SIGTERM)
                        with anyio.move_on_after(120, shield=True):
                            await process.wait()

    async def committed(self, group: str) -> dict[TopicPartition, CommitOffset]:
        """Return what a group has committed."""
        settings = Settings(
            topics=("t",), group=group, bootstrap_servers=self.broker.bootstrap_servers
        )
        async with connect_admin(connection_config(settings)) as admin:
            return await admin.list_group_offsets(group)

    async def archive(self) -> Path:
        """Archive what the topic has by the strategy of `examples/archive`; return the directory."""
        folder = self.folder / "archive"
        command = [str(KMR), "run", "archive:strategy", "--topic", "t", "--group", "archive"]
        flags = ["--bootstrap-servers", self.broker.bootstrap_servers, "--until-caught-up"]
        environment = {**self.environment, "PYTHONPATH": str(EXAMPLES / "archive")}
        await anyio.run_process([*command, *flags], cwd=self.folder, env=environment)
        return folder

    async def delete_before(self, **offsets: int) -> None:
        """Delete the first records of partitions (`p0=100`), as retention does."""
        async with connect_admin({"bootstrap_servers": self.broker.bootstrap_servers}) as admin:
            await admin._client.delete_records(
                {
                    aiokafka.TopicPartition("t", int(name[1:])): RecordsToDelete(offset)
                    for name, offset in offsets.items()
                }
            )

    async def until_done(self, group: str, offsets: int) -> None:
        """Return when a group has committed so many offsets, of all partitions."""
        with anyio.fail_after(300):
            while sum(e.offset for e in (await self.committed(group)).values()) < offsets:  # noqa: ASYNC110  polls the broker
                await anyio.sleep(0.2)

    @property
    def history(self) -> str:
        return history_group(self.group)

    def expected(self, until: dict[int, int] | None = None) -> list[tuple[int, int]]:
        """Return partition and offset of each record that has a row."""
        ends = until or self.sent
        return [
            (partition, n)
            for partition, end in sorted(ends.items())
            for n in range(end)
            if n % 10 != 3 and n % 100 != 7
        ]

    def found(self) -> list[tuple[int, int]]:
        """Return partition and offset of each row."""
        rows = self.client.query(
            f"SELECT partition, offset FROM {self.table} ORDER BY partition, offset"
        )
        return [(int(a), int(b)) for a, b in rows.result_rows]

    def doubled(self) -> int:
        """Count the offsets with several rows, in SQL."""
        rows = self.client.query(
            f"SELECT count() FROM (SELECT 1 FROM {self.table} "
            "GROUP BY partition, offset HAVING count() > 1)"
        )
        return int(rows.result_rows[0][0])

    def delete(self, where: str) -> None:
        """Delete rows."""
        self.client.command(
            f"ALTER TABLE {self.table} DELETE WHERE {where} SETTINGS mutations_sync = 2"
        )


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker(group_min_session_timeout=0.5)


@pytest.fixture
async def past(
    broker: Broker,
    tmp_path: Path,
    clickhouse_url: str,
    create_topic: CreateTopic,
    produce: Produce,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Past]:
    """By indirect parameters the topic has other settings."""
    table = f"past{abs(hash(request.node.nodeid))}"
    (tmp_path / "past.py").write_text(STRATEGY.format(table=table))
    await create_topic("t", PARTITIONS, **getattr(request, "param", {}))
    await create_topic("dead", 1)
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        client.command(
            f"CREATE TABLE {table} (topic String, partition Int32, offset Int64, number Int64) "
            "ENGINE = MergeTree ORDER BY (partition, offset) "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )
        yield Past(broker, tmp_path, clickhouse_url, table, client, produce)
        client.command(f"DROP TABLE {table}")


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Moments of kills: the same in each run of the suite."""
    return random.Random(request.node.name)


def log_of(run: Run) -> Iterator[dict[str, Any]]:
    """Return the events of a log of JSON lines."""
    for line in run.err.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
