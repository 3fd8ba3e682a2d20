"""`python -m bench.scale`: what grows with partitions and with workers, beside what docs/scale.md computes.

A few records a second go to every partition, so each one has rows at every flush: the most flushes that
`max_age` allows. The sink forgets its ranges after it has counted them, so the costs are those of workers,
of the group and of the broker alone. Each row of the table is a broker and a group of its own.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
from rich.console import Console
from rich.table import Table

from bench.process import cpu_seconds
from bench.workers import until
from demo.processes import Children
from kmr import Strategy
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.sinks import RangeRows, RangeWriter

if TYPE_CHECKING:
    from demo.processes import Child

TOPIC = "bench-scale"
MAX_AGE = 4.0
_SIZES = ("16x1", "128x1", "512x1", "512x4", "1000x4")
_SETTLE = 6.0  # seconds after the assignment that do not count
_EVERY = 1.0  # seconds between two records of a partition


class Forget(RangeWriter):
    """Exactly once as far as the worker is concerned: its ranges are announced, and then forgotten."""

    def has(self, _: RangeRows) -> bool:
        """No range is there."""
        return False

    def write(self, _: RangeRows) -> None:
        """Forget the rows."""


def size_of(record: object) -> dict[str, int]:
    """Make a row of one column."""
    return {"size": len(record.value)}  # type: ignore[attr-defined]


strategy = Strategy(map=size_of, reduce=Forget(max_age=MAX_AGE, max_rows=100_000))


class Measured(NamedTuple):
    """One size: seconds, figures per second, cores, and bytes of the largest worker."""

    partitions: int
    workers: int
    assigned: float
    flushes: float
    commits: float
    worker_cpu: float
    broker_cpu: float
    resident: int
    drain: float


async def measure(partitions: int, workers: int, seconds: float) -> Measured:
    """Start a broker and a group, watch them, end the group."""
    directory = Path(tempfile.mkdtemp(prefix="kmr-scale-"))
    try:
        async with Children(directory / "logs") as children:
            port, http, status = free_port(), free_port(), free_port()
            servers, metrics = f"127.0.0.1:{port}", f"http://127.0.0.1:{http}/metrics"
            broker = await children.start(
                "broker",
                *("broker", "serve", "--data", str(directory / "broker"), "--port", str(port)),
                *("--partitions", str(partitions), "--http-port", str(http)),
            )
            await children.wait_for_port(broker, port)
            async with (
                BatchProducer(servers, TOPIC) as producer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(partial(trickle, producer, partitions))
                begun = time.monotonic()
                group = await children.start(
                    "workers",
                    *("run", "bench.scale:strategy", "--topic", TOPIC, "--group", "scale"),
                    *("--bootstrap-servers", servers, "--workers", str(workers)),
                    *("--http-port", str(status)),
                )
                url = f"http://127.0.0.1:{status}"
                found = await until(
                    group,
                    f"{url}/status",
                    lambda now: len(now.partitions) == partitions and now.ready,
                )
                assigned = time.monotonic() - begun
                await anyio.sleep(_SETTLE)
                pids = [each.pid for each in found.workers if each.pid] or [group.pid]
                before = await figures(f"{url}/metrics", metrics, broker, pids)
                await anyio.sleep(seconds)
                after = await figures(f"{url}/metrics", metrics, broker, pids)
                took = after[0] - before[0]
                flushes, commits, cpu, of_broker = (
                    (b - a) / took for a, b in zip(before[1:], after[1:], strict=True)
                )
                resident = max(resident_bytes(pid) for pid in pids)
                begun = time.monotonic()
                await group.stop()
                drain = time.monotonic() - begun
                tasks.cancel_scope.cancel()
        return Measured(
            partitions, workers, assigned, flushes, commits, cpu, of_broker, resident, drain
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def trickle(producer: BatchProducer, partitions: int) -> None:
    """Send a record to each partition at every interval."""
    while True:
        begun = time.monotonic()
        for partition in range(partitions):
            await producer.send([b"x" * 100], partition=partition)
        await producer.flush()
        await anyio.sleep(max(0.0, _EVERY - (time.monotonic() - begun)))


async def figures(workers: str, broker: str, of: Child, pids: list[int]) -> list[float]:
    """Return the time, flushes, commits, and the processor seconds of the workers and of the broker."""
    flushes = await total(workers, r"kmr_reduce_flushes_total\{[^}]*reduce-1[^}]*\}")
    commits = await total(broker, r'kmr_broker_request_seconds_count\{api="[Oo]ffset_?[Cc]ommit"\}')
    cpu = sum(cpu_seconds(pid) for pid in pids)
    return [time.monotonic(), flushes, commits, cpu, cpu_seconds(of.pid)]


async def total(url: str, series: str) -> float:
    """Return the sum of the series of a page of metrics."""
    text = await anyio.to_thread.run_sync(lambda: urllib.request.urlopen(url).read().decode())
    return sum(float(value) for value in re.findall(rf"^{series} (\S+)$", text, re.MULTILINE))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def report(found: list[Measured]) -> None:
    """Print the measured figures beside the flushes that the model expects."""
    table = Table(title=f"max_age {MAX_AGE:g} s", title_justify="left", header_style="dim")
    for heading in (
        *("partitions", "workers", "assigned s", "flushes/s", "model", "commits/s"),
        *("worker cores", "broker cores", "largest MB", "drain s"),
    ):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(
            *(f"{each.partitions:,}", str(each.workers), f"{each.assigned:.1f}"),
            *(f"{each.flushes:.0f}", f"{each.partitions / (MAX_AGE + _EVERY / 2):.0f}"),
            *(f"{each.commits:.1f}", f"{each.worker_cpu:.2f}", f"{each.broker_cpu:.2f}"),
            *(f"{each.resident / 1e6:.0f}", f"{each.drain:.1f}"),
        )
    Console(width=120).print(table)


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=_SIZES, help="PARTITIONSxWORKERS")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long to watch each size")
    options = parser.parse_args()
    found = []
    for size in options.sizes:
        partitions, workers = map(int, size.split("x"))
        found.append(await measure(partitions, workers, options.seconds))
        print(found[-1], flush=True)
    report(found)


if __name__ == "__main__":
    anyio.run(main)
