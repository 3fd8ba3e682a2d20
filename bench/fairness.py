"""Latency of live partitions beside one with a long backlog: `python -m bench.fairness [--long]`.

One worker reads four partitions. On three of them a record is produced every 20 ms; its latency is the
time from its timestamp until it was flushed to the sink. First nothing else happens; then the fourth
partition has 1,000,000 records waiting (`--long`: 10,000,000), and it is measured until all are through.
Producer and worker share one process, so the latencies are rather too high than too low.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio
import numpy as np
import structlog
from rich.console import Console

from demo.processes import Children
from kmr import Strategy, map_batch
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.service.process import freeze_modules, keep_freed_memory
from kmr.settings import Settings
from kmr.types import Reducer
from kmr.worker import Worker

if TYPE_CHECKING:
    import pyarrow as pa

    from kmr.types import Rows


TOPIC = "fairness"
BACKLOG, *LIVE = range(4)
INTERVAL = 0.02
BASELINE = 10.0
MAX_AGE = 0.1
CHUNK = 10_000
VALUE = b"x" * 100


@map_batch
def locate(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The three columns, as they are."""
    return batch.select(["partition", "offset", "timestamp", "kmr_offset"])


@dataclass
class Seen:
    """Records that reached the sink: latencies of live ones in seconds, and the number from the backlog.

    Attributes:
        since: time in seconds; live records that are older were left by an earlier measurement.
    """

    since: float = math.inf
    latencies: list[float] = field(default_factory=list)
    backlog: int = 0


class LatencyWriter(Reducer):
    """Notes how old live rows are when they are flushed."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(max_rows=131_072, max_age=MAX_AGE)
        self.seen = seen
        self.reset()

    def __deepcopy__(self, memo: object) -> Self:
        """A copy that notes in the same place."""
        return copy.copy(self)

    def add(self, rows: Rows) -> None:
        """Collect."""
        self._added.append(rows)

    def reset(self) -> None:
        """Forget."""
        self._added: list[Rows] = []

    async def flush(self) -> None:
        """Note."""
        now = time.time()
        for rows in self._added:
            live = rows.table.column("partition").to_numpy() != BACKLOG
            times = rows.table.column("timestamp").to_numpy().astype("datetime64[us]")
            stamps = times[live].astype(np.int64) / 1e6
            self.seen.latencies += (now - stamps[stamps >= self.seen.since]).tolist()
            self.seen.backlog += len(rows) - int(live.sum())


@dataclass(frozen=True)
class Latency:
    """Of live records, in seconds."""

    name: str
    median: float
    p99: float
    longest: float
    seconds: float
    """How long it was measured."""

    @classmethod
    def of(cls, name: str, latencies: list[float], seconds: float) -> Latency:
        """Summarise."""
        p99 = float(np.percentile(latencies, 99))
        return cls(name, statistics.median(latencies), p99, max(latencies), seconds)


async def measure_fairness(backlog: int) -> tuple[Latency, Latency]:
    """The latency of live partitions, without and with a backlog of so many records beside them."""
    directory = Path(tempfile.mkdtemp(prefix="kmr-fairness-"))
    try:
        async with Children(directory / "logs") as children:
            port = free_port()
            broker = await children.start(
                "broker",
                *("broker", "serve", "--data", str(directory / "broker"), "--port", str(port)),
                *("--partitions", str(1 + len(LIVE))),
            )
            await children.wait_for_port(broker, port)
            servers = f"127.0.0.1:{port}"
            async with BatchProducer(servers, TOPIC, linger=0.001) as producer:
                await producer.send([b"live"], partition=LIVE[0])  # makes the topic
                await producer.flush()
                alone = await _measure(servers, producer, "alone", 0)
                for _ in range(backlog // CHUNK):
                    await producer.send([VALUE] * CHUNK, partition=BACKLOG)
                await producer.flush()
                beside = await _measure(servers, producer, "beside the backlog", backlog)
            return alone, beside
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _measure(servers: str, producer: BatchProducer, name: str, backlog: int) -> Latency:
    seen = Seen()
    settings = Settings(topics=(TOPIC,), group="fairness", bootstrap_servers=servers)
    worker = Worker(Strategy(locate, [LatencyWriter(seen)]), settings)

    async def live() -> None:
        while True:
            for partition in LIVE:
                await producer.send([b"live"], partition=partition)
            await anyio.sleep(INTERVAL)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await worker.ready()
        seen.since, started = time.time(), time.monotonic()
        async with anyio.create_task_group() as producing:
            producing.start_soon(live)
            if not backlog:
                await anyio.sleep(BASELINE)
            while seen.backlog < backlog:  # noqa: ASYNC110  samples the clock
                await anyio.sleep(MAX_AGE)
            producing.cancel_scope.cancel()
        took = time.monotonic() - started
        worker.shutdown("done")
    return Latency.of(name, seen.latencies, took)


def report(console: Console, alone: Latency, beside: Latency) -> None:
    """Print both, and the ratio."""
    for latency in (alone, beside):
        console.print(
            f"live partitions {latency.name}: median {latency.median * 1e3:.0f} ms, "
            f"p99 {latency.p99 * 1e3:.0f} ms, longest {latency.longest * 1e3:.0f} ms "
            f"(measured for {latency.seconds:.1f} s)",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"beside a backlog: median x {beside.median / alone.median:.1f}, "
        f"p99 x {beside.p99 / alone.p99:.1f}",
        highlight=False,
        soft_wrap=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="a backlog of 10,000,000 records")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    keep_freed_memory()  # as `kmr run` does
    freeze_modules()
    backlog = 10_000_000 if options.long else 1_000_000
    alone, beside = anyio.run(measure_fairness, backlog)
    report(Console(), alone, beside)


if __name__ == "__main__":
    main()
