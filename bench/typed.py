"""`python -m bench.typed`: JSON events are decoded, filtered, and dropped or written to ClickHouse.

`bench.hits` has the contenders. Wall and processor time are those from the first record received to the last
one settled.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import clickhouse_connect
from rich.console import Console

from bench.group import require_group
from bench.hits import CONTENDERS
from bench.job import DDL, TABLE, Job
from bench.peers import PEERS, make_environment
from bench.process import Taken
from bench.servers import start_servers
from bench.table import print_table
from demo.processes import Children
from kmr.broker.client import BatchProducer

PARTITIONS = 4
BASE = "confluent-kafka and msgspec by hand"
RECORDS = dict(
    zip(
        CONTENDERS,
        (1_000_000, 1_500_000, 3_000_000, 6_000_000, 6_000_000, 1_500_000, 60_000),
        strict=True,
    )
)
"""A run takes some seconds: rows wait for half a second at its end, as in all contenders but the peers'."""

PEER_RECORDS = dict.fromkeys(PEERS, 100_000)

SIZES = {200: 1.0, 1_500: 0.15}
"""Bytes of a value, and the share of the records."""


@dataclass(frozen=True)
class Row:
    """One line of the results."""

    size: int
    sink: str
    name: str
    records: int


def rows(scale: float, *, peers: bool) -> list[Row]:
    """Return all lines."""
    return [
        Row(size, sink, name, round(max(records * share, 40_000) * scale))
        for size, share in SIZES.items()
        for sink in ("none", "ClickHouse")
        for name, records in (RECORDS | (PEER_RECORDS if peers else {})).items()
    ]


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
    parser.add_argument(
        "--peers", action="store_true", help="Quix Streams, FastStream and Bytewax, too, from PyPI"
    )
    options = parser.parse_args()
    require_group()
    table = rows(options.scale, peers=options.peers)
    with tempfile.TemporaryDirectory(prefix="kmr-bench-typed-") as directory:
        python = make_environment(Path(directory) / "peers") if options.peers else ""
        async with Children(Path(directory) / "logs") as children:
            address, url = await start_servers(children, Path(directory), PARTITIONS)
            for size in SIZES:
                most = max(row.records for row in table if row.size == size)
                await fill(address, f"events-{size}", size, most)
            await anyio.to_thread.run_sync(measure, address, url, table, options.rounds, python)


def measure(address: str, url: str, table: list[Row], rounds: int, peers: str) -> None:
    """Run every contender `rounds` times in turn; print the table. `peers` is their interpreter."""
    console = Console()
    found: dict[Row, list[Taken]] = {row: [] for row in table}
    for number in range(1, rounds + 1):
        for row in table:
            console.print(
                f"[dim]round {number}/{rounds}: {row.name}, {row.size} bytes -> {row.sink}[/dim]",
                highlight=False,
            )
            found[row].append(consume(row, address, url if row.sink != "none" else None, peers))
    rates = {
        row: statistics.median(row.records / taken.seconds for taken in runs)
        for row, runs in found.items()
    }
    base = {(row.size, row.sink): rate for row, rate in rates.items() if row.name == BASE}
    lines = []
    for row, runs in found.items():
        rate = rates[row]
        all_rates = [row.records / taken.seconds for taken in runs]
        cpu = statistics.median(taken.cpu / row.records for taken in runs) * 1e6
        peak = max(taken.peak_mb for taken in runs)
        lines.append(
            [
                *(row.name, f"{row.size:,}", row.sink, f"{rate:,.0f}"),
                f"{min(all_rates):,.0f} .. {max(all_rates):,.0f}",
                *(f"{rate * row.size / 1e6:,.0f}", f"{cpu:.2f}", f"{peak:,.0f}"),
                f"{rate / base[row.size, row.sink]:.1f}",
            ]
        )
    print_table(
        f"JSON events of 9 fields, {PARTITIONS} partitions; CPU of the consumer's process alone",
        [
            "contender",
            "bytes",
            "sink",
            "records/s",
            "min .. max",
            "MB/s",
            "CPU us",
            "peak MB",
            "x by hand",
        ],
        lines,
        text=("contender", "sink"),
    )


def consume(row: Row, address: str, url: str | None, peers: str) -> Taken:
    """Run one contender once, in a process of its own."""
    if url is not None:
        client = clickhouse_connect.get_client(dsn=url)
        client.command(f"DROP TABLE IF EXISTS {TABLE}")
        client.command(DDL)
    job = Job(address, f"events-{row.size}", uuid.uuid4().hex, row.records, url)
    runs = (peers, "bench.peers") if row.name in PEERS else (sys.executable, "bench.hits")
    command = [runs[0], "-m", runs[1], row.name, json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {row.name} failed:\n{done.stderr[-2_000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Taken(**result)


if __name__ == "__main__":
    anyio.run(main)
