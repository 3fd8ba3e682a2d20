"""`python -m bench.spark_engine`: the Spark engine on one topic.

Four partitions of 100-byte records, a session on `local[2]`. Rates are records over the seconds of the
micro-batches that read them (planning and checkpoint included), medians of several rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import clickhouse_connect
import pyspark
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.spark_runs import QUERIES, SMALL, SMALL_BATCHES
from demo.processes import Children
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.spark.jvm import JvmNotFound, find_jvm

if TYPE_CHECKING:
    from collections.abc import Sequence

MASTER: Final = "local[2]"
PARTITIONS: Final = 4
VALUE: Final = b"x" * 100
TOPIC, SMALL_TOPIC = "bench", "bench-small"
DDL: Final = (
    "CREATE TABLE kmr_consumer_ingest (`partition` UInt32, `offset` UInt64, `timestamp` DateTime) "
    "ENGINE = MergeTree PRIMARY KEY (partition, offset, timestamp) "
    "SETTINGS non_replicated_deduplication_window = 10000"
)


@dataclass(frozen=True)
class Bench:
    """Options of every session."""

    servers: str
    clickhouse_url: str
    directory: Path
    records: int

    async def fill(self) -> None:
        """Make the topics and the table."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            topics = [NewTopic(name, PARTITIONS, 1) for name in (TOPIC, SMALL_TOPIC)]
            await admin.create_topics(topics)
        finally:
            await admin.close()
        for topic, records, size in (
            (TOPIC, self.records, 10_000),
            (SMALL_TOPIC, SMALL * SMALL_BATCHES, SMALL // PARTITIONS),
        ):
            async with BatchProducer(self.servers, topic) as producer:
                for chunk in range(records // size):
                    await producer.send([VALUE] * size, partition=chunk % PARTITIONS)
        client = clickhouse_connect.get_client(dsn=self.clickhouse_url)
        client.command(DDL)
        client.close()

    def session(self, queries: Sequence[str], rounds: int) -> dict[str, Any]:
        """One session with its rounds, in a process of its own. Raises CalledProcessError."""
        command = [sys.executable, "-m", "bench.spark_runs", "--master", MASTER]
        command += ["--bootstrap-servers", self.servers, "--clickhouse-url", self.clickhouse_url]
        command += ["--topic", TOPIC, "--small-topic", SMALL_TOPIC, "--rounds", str(rounds)]
        command += ["--directory", str(self.directory), "--records", str(self.records)]
        command += ["--queries", *queries]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise subprocess.CalledProcessError(
                done.returncode, command, done.stdout, done.stderr[-2_000:]
            )
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the medians count")
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more records")
    options = parser.parse_args()
    console = Console(width=110)
    try:
        find_jvm()
    except JvmNotFound as error:
        console.print(f"Spark is not measured: {error}", soft_wrap=True)
        return
    directory = Path(tempfile.mkdtemp(prefix="kmr-bench-"))
    try:
        async with Children(directory / "logs") as children:
            bench = await start(children, directory, round(2_000_000 * options.scale))
            await anyio.to_thread.run_sync(measure, bench, console, options.rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def start(children: Children, directory: Path, records: int) -> Bench:
    """The servers, and a topic on them."""
    broker_port, clickhouse_port = free_port(), free_port()
    broker = await children.start(
        "broker",
        *("broker", "serve", "--data", str(directory / "broker"), "--port", str(broker_port)),
    )
    clickhouse = await children.start(
        "clickhouse",
        *("clickhouse", "serve", "--data", str(directory / "ch"), "--port", str(clickhouse_port)),
    )
    await children.wait_for_port(broker, broker_port)
    await children.wait_for_port(clickhouse, clickhouse_port)
    bench = Bench(
        f"127.0.0.1:{broker_port}", f"http://127.0.0.1:{clickhouse_port}", directory, records
    )
    await bench.fill()
    return bench


def measure(bench: Bench, console: Console, rounds: int) -> None:
    """Measure in one session; the start of a session in several."""
    ours = bench.session(QUERIES, rounds)
    starts = [ours["session"]]
    starts += [bench.session(["null"], 0)["session"] for _ in range(rounds - 1)]
    report(console, bench.records, ours)
    console.print(f"start of a session, {MASTER}: {statistics.median(starts):.1f} s")


def report(console: Console, records: int, ours: dict[str, Any]) -> None:
    """Print the table: rates, and the cost of a micro-batch."""
    shown = Table(
        title=f"{records:,} records of 100 bytes, {PARTITIONS} partitions, {MASTER}, Spark "
        f"{pyspark.__version__}, {platform.python_implementation()} {platform.python_version()}, "
        f"{os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}",
        title_justify="left",
        header_style="dim",
    )
    for heading in ("what", "median", "min .. max"):
        shown.add_column(heading, justify="left" if heading == "what" else "right")
    for name, label in (
        ("null", "engine -> null sink, records/s"),
        ("clickhouse", "engine -> ClickHouse, records/s"),
    ):
        rates = [records / seconds for seconds in ours[name]]
        cells = [f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f} .. {max(rates):,.0f}"]
        shown.add_row(label, *cells)
    for name, label in (
        ("empty", "micro-batch of 0 records, ms"),
        ("small", f"micro-batch of {SMALL:,} records, ms"),
    ):
        costs = [seconds * 1000 for seconds in ours[name]]
        cells = [f"{statistics.median(costs):,.0f}", f"{min(costs):,.0f} .. {max(costs):,.0f}"]
        shown.add_row(label, *cells)
    console.print(shown)


if __name__ == "__main__":
    anyio.run(main)
