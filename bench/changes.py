"""`python -m bench.changes`: change events of Debezium into PostgreSQL and ClickHouse.

Beside kmr: a loop by hand with aiokafka, json and psycopg, which applies the last change of each key of up to
5,000 events by `executemany`, and commits its offsets afterwards (at least once; kmr is exactly once); and
ClickHouse alone, which gets as many rows in INSERTs of one size. The clock has the start of each consumer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import msgspec
import psycopg
import pyarrow as pa
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.console import Console

import kmr
from chaos.postgres import PostgresServer
from kmr import Debezium, Json, Strategy
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.sinks import ClickHouseWriter, PostgresWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC, KEYS, PARTITIONS = "shop.public.customers", 50_000, 4
FLUSH = 100_000  # rows
HAND = 5_000  # events of a transaction


class Customer(msgspec.Struct):
    id: int
    name: str
    city: str


def events(count: int) -> list[tuple[bytes, bytes]]:
    """Make a history: 10 % inserts, 85 % updates, 5 % deletes; each with its key."""
    rng, there, made = random.Random(1), set[int](), []
    for number in range(count):
        key = rng.randrange(KEYS)
        op = "c" if key not in there else "d" if rng.random() < 0.05 else "u"
        (there.discard if op == "d" else there.add)(key)
        row = {"id": key, "name": f"customer {number}", "city": "Porto"}
        made.append(
            (
                b'{"id":%d}' % key,
                msgspec.json.encode(
                    {
                        "before": {"id": key} if op == "d" else None,
                        "after": None if op == "d" else row,
                        "source": {
                            "connector": "postgresql",
                            "ts_ms": 1_700_000_000_000,
                            "lsn": number,
                        },
                        "op": op,
                        "ts_ms": 1_700_000_000_001,
                    }
                ),
            )
        )
    return made


async def produce(servers: str, made: list[tuple[bytes, bytes]]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    await admin.close()
    async with BatchProducer(servers, TOPIC) as producer:
        for first in range(0, len(made), 10_000):
            some = made[first : first + 10_000]
            await producer.send([value for _, value in some], [key for key, _ in some])


def by_kmr(servers: str, writer: Any) -> None:
    strategy = Strategy(
        value=Debezium(Json(Customer)), reduce=writer, reduce_err=StreamWriter(sys.stderr)
    )
    options = {"bootstrap_servers": servers, "until_caught_up": True, "log": {"level": "error"}}
    done = kmr.run(strategy, topics=TOPIC, group=type(writer).__name__, **options)
    assert done.failed == 0


async def by_hand(servers: str, url: str, count: int) -> None:
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=servers,
        group_id="by-hand",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    done = 0
    with psycopg.connect(url) as database:
        while done < count:
            upserts: dict[int, dict[str, Any]] = {}
            deletes: dict[int, None] = {}
            for records in (await consumer.getmany(timeout_ms=500, max_records=HAND)).values():
                for record in records:
                    done += 1
                    event = json.loads(record.value)
                    if event["op"] == "d":
                        key = event["before"]["id"]
                        upserts.pop(key, None)
                        deletes[key] = None
                    else:
                        row = event["after"]
                        deletes.pop(row["id"], None)
                        upserts[row["id"]] = row
            with database.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO by_hand VALUES (%(id)s, %(name)s, %(city)s) ON CONFLICT (id) "
                    "DO UPDATE SET name = excluded.name, city = excluded.city",
                    list(upserts.values()),
                )
                cursor.executemany("DELETE FROM by_hand WHERE id = %s", [(key,) for key in deletes])
            database.commit()
            await consumer.commit()
    await consumer.stop()


def alone(host: str, port: int, rows: int) -> None:
    """Insert rows that are ready made into a table as kmr's."""
    with clickhouse_connect.get_client(host=host, port=port) as client:
        client.command(
            "CREATE TABLE alone (id Int64, name String, city String, _version UInt256, _is_deleted UInt8) "
            "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
        )
        version = [number.to_bytes(32, "little") for number in range(rows)]
        table = pa.table(
            {
                "id": pa.array([number % KEYS for number in range(rows)]),
                "name": pa.array([f"customer {number}" for number in range(rows)]),
                "city": pa.array(["Porto"] * rows),
                "_version": pa.array(version, pa.binary(32)),
                "_is_deleted": pa.array([0] * rows, pa.uint8()),
            }
        )
        begun = time.perf_counter()
        for first in range(0, rows, FLUSH // PARTITIONS):
            client.insert_arrow("alone", table.slice(first, FLUSH // PARTITIONS))
        _say("ClickHouse alone", rows, time.perf_counter() - begun)


def _say(name: str, count: int, seconds: float) -> None:
    Console().print(f"{name:28} {count / seconds:>12,.0f} events/s")


def _timed(name: str, count: int, work: Callable[[], object]) -> None:
    begun = time.perf_counter()
    work()
    _say(name, count, time.perf_counter() - begun)


@contextmanager
def _served(*arguments: str, until: str) -> Iterator[str]:
    program = str(Path(sys.executable).with_name("kmr"))
    with subprocess.Popen(
        [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield next(line for line in process.stdout if until in line)
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=400_000)
    count = parser.parse_args().events
    made = events(count)
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kmr-bench-"))
        port, http = free_port(), free_port()
        servers = f"127.0.0.1:{port}"
        serve = ("broker", "serve", "--data", f"{directory}/broker", "--port", str(port))
        stack.enter_context(_served(*serve, until="listening"))
        house = ("clickhouse", "serve", "--data", f"{directory}/clickhouse", "--port", str(http))
        stack.enter_context(_served(*house, until="answers on"))
        postgres = stack.enter_context(PostgresServer())
        asyncio.run(produce(servers, made))
        with psycopg.connect(postgres.url, autocommit=True) as database:
            database.execute("CREATE TABLE by_hand (id bigint PRIMARY KEY, name text, city text)")
        options: dict[str, Any] = {"key": ["id"], "changes": True, "create": True}
        limits: dict[str, Any] = {"max_rows": FLUSH // PARTITIONS, "max_age": 5.0}
        for name, writer in (
            (
                "kmr into PostgreSQL",
                PostgresWriter("by_kmr", url=postgres.url, **options, **limits),
            ),
            (
                "kmr into ClickHouse",
                ClickHouseWriter("by_kmr", url=f"http://127.0.0.1:{http}", **options, **limits),
            ),
        ):
            _timed(name, count, partial(by_kmr, servers, writer))
        _timed(
            "by hand into PostgreSQL",
            count,
            lambda: asyncio.run(by_hand(servers, postgres.url, count)),
        )
        with psycopg.connect(postgres.url) as database:
            found = [
                database.execute(f"SELECT id, name, city FROM {table} ORDER BY id").fetchall()
                for table in ("by_kmr", "by_hand")
            ]
        assert found[0] == found[1], "the tables differ"
        alone("127.0.0.1", http, count)


if __name__ == "__main__":
    main()
