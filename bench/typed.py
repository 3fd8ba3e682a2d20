"""`python -m bench.typed`: JSON events are decoded, filtered, and dropped or written to ClickHouse.

Of 9 fields 6 are used; events with status 404 are filtered; 8 columns are written. The clock runs from
the first record received to the last one settled, the CPU time includes the start.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from bench.consume import FLUSH_ROWS, Job, NullWriter, run_worker
from demo.processes import Children, free_port
from kmr import Json, Record, Strategy, map_batch, map_record
from kmr.broker.client import BatchProducer
from kmr.sinks import ClickHouseWriter

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS = 4
TABLE = "hits"
COLUMNS = ["ts", "path", "status", "ms", "bytes", "country", "partition", "offset"]
DDL = (
    f"CREATE TABLE {TABLE} (ts DateTime64(6, 'UTC'), path String, status Int64, ms Nullable(Float64), "
    "bytes Int64, country LowCardinality(String), `partition` UInt32, `offset` UInt64) "
    "ENGINE = MergeTree ORDER BY (partition, offset) "
    "SETTINGS non_replicated_deduplication_window = 10000"
)


class Hit(msgspec.Struct):
    """The fields that are used."""

    ts: datetime
    path: str
    status: int
    ms: float | None
    bytes: int
    country: str


class Row(msgspec.Struct):
    """What is written."""

    ts: datetime
    path: str
    status: int
    ms: float | None
    bytes: int
    country: str
    partition: int
    offset: int


@map_record
def by_hand(record: Record) -> dict[str, Any] | None:
    """What everybody writes first."""
    hit = json.loads(record.value or b"null")
    if hit["status"] == 404:
        return None
    return {
        "ts": datetime.fromisoformat(hit["ts"]),
        "path": hit["path"],
        "status": hit["status"],
        "ms": hit["ms"],
        "bytes": hit["bytes"],
        "country": hit["country"],
        "partition": record.partition,
        "offset": record.offset,
    }


@map_record
def typed(hit: Hit, record: Record) -> Row | None:
    """The same with types."""
    if hit.status == 404:
        return None
    return Row(
        hit.ts,
        hit.path,
        hit.status,
        hit.ms,
        hit.bytes,
        hit.country,
        record.partition,
        record.offset,
    )


@map_batch
def columns(hits: pa.RecordBatch) -> pa.RecordBatch:
    """The same as columns."""
    return hits.select(COLUMNS).filter(pc.field("status") != 404)


def kmr(job: Job, function: Callable[..., Any], value: Json | None = None) -> float:
    """This project's worker."""
    sink: Any = NullWriter()
    if job.clickhouse_url is not None:
        sink = ClickHouseWriter(TABLE, url=job.clickhouse_url, max_rows=FLUSH_ROWS, max_age=0.5)
    return run_worker(job, Strategy(map=function, value=value, reduce=[sink]))


def loop(job: Job) -> float:
    """The loop by hand: confluent-kafka's consume, msgspec, inserts by columns."""
    from confluent_kafka import Consumer

    decode = msgspec.json.Decoder(Hit).decode
    client = clickhouse_connect.get_client(dsn=job.clickhouse_url) if job.clickhouse_url else None
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap_servers,
            "group.id": job.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([job.topic])
    rows: list[tuple[Any, ...]] = []
    seen, started = 0, 0.0
    while seen < job.records:
        messages = consumer.consume(10_000, timeout=0.2)
        if messages and not started:
            started = time.perf_counter()
        for message in messages:
            hit = decode(message.value() or b"")
            if hit.status != 404:
                rows.append((*msgspec.structs.astuple(hit), message.partition(), message.offset()))
        seen += len(messages)
        if len(rows) >= FLUSH_ROWS or (rows and seen >= job.records):
            if client is not None:
                client.insert(
                    TABLE,
                    [list(column) for column in zip(*rows, strict=True)],
                    column_names=COLUMNS,
                    column_oriented=True,
                )
            consumer.commit(asynchronous=False)
            rows = []
    seconds = time.perf_counter() - started
    consumer.close()
    return seconds


CONTENDERS: dict[str, Callable[[Job], float]] = {
    "kmr per record, json.loads": lambda job: kmr(job, by_hand),
    "kmr per record, Json(Hit)": lambda job: kmr(job, typed, Json(Hit)),
    "kmr per batch, Json(Hit)": lambda job: kmr(job, columns, Json(Hit)),
    "confluent-kafka and msgspec by hand": loop,
}


def events(count: int, size: int) -> list[bytes]:
    """Make events of about `size` bytes; a quarter of them has status 404."""
    chance = random.Random(size)
    agent = "x" * (size - 168)
    return [
        json.dumps(
            {
                "ts": f"2026-01-{1 + i % 28:02d}T10:{i % 60:02d}:{i * 7 % 60:02d}.{i % 1000:03d}Z",
                "method": chance.choice(["GET", "POST"]),
                "path": f"/api/v1/items/{i % 5000}",
                "status": chance.choice([200, 200, 404, 500]),
                "ms": round(chance.random() * 200, 2),
                "bytes": chance.randint(100, 90_000),
                "country": chance.choice(["DE", "FR", "US"]),
                "user": f"u{i % 100_000:06d}",
                "agent": f"example/1.0{agent}",
            },
            separators=(",", ":"),
        ).encode()
        for i in range(count)
    ]


async def fill(broker: str, topic: str, size: int, records: int) -> None:
    """Produce a topic of events."""
    made = events(10_000, size)
    async with BatchProducer(broker, topic) as producer:
        for start in range(0, records, 10_000):
            some = made[: min(10_000, records - start)]
            await producer.send(some, partition=start // 10_000 % PARTITIONS)


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the medians count")
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more records")
    options = parser.parse_args()
    sizes = {200: round(1_000_000 * options.scale), 1_500: round(300_000 * options.scale)}
    console = Console()
    with tempfile.TemporaryDirectory(prefix="kmr-bench-typed-") as directory:
        async with Children(Path(directory) / "logs") as children:
            ports = free_port(), free_port()
            serve = ("serve", "--data")
            broker = await children.start(
                "broker",
                *("broker", *serve, f"{directory}/broker", "--port", str(ports[0])),
                *("--partitions", str(PARTITIONS)),
            )
            clickhouse = await children.start(
                "clickhouse", "clickhouse", *serve, f"{directory}/ch", "--port", str(ports[1])
            )
            await children.wait_for_port(broker, ports[0])
            await children.wait_for_port(clickhouse, ports[1])
            address, url = f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
            for size, records in sizes.items():
                await fill(address, f"events-{size}", size, records)
            await anyio.to_thread.run_sync(measure, console, address, url, sizes, options.rounds)


def measure(console: Console, address: str, url: str, sizes: dict[int, int], rounds: int) -> None:
    """Run every contender `rounds` times in turn; print the table."""
    found: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    for number in range(1, rounds + 1):
        for size, records in sizes.items():
            for sink in ("null", "ClickHouse"):
                for name in CONTENDERS:
                    console.print(f"[dim]round {number}: {name}, {size} bytes, {sink}[/dim]")
                    done = consume(name, address, url if sink != "null" else None, size, records)
                    found.setdefault((size, sink, name), []).append(done)
    shown = Table(header_style="dim")
    for heading in ("contender", "bytes", "sink", "records/s", "min .. max", "MB/s", "CPU us"):
        shown.add_column(heading, justify="left" if heading == "contender" else "right")
    for (size, sink, name), runs in found.items():
        rates = [run["records"] / run["seconds"] for run in runs]
        rate = statistics.median(rates)
        cpu = statistics.median(run["cpu"] / run["records"] for run in runs) * 1e6
        shown.add_row(
            *(name, str(size), sink, f"{rate:,.0f}", f"{min(rates):,.0f} .. {max(rates):,.0f}"),
            *(f"{rate * size / 1e6:.0f}", f"{cpu:.2f}"),
        )
    console.print(shown)


def consume(name: str, address: str, url: str | None, size: int, records: int) -> dict[str, Any]:
    """Run one contender once, in a process of its own."""
    if url is not None:
        client = clickhouse_connect.get_client(dsn=url)
        client.command(f"DROP TABLE IF EXISTS {TABLE}")
        client.command(DDL)
    job = Job(address, f"events-{size}", uuid.uuid4().hex, records, url)
    command = [sys.executable, "-m", "bench.typed", "--run", name, json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {name} failed:\n{done.stderr[-2_000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run(name: str, job: str) -> None:
    """Consume; print records, seconds, and the CPU time of the process, its start included."""
    given = Job(**json.loads(job))
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds = CONTENDERS[name](given)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    json.dump({"records": given.records, "seconds": seconds, "cpu": cpu}, sys.stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(*sys.argv[2:4])
    else:
        anyio.run(main)
