"""Maps that wait for a service: `python -m bench.calls`.

`@map_record(concurrency=64)` with a call of 20 ms can make 64 / 0.02 = 3,200 calls a second in a partition.
Printed is how many of these a worker makes, with an `async def` and with a plain map.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog
from rich.console import Console

from demo.processes import Children
from kmr import Collect, Record, Strategy, map_record
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.settings import Settings
from kmr.worker import Worker

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC = "calls"
CALL = 0.02  # seconds
CONCURRENCY = 64
POSSIBLE = CONCURRENCY / CALL
GOAL = 0.9


@map_record(concurrency=CONCURRENCY)
async def asynchronous(record: Record) -> dict[str, int]:
    """A call of an async client."""
    await anyio.sleep(CALL)
    return {"offset": record.offset}


@map_record(concurrency=CONCURRENCY)
def plain(record: Record) -> dict[str, int]:
    """A call of a client that blocks."""
    time.sleep(CALL)
    return {"offset": record.offset}


async def measure(servers: str, name: str, records: int) -> float:
    """Return the records in a second, from the first rows to the last."""
    seen: list[tuple[float, int]] = []

    def note(table: pa.Table) -> None:
        seen.append((time.monotonic(), table.num_rows))

    function = asynchronous if name == "async" else plain
    strategy = Strategy(function, [Collect(note, max_rows=131_072, max_age=0.05)])
    settings = Settings(topics=(TOPIC,), group=name, bootstrap_servers=servers)
    worker = Worker(strategy, settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await worker.ready()
        begun = time.monotonic()
        while sum(count for _, count in seen) < records:  # noqa: ASYNC110  samples the clock
            await anyio.sleep(0.01)
        worker.shutdown("done")
    return records / (seen[-1][0] - begun)


async def run(partitions: int, seconds: float, console: Console) -> None:
    """Measure both kinds of maps, and print their shares of the possible rate."""
    directory = Path(tempfile.mkdtemp(prefix="kmr-calls-"))
    records = round(POSSIBLE * seconds) * partitions
    try:
        async with Children(directory / "logs") as children:
            port = free_port()
            broker = await children.start(
                "broker",
                *("broker", "serve", "--data", str(directory / "broker"), "--port", str(port)),
                *("--partitions", str(partitions)),
            )
            await children.wait_for_port(broker, port)
            servers = f"127.0.0.1:{port}"
            async with BatchProducer(servers, TOPIC) as producer:
                for partition in range(partitions):
                    await producer.send([b"x"] * (records // partitions), partition=partition)
            for name in ("async", "plain"):
                rate = await measure(servers, name, records) / partitions
                console.print(
                    f"{name} map of {CALL * 1e3:g} ms, concurrency={CONCURRENCY}, {partitions} partitions: "
                    f"{rate:,.0f} records/s in each, {rate / POSSIBLE:.0%} of {POSSIBLE:,.0f} "
                    f"(goal {GOAL:.0%})",
                    highlight=False,
                    soft_wrap=True,
                )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="the least time of each measurement"
    )
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    anyio.run(run, options.partitions, options.seconds, Console())
