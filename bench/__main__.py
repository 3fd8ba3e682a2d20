"""`make bench`: everything in one run on one machine, medians of several rounds, and the ratios."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import clickhouse_connect
from rich.console import Console
from rich.table import Table

from demo.processes import Children
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port

PARTITIONS = 4
VALUE = b"x" * 100
TOPIC = "bench"
DDL = (
    "CREATE TABLE kmr_consumer_ingest (`partition` UInt32, `offset` UInt64, `timestamp` DateTime) "
    "ENGINE = MergeTree PRIMARY KEY (partition, offset, timestamp) "
    "SETTINGS non_replicated_deduplication_window = 10000"
)


@dataclass(frozen=True)
class Row:
    """One line of the results: a contender, where it writes, and how many records it is given."""

    name: str
    sink: str
    records: int


def rows(scale: float) -> list[Row]:
    """The contenders; the slow ones get fewer records, the figures are rates."""
    return [
        Row("kmr per batch", "null", round(4_000_000 * scale)),
        Row("kmr per record", "null", round(2_000_000 * scale)),
        Row("getmany loop", "null", round(1_000_000 * scale)),
        Row("sentry-arroyo", "null", round(500_000 * scale)),
        Row("kmr per batch", "ClickHouse", round(4_000_000 * scale)),
        Row("kmr per batch, at least once", "ClickHouse", round(4_000_000 * scale)),
        Row("kmr per record", "ClickHouse", round(2_000_000 * scale)),
        Row("getmany loop", "ClickHouse", round(1_000_000 * scale)),
        Row("sentry-arroyo", "ClickHouse", round(500_000 * scale)),
    ]


class Bench:
    """Runs contenders against one broker and one ClickHouse."""

    def __init__(self, broker: str, clickhouse_url: str) -> None:
        self._broker = broker
        self._clickhouse_url = clickhouse_url
        self._client = clickhouse_connect.get_client(dsn=clickhouse_url)

    async def fill(self, records: int) -> None:
        """Produce the topic that everybody consumes."""
        async with BatchProducer(self._broker, TOPIC) as producer:
            for start in range(0, records, 10_000):
                chunk = [VALUE] * min(10_000, records - start)
                await producer.send(chunk, partition=start // 10_000 % PARTITIONS)

    def consume(self, row: Row) -> dict[str, Any]:
        """One contender once, in a process of its own."""
        arguments = ["bench.consume", row.name, "--group", uuid.uuid4().hex, "--topic", TOPIC]
        if row.sink == "ClickHouse":
            self._client.command("DROP TABLE IF EXISTS kmr_consumer_ingest")
            self._client.command(DDL)
            arguments += ["--clickhouse-url", self._clickhouse_url]
        return self._run(*arguments, "--records", str(row.records))

    def _run(self, *arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", *arguments, "--bootstrap-servers", self._broker]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise SystemExit(f"bench: {' '.join(arguments)} failed:\n{done.stderr[-2_000:]}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the medians count")
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more records")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kmr-bench-"))
    console = Console()
    try:
        async with Children(directory / "logs") as children:
            await measure(children, directory, console, options.rounds, options.scale)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    await part("bench.workers", "--rounds", str(options.rounds), "--scale", str(options.scale))
    await part("bench.typed", "--rounds", str(options.rounds), "--scale", str(options.scale))
    await part("bench.values")
    await part("bench.broker", "--rounds", str(options.rounds), "--scale", str(options.scale))
    await part("bench.idle")
    await part("bench.fairness")
    await part("bench.calls")
    spark = ["--rounds", str(options.rounds)]
    await part("bench.spark_engine", *spark, "--scale", str(options.scale))
    await part("bench.spark_sink", *spark)


async def part(module: str, *arguments: str) -> None:
    """A part in a process of its own: its JVM must not be there while others are measured."""
    command = [sys.executable, "-m", module, *arguments]
    done = await anyio.run_process(command, stdout=None, stderr=None, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {module} failed")


async def measure(
    children: Children, directory: Path, console: Console, rounds: int, scale: float
) -> None:
    """Start the servers, run every contender `rounds` times in turn, print the table."""
    broker_port, clickhouse_port = free_port(), free_port()
    broker = await children.start(
        "broker",
        *("broker", "serve", "--data", str(directory / "broker"), "--port", str(broker_port)),
        *("--partitions", str(PARTITIONS)),
    )
    clickhouse = await children.start(
        "clickhouse",
        *("clickhouse", "serve", "--data", str(directory / "ch"), "--port", str(clickhouse_port)),
    )
    await children.wait_for_port(broker, broker_port)
    await children.wait_for_port(clickhouse, clickhouse_port)
    bench = Bench(f"127.0.0.1:{broker_port}", f"http://127.0.0.1:{clickhouse_port}")
    table = rows(scale)
    await bench.fill(max(row.records for row in table))
    seconds: dict[Row, list[float]] = {row: [] for row in table}
    peaks: dict[Row, list[float]] = {row: [] for row in table}
    for number in range(1, rounds + 1):
        for row in table:
            console.print(
                f"[dim]round {number}/{rounds}: {row.name} -> {row.sink}[/dim]", highlight=False
            )
            result = await anyio.to_thread.run_sync(bench.consume, row)
            seconds[row].append(result["seconds"])
            peaks[row].append(result["peak_mb"])
    report(console, seconds, peaks)


def report(
    console: Console, seconds: dict[Row, list[float]], peaks: dict[Row, list[float]]
) -> None:
    """The table: rates, the ratio to sentry-arroyo with the same sink, and memory."""
    rates = {row: row.records / statistics.median(times) for row, times in seconds.items()}
    base = {row.sink: rate for row, rate in rates.items() if row.name == "sentry-arroyo"}
    shown = Table(
        title=f"100-byte records, {PARTITIONS} partitions, {datetime.now(UTC):%Y-%m-%d}, "
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}",
        title_justify="left",
        header_style="dim",
    )
    for heading in ("contender", "sink", "records/s", "min .. max", "x sentry-arroyo", "peak MB"):
        shown.add_column(heading, justify="left" if heading in ("contender", "sink") else "right")
    for row, rate in rates.items():
        low, high = row.records / max(seconds[row]), row.records / min(seconds[row])
        shown.add_row(
            row.name,
            row.sink,
            f"{rate:,.0f}",
            f"{low:,.0f} .. {high:,.0f}",
            f"{rate / base[row.sink]:.1f}",
            f"{max(peaks[row]):.0f}",
        )
    console.print(shown)


if __name__ == "__main__":
    anyio.run(main)
