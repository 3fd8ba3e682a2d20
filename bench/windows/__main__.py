"""`python -m bench.windows`: hits for each minute and path, beside Quix Streams, and a restart.

- 1,000,000 JSON records of 10 minutes and 10,000 keys, into a topic and into ClickHouse: from the first
  record to the last row written. Afterwards the rows are counted. kmr writes into ClickHouse exactly once,
  into the topic at least once; Quix Streams at least once.
- a worker that starts while a window of an hour is open, with 10,000 records a second: until it has read
  all of them again.

Quix Streams is installed from PyPI into an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import clickhouse_connect
from aiokafka import AIOKafkaConsumer
from rich.console import Console

from bench.peers import make_environment
from bench.process import Taken
from bench.servers import start_servers
from bench.table import print_table
from bench.windows.job import DDL, PARTITIONS, TABLE, Log, WindowJob
from demo.processes import Children
from kmr.broker.client import BatchProducer

if TYPE_CHECKING:
    from collections.abc import Sequence

KMR, QUIX = "kmr", "Quix Streams"
SINKS: Final = ("topic", "ClickHouse")
PER_SECOND: Final = 10_000


async def fill(address: str, topic: str, log: Log, *, closed: bool) -> None:
    """Produce a log; `closed`: with the records that close its last windows."""
    async with BatchProducer(address, topic, compression="lz4") as producer:
        for partition, keys, values in log.chunks():
            await producer.send(values, keys, partition=partition)
        await producer.flush()
        if closed:
            for partition, keys, values in log.ends():
                await producer.send(values, keys, partition=partition)


class Bench:
    """Runs contenders against one broker and one ClickHouse; `peers` is the interpreter of Quix Streams."""

    def __init__(self, address: str, url: str, peers: str) -> None:
        self._address = address
        self._url = url
        self._peers = peers

    def count(self, name: str, sink: str, log: Log) -> Taken:
        """Count the windows of a log once; raise SystemExit if rows are missing or are there twice."""
        job = self._job("hits", log, self._url if sink == "ClickHouse" else None)
        if job.clickhouse_url is not None:
            client = clickhouse_connect.get_client(dsn=job.clickhouse_url)
            client.command(f"DROP TABLE IF EXISTS {TABLE}")
            client.command(DDL)
        if name == QUIX:
            taken = _run([self._peers, "-m", "bench.windows.quix"], job)
        else:
            taken = _run([sys.executable, "-m", "bench.windows.worker"], job)
        if job.clickhouse_url is None:
            found = (anyio.run(_end_of, self._address, job.results), log.records)
        else:
            query = f"SELECT count(), sum(hits) FROM {TABLE} WHERE path != 'end'"
            found = tuple(client.query(query).result_rows[0])
        if found != (job.rows, job.records):
            raise SystemExit(
                f"bench: {name} -> {sink}: {found} rows and hits, not {job.rows, job.records}"
            )
        return taken

    def restart(self, log: Log) -> Taken:
        """Read a log into a window that stays open, twice; return what the second time took."""
        job = self._job("hour", log, None)
        command = [sys.executable, "-m", "bench.windows.worker"]
        _run(command, job, "open")
        return _run(command, job, "open")

    def _job(self, topic: str, log: Log, url: str | None) -> WindowJob:
        name = uuid.uuid4().hex
        return WindowJob(
            self._address, topic, name, log.records, url, log.rows(60), f"results-{name}"
        )


def _run(command: Sequence[str], job: WindowJob, *arguments: str) -> Taken:
    whole = [*command, json.dumps(asdict(job)), *arguments]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(command)} failed:\n{done.stderr[-2_000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Taken(**result)


async def _end_of(address: str, topic: str) -> int:
    """Return how many records a topic has."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=address)
    await consumer.start()
    try:
        ends = await consumer.end_offsets(list(consumer.assignment()))
        return sum(ends.values())
    finally:
        await consumer.stop()


def measure(bench: Bench, log: Log, hour: Log, rounds: int) -> None:
    """Run both contenders `rounds` times in turn, then the restart; print the results."""
    console = Console(highlight=False)
    lines = []
    for sink in SINKS:
        found: dict[str, list[Taken]] = {KMR: [], QUIX: []}
        for number in range(1, rounds + 1):
            for name, taken in found.items():
                console.print(f"[dim]round {number}/{rounds}: {name} -> {sink}[/dim]")
                taken.append(bench.count(name, sink, log))
        rates = {
            name: statistics.median(log.records / each.seconds for each in taken)
            for name, taken in found.items()
        }
        for name, taken in found.items():
            cpu = statistics.median(each.cpu / log.records for each in taken) * 1e6
            line = [
                name,
                sink,
                f"{rates[name]:,.0f}",
                f"{cpu:.2f}",
                f"{rates[name] / rates[QUIX]:.1f}",
            ]
            lines.append(line)
    print_table(
        f"{log.records:,} records, {log.keys:,} keys, {log.seconds // 60} minutes, {PARTITIONS} partitions",
        ["contender", "sink", "records/s", "CPU us", "x Quix Streams"],
        lines,
        text=("contender", "sink"),
    )
    again = bench.restart(hour)
    console.print(
        f"restart: {hour.records:,} records of an open hour are read again in {again.seconds:.1f} s "
        f"({hour.records / again.seconds:,.0f} records/s, {again.cpu:.1f} s of processor time)"
    )


async def main() -> None:
    """Start the servers, fill the topics, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the medians count")
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more records")
    parser.add_argument(
        "--peers", type=Path, help="an environment of Quix Streams; default: a new one"
    )
    options = parser.parse_args()
    log = Log(
        round(1_000_000 * options.scale), keys=round(10_000 * min(options.scale, 1)), seconds=600
    )
    hour = Log(round(3600 * PER_SECOND * options.scale), log.keys, seconds=3600)
    with tempfile.TemporaryDirectory(prefix="kmr-bench-windows-") as directory:
        python = str((options.peers or Path(directory) / "peers") / "bin" / "python")
        if options.peers is None:
            python = make_environment(Path(directory) / "peers")
        async with Children(Path(directory) / "logs") as children:
            address, url = await start_servers(children, Path(directory), PARTITIONS)
            await fill(address, "hits", log, closed=True)
            await fill(address, "hour", hour, closed=False)
            bench = Bench(address, url, python)
            await anyio.to_thread.run_sync(measure, bench, log, hour, options.rounds)


if __name__ == "__main__":
    anyio.run(main)
