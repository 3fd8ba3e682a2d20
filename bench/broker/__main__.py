"""`python -m bench.broker`: the bundled broker's speed, beside Apache Kafka's, in one run.

Both leave it to the system when records reach the disk (`--fsync os`, Apache Kafka's default), except
where the flush policies are compared. Medians of several rounds, in which the servers take turns.
"""

from __future__ import annotations

import argparse
import logging
import platform
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from rich.console import Console

from bench.broker import report, workloads
from bench.broker.measuring import Figures, in_turn
from bench.broker.restart import starts, starts_in_process
from bench.broker.servers import NoKafka, apache_kafka, ours

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rich.table import Table

    from bench.broker.payload import Codec
    from bench.broker.servers import Server

SIZES: Final = (100, 1_000)
ACKS: Final = ("1", "all")
CODECS: Final[tuple[Codec, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")
CONNECTIONS: Final = (1, 4, 16, 64)
_RECORDS: Final = {100: 600_000, 1_000: 150_000}
_CROWD: Final = 20_000_000
PARTS: Final = (
    "throughput",
    "flush-policies",
    "raw",
    "round-trips",
    "one-processor",
    "connections",
    "waiting",
    "crowd",
    "partitions",
    "start",
)


class Bench:
    """One run: the servers that it compares, and what it prints."""

    def __init__(self, console: Console, options: argparse.Namespace, directory: Path) -> None:
        self._console = console
        self._rounds: int = options.rounds
        self._scale: float = options.scale
        self._gigabytes: float = options.gigabytes
        self._directory = directory
        self._peaks: dict[str, dict[str, float]] = {}

    async def run(self, parts: Sequence[str], *, with_kafka: bool) -> None:
        """Start the servers, measure the parts, print a table after each."""
        async with AsyncExitStack() as stack:
            kmr = await stack.enter_async_context(ours(self._directory / "os", "os"))
            servers = [kmr]
            if with_kafka:
                try:
                    servers.append(
                        await stack.enter_async_context(apache_kafka(self._directory / "kafka"))
                    )
                except NoKafka as error:
                    self._console.print(f"Apache Kafka is not measured: {error}", highlight=False)
            for server in servers:
                await workloads.warm_up(server)
            for part in parts:
                if part not in ("flush-policies", "start"):
                    await self._measure(part, servers)
        if "flush-policies" in parts:
            async with AsyncExitStack() as stack:
                policies = [
                    await stack.enter_async_context(
                        ours(self._directory / each, each, f"--fsync {each}")
                    )
                    for each in ("os", "interval", "always")
                ]
                await self._measure("flush-policies", policies)
        if "start" in parts:
            found = await starts_in_process(self._directory / "in process")
            found += await starts(self._directory / "start", self._gigabytes)
            title = (
                f"start, until the first answer; after a stop with {self._gigabytes:g} GB of log"
            )
            self._show(title, report.starting(found))
        if self._peaks:
            self._show("most memory at a time, MB", report.memory(self._peaks))

    async def _measure(self, part: str, servers: Sequence[Server]) -> None:
        for server in servers:
            server.forget_peak()
        measure: Callable[[Sequence[Server]], Awaitable[None]] = getattr(
            self, f"_{part.replace('-', '_')}"
        )
        await measure(servers)
        self._peaks[part] = {server.name: server.peak_mb for server in servers}

    async def _throughput(self, servers: Sequence[Server]) -> None:
        for size in SIZES:
            figures = Figures()
            for acks, codec in product(ACKS, CODECS):
                workload = partial(
                    workloads.throughput,
                    figures,
                    size=size,
                    acks=acks,
                    codec=codec,
                    records=self._scaled(_RECORDS[size]),
                )
                await in_turn(servers, self._rounds, workload)
            title = f"one librdkafka client (Python), {size}-byte records, 4 partitions"
            self._show(title, report.rates(figures, size=size))

    async def _flush_policies(self, servers: Sequence[Server]) -> None:
        for size in SIZES:
            figures = Figures()
            for acks in ACKS:
                workload = partial(
                    workloads.throughput,
                    figures,
                    size=size,
                    acks=acks,
                    codec="none",
                    records=self._scaled(_RECORDS[size]),
                )
                await in_turn(servers, self._rounds, workload)
            trips = partial(workloads.round_trips, figures, count=self._scaled(500))
            await in_turn(servers, self._rounds, trips)
            title = f"flush policies, one librdkafka client, {size}-byte records"
            self._show(title, report.rates(figures, size=size))

    async def _raw(self, servers: Sequence[Server]) -> None:
        for size in SIZES:
            figures = Figures()
            for per_batch, records in ((30, 1_000_000), (800, 4_000_000)):
                workload = partial(
                    workloads.raw_throughput,
                    figures,
                    size=size,
                    per_batch=per_batch,
                    records=self._scaled(records if size < 500 else records // 4),
                )
                await in_turn(servers, self._rounds, workload)
            title = f"one client on the protocol itself, {size}-byte records, 5 requests in flight"
            self._show(title, report.rates(figures, size=size))

    async def _round_trips(self, servers: Sequence[Server]) -> None:
        figures = Figures()
        workload = partial(workloads.round_trips, figures, count=self._scaled(5_000))
        await in_turn(servers, self._rounds, workload)
        title = (
            "one 100-byte record a round trip, acks=1 (the seeds' toy broker in memory: "
            f"{report.SEED_ROUND_TRIP_US} µs)"
        )
        self._show(title, report.waits(figures))

    async def _one_processor(self, servers: Sequence[Server]) -> None:
        throughput, trips = Figures(), Figures()

        async def measure(server: Server) -> None:
            with server.on_one_processor():
                await workloads.raw_throughput(
                    throughput, server, size=100, per_batch=30, records=self._scaled(1_000_000)
                )
                await workloads.round_trips(trips, server, count=self._scaled(5_000))

        await in_turn(servers, self._rounds, measure)
        title = "server and client on one processor: 100-byte records, 5 requests in flight"
        self._show(title, report.rates(throughput, size=100))
        title = "server and client on one processor: one 100-byte record a round trip, acks=1"
        self._show(title, report.waits(trips))

    async def _connections(self, servers: Sequence[Server]) -> None:
        figures = Figures()
        for number in CONNECTIONS:
            workload = partial(
                workloads.connections, figures, number=number, count=self._scaled(20_000)
            )
            await in_turn(servers, self._rounds, workload)
        title = "connections with one request of 30 100-byte records in flight each"
        self._show(title, report.waits(figures))

    async def _waiting(self, servers: Sequence[Server]) -> None:
        figures = Figures()
        workload = partial(workloads.waiting, figures, partitions=100, count=self._scaled(1_000))
        await in_turn(servers, self._rounds, workload)
        title = "one client on the protocol itself waits with 100 partitions without records, 5 ms a fetch"
        self._show(title, report.rates(figures, of="request"))

    async def _crowd(self, servers: Sequence[Server]) -> None:
        figures = Figures()
        for path, per_batch in (("raw", 30), ("raw", 800), ("librdkafka", 30), ("librdkafka", 800)):
            for server in servers:
                # Apache Kafka is given fewer: the figures are rates.
                records = self._scaled(_CROWD if server is servers[0] else _CROWD // 5)
                await workloads.crowd(
                    figures, server, records=records, per_batch=per_batch, path=path
                )
        title = (
            f"{self._scaled(_CROWD):,} 100-byte records, 10 partitions, 10 producers and 10 consumers "
            f"(the seeds' toy broker in memory, batches of 30: {report.SEED_RATE:,}/s)"
        )
        self._show(title, report.rates(figures, size=100, shares=True))

    async def _partitions(self, servers: Sequence[Server]) -> None:
        figures = Figures()
        workload = partial(
            workloads.many_partitions,
            figures,
            topics=10,
            partitions=100,
            records=self._scaled(1_000_000),
        )
        await in_turn(servers, self._rounds, workload)
        self._show("many partitions, 100-byte records", report.rates(figures, size=100))

    def _show(self, title: str, table: Table) -> None:
        self._console.print(f"\n{title}", highlight=False)
        self._console.print(table)

    def _scaled(self, number: int) -> int:
        return max(100, round(number * self._scale))


def main() -> int:
    """Measure and print; 0, or 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the medians count")
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more records")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="of log, to start with")
    parser.add_argument("--without-kafka", action="store_true", help="only our own broker")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(
        logging.CRITICAL
    )  # it looks whether Apache Kafka is up yet
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.python_implementation()} "
        f"{platform.python_version()}, {platform.machine()}, medians of {options.rounds} rounds",
        highlight=False,
    )
    directory = Path(tempfile.mkdtemp(prefix="kmr-bench-"))
    try:
        bench = Bench(console, options, directory)
        anyio.run(partial(bench.run, options.only or PARTS, with_kafka=not options.without_kafka))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
