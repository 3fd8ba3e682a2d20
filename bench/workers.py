"""`python -m bench.workers`: what `--workers 2` gains where a map uses a whole processor.

A per-record map that computes for some 50 µs reads one topic, with one worker and with two, in turn.
The clock runs while all workers have partitions, from the first settled record until four fifths are
settled: neither the start nor the last partition counts.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from rich.console import Console
from rich.table import Table

from bench.consume import NullWriter
from demo.processes import Children
from kmr import Strategy, map_record
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.observe.status import WorkerStatus

if TYPE_CHECKING:
    from demo.processes import Child
    from kmr.record import Record

PARTITIONS = 4
TOPIC = "bench-workers"
RECORDS = 300_000
_VALUE = b"x" * 100
_ROUNDS_OF_HASH = 100
_INTERVAL = 0.1  # seconds


@map_record
def compute(record: Record) -> dict[str, Any]:
    """Hold the interpreter for some 50 µs."""
    digest = record.value or b""
    for _ in range(_ROUNDS_OF_HASH):
        digest = hashlib.blake2s(digest).digest()
    return {"offset": record.offset, "digest": digest}


strategy = Strategy(compute, [NullWriter()])


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the medians count")
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more records")
    options = parser.parse_args()
    records = round(RECORDS * options.scale)
    directory = Path(tempfile.mkdtemp(prefix="kmr-bench-"))
    rates: dict[int, list[float]] = {1: [], 2: []}
    try:
        async with Children(directory / "logs") as children:
            port = await start_broker(children, directory)
            async with BatchProducer(f"127.0.0.1:{port}", TOPIC) as producer:
                for at, start in enumerate(range(0, records, 1_000)):
                    count = min(1_000, records - start)
                    await producer.send([_VALUE] * count, partition=at % PARTITIONS)
            for _ in range(options.rounds):
                for workers, found in rates.items():
                    found.append(await rate_of(children, port, workers, records))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report(rates)


async def start_broker(children: Children, directory: Path) -> int:
    """Start a broker; return its port."""
    port = free_port()
    broker = await children.start(
        "broker",
        *("broker", "serve", "--data", str(directory / "broker"), "--port", str(port)),
        *("--partitions", str(PARTITIONS)),
    )
    await children.wait_for_port(broker, port)
    return port


async def rate_of(children: Children, broker_port: int, workers: int, records: int) -> float:
    """Return the records per second of so many workers, in a new group."""
    group, port = uuid.uuid4().hex, free_port()
    command = await children.start(
        f"workers-{group}",
        *("run", "bench.workers:strategy", "--topic", TOPIC, "--group", group),
        *("--bootstrap-servers", f"127.0.0.1:{broker_port}", "--workers", str(workers)),
        *("--http-port", str(port)),
    )
    url = f"http://127.0.0.1:{port}/status"
    status = await until(command, url, lambda now: has_begun(now, workers))
    began, first = time.perf_counter(), status.settled
    status = await until(command, url, lambda now: now.settled >= 0.8 * records)
    rate = (status.settled - first) / (time.perf_counter() - began)
    await command.stop()
    return rate


def has_begun(status: WorkerStatus, workers: int) -> bool:
    """Whether all workers have partitions, and records are settled."""
    working = [each for each in status.workers if each.partitions]
    return status.settled > 0 and (workers == 1 or len(working) == workers)


async def until(command: Child, url: str, condition: Any) -> WorkerStatus:
    """Return the first status that meets the condition."""
    while True:
        command.check()
        try:
            status = await anyio.to_thread.run_sync(ask, url)
        except urllib.error.URLError:
            status = None
        if status is not None and condition(status):
            return status
        await anyio.sleep(_INTERVAL)


def ask(url: str) -> WorkerStatus:
    """Ask for the status."""
    with urllib.request.urlopen(url, timeout=10) as response:
        return msgspec.json.decode(response.read(), type=WorkerStatus)


def report(rates: dict[int, list[float]]) -> None:
    """Print the rates, and what two workers settle for each record of one."""
    medians = {workers: statistics.median(found) for workers, found in rates.items()}
    table = Table(title="A CPU-bound map of one record", title_justify="left", header_style="dim")
    for heading in ("workers", "records/s", "min .. max", "x one worker"):
        table.add_column(heading, justify="right")
    for workers, found in rates.items():
        table.add_row(
            str(workers),
            f"{medians[workers]:,.0f}",
            f"{min(found):,.0f} .. {max(found):,.0f}",
            f"{medians[workers] / medians[1]:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    anyio.run(main)
