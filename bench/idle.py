"""CPU of workers that have nothing to do: `python -m bench.idle` starts two real ones and watches.

Two workers share a topic of one partition, so one of them has a partition and the other has none. No client
produces. Prints processor time divided by wall time, of one core; it should be below 1 %.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import anyio
from rich.console import Console

from bench.process import cpu_seconds
from demo.processes import Children, give_up_after
from kmr import Strategy, map_batch
from kmr.chaos.services import free_port
from kmr.sinks import StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from demo.processes import Child

LIMIT = 0.01
PATIENCE = 120.0


@map_batch
def locate(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Two columns, as they are."""
    return batch.select(["partition", "offset", "kmr_offset"])


strategy = Strategy(locate, [StreamWriter(sys.stdout)])
"""The strategy of the idle workers."""


@dataclass(frozen=True)
class Usage:
    """What one idle process took."""

    name: str
    cpu: float
    """Processor time by wall time: 0.01 is one percent of a core."""
    wakeups: float
    """Times a second that it was put on a processor because something had happened."""


async def measure_idle(seconds: float = 20.0, settle: float = 5.0) -> list[Usage]:
    """Start a broker and two workers, let them settle, then watch them for so many seconds."""
    directory = Path(tempfile.mkdtemp(prefix="kmr-idle-"))
    try:
        async with Children(directory / "logs") as children:
            port = free_port()
            broker = await children.start(
                "broker",
                *("broker", "serve", "--data", str(directory / "broker"), "--port", str(port)),
            )
            await children.wait_for_port(broker, port)
            workers = {}
            for name in ("worker", "spare worker"):
                workers[name] = await _start_worker(children, name, f"127.0.0.1:{port}")
            await anyio.sleep(settle)
            watched = {"broker": broker, **workers}
            before = {name: _spent(child) for name, child in watched.items()}
            started = time.monotonic()
            await anyio.sleep(seconds)
            took = time.monotonic() - started
            children.check()
            found = []
            for name, child in watched.items():
                cpu, switches = (b - a for a, b in zip(before[name], _spent(child), strict=True))
                found.append(Usage(name, cpu / took, switches / took))
            return found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _start_worker(children: Children, name: str, servers: str) -> Child:
    http = free_port()
    worker = await children.start(
        name,
        *("run", "bench.idle:strategy", "--topic", "idle", "--group", "idle"),
        *("--bootstrap-servers", servers, "--http-port", str(http)),
    )
    with give_up_after(PATIENCE, f"{name} is not ready"):
        while not await anyio.to_thread.run_sync(_is_ready, http):
            worker.check()
            await anyio.sleep(0.1)
    return worker


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except URLError:  # not listening yet, or it answers that it is not ready
        return False


def _spent(child: Child) -> tuple[float, int]:
    """Processor seconds of a process so far, all threads, and how often they were woken."""
    process = Path(f"/proc/{child.pid}")
    switches = 0
    for status in process.glob("task/*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                switches += int(line.split()[1])
    return cpu_seconds(child.pid), switches


def report(console: Console, found: list[Usage]) -> bool:
    """Print; returns whether all workers were idle enough."""
    for usage in found:
        console.print(
            f"idle {usage.name}: {usage.cpu:.2%} of a core, {usage.wakeups:.0f} wake-ups/s",
            highlight=False,
        )
    return all(usage.cpu < LIMIT for usage in found)


def main() -> None:
    """Measure and print; exit code 1 when anybody was busier than `LIMIT`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch")
    options = parser.parse_args()
    idle = report(Console(), anyio.run(measure_idle, options.seconds))
    sys.exit(0 if idle else 1)


if __name__ == "__main__":
    main()
