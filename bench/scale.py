"""`python -m bench.scale`: what grows with partitions and with workers, beside what docs/scale.md computes.

Each row of the table is a broker and a group of its own. A few records a second go to every partition, so
each one has rows at every flush: the most flushes that `max_age` allows. The sink forgets the rows, so the
costs are those of workers, of the group and of the broker alone.

One worker is a command of its own, the others are the `--workers` of another. When all run, one of those is
killed, and its supervisor starts it again; then the single one leaves, joins, and is killed. At the end every
record that was sent has to be in one range: lost and doubled ones are counted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from rich.console import Console
from rich.table import Table

from bench.process import cpu_seconds, resident_kib
from bench.scale_sink import MAX_AGE, NOTES, TURNS, Notes
from bench.workers import ask
from demo.processes import STALL, Children, give_up_after
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from demo.processes import Child
    from kmr.observe.status import WorkerStatus

TOPIC = "bench-scale"
_SIZES = ("16x1", "128x1", "512x1", "512x4", "1000x4", "2000x20")
_SETTLE = 6.0  # seconds after an assignment that do not count
_LOOK = 0.3  # seconds between two looks at the status


@dataclass
class Measured:
    """One size: seconds, figures a second, cores, bytes of memory.

    Attributes:
        events: how long each one took until all partitions had a worker, and the longest time around it in
            which no worker wrote anything.
    """

    partitions: int
    workers: int
    every: float
    records: float = 0.0
    assigned: float = 0.0
    ranges: float = 0.0
    inserts: float = 0.0
    commits: float = 0.0
    worker_cpu: float = 0.0
    broker_cpu: float = 0.0
    largest: int = 0
    mean: int = 0
    drain: float = 0.0
    lost: int = 0
    doubled: int = 0
    events: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass
class Trickle:
    """Sends a record to each partition at every interval.

    Attributes:
        sent: records of each partition, all acknowledged.
    """

    producer: BatchProducer
    partitions: int
    every: float
    sent: int = 0
    is_over: bool = False

    async def run(self) -> None:
        """Send until `is_over`."""
        while not self.is_over:
            begun = time.monotonic()
            for partition in range(self.partitions):
                await self.producer.send([b"x" * 100], partition=partition)
            await self.producer.flush()
            self.sent += 1
            await anyio.sleep(max(0.0, self.every - (time.monotonic() - begun)))


@dataclass
class Group:
    """The workers of one group: those of `--workers`, and a single one."""

    children: Children
    servers: str
    strategy: str
    notes: Path
    workers: int
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    fleet: Child | None = None
    single: Child | None = None
    _starts: int = 0

    async def start(self) -> None:
        """Start all of them."""
        if self.workers > 1:
            await self.start_single()
        self.fleet = await self._start("fleet", max(1, self.workers - 1), self.ports[0])

    async def start_single(self) -> None:
        """Start the single one."""
        self._starts += 1
        self.single = await self._start(f"single-{self._starts}", 1, self.ports[1])

    async def _start(self, name: str, workers: int, port: int) -> Child:
        environment = {NOTES: str(self.notes)}
        return await self.children.start(
            name,
            *("run", f"bench.scale_sink:{self.strategy}", "--topic", TOPIC, "--group", "scale"),
            *("--bootstrap-servers", self.servers, "--workers", str(workers)),
            *("--http-port", str(port)),
            patience=30.0,
            watched=name == "fleet",
            **environment,
        )

    async def status(self) -> list[WorkerStatus]:
        """Ask the running commands; those that do not answer yet are left out."""
        assert self.fleet is not None
        self.fleet.check()
        commands = ((self.fleet, self.ports[0]), (self.single, self.ports[1]))
        found = []
        for command, port in commands:
            if command is not None and command.running:
                with anyio.move_on_after(10):
                    try:
                        url = f"http://127.0.0.1:{port}/status"
                        found.append(await anyio.to_thread.run_sync(ask, url))
                    except OSError:
                        continue
        return found

    async def until_assigned(self, partitions: int, commands: int) -> float:
        """Wait until so many commands run all partitions; return the seconds that it took."""
        begun = time.monotonic()
        with give_up_after(STALL, f"not all of {partitions} partitions are assigned"):
            while True:
                found = await self.status()
                ours = {each.partition for status in found for each in status.partitions}
                total = sum(len(status.partitions) for status in found)
                are_running = all(
                    status.state == "running" and status.ready and status.partitions
                    for status in found
                ) and all(w.partitions for status in found for w in status.workers)
                if len(found) == commands and total == len(ours) == partitions and are_running:
                    return time.monotonic() - begun
                await anyio.sleep(_LOOK)

    async def pids(self) -> list[int]:
        """Return the processes of the workers."""
        assert self.fleet is not None
        found = (await self.status())[0]
        pids = [each.pid for each in found.workers if each.pid] or [self.fleet.pid]
        return pids if self.single is None else [*pids, self.single.pid]


async def measure(
    partitions: int, workers: int, *, strategy: str, every: float, seconds: float
) -> Measured:
    """Start a broker and a group, watch them, disturb them, end the group, and count."""
    directory = Path(tempfile.mkdtemp(prefix="kmr-scale-"))
    notes = directory / "notes"
    notes.mkdir()
    found = Measured(partitions, workers, every)
    try:
        async with Children(directory / "logs") as children:
            port, http = free_port(), free_port()
            broker = await children.start(
                "broker",
                *("broker", "serve", "--data", str(directory / "broker"), "--port", str(port)),
                *("--partitions", str(partitions), "--http-port", str(http)),
            )
            await children.wait_for_port(broker, port)
            servers = f"127.0.0.1:{port}"
            group = Group(children, servers, strategy, notes, workers)
            async with (
                BatchProducer(servers, TOPIC) as producer,
                anyio.create_task_group() as tasks,
            ):
                trickle = Trickle(producer, partitions, every)
                tasks.start_soon(trickle.run)
                begun = time.monotonic()
                await group.start()
                await group.until_assigned(partitions, min(2, workers))
                found.assigned = time.monotonic() - begun
                await anyio.sleep(_SETTLE)
                await watch(found, group, trickle, broker, http, seconds)
                if workers > 1:
                    await disturb(found, group)
                trickle.is_over = True
            await until_settled(group, notes, partitions * trickle.sent)
            begun = time.monotonic()
            assert group.fleet is not None
            await group.fleet.stop()
            found.drain = time.monotonic() - begun
            found.lost, found.doubled = Notes.read(notes).lost_and_doubled(partitions, trickle.sent)
        return found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def watch(
    found: Measured, group: Group, trickle: Trickle, broker: Child, http: int, seconds: float
) -> None:
    """Count what happens in so many seconds without trouble."""
    pids = await group.pids()

    async def figures() -> tuple[float, float, int, float, float]:
        commits = await total(
            f"http://127.0.0.1:{http}/metrics",
            r'kmr_broker_request_seconds_count\{api="[Oo]ffset_?[Cc]ommit"\}',
        )
        cpu = sum(map(cpu_seconds, pids))
        return time.time(), commits, trickle.sent, cpu, cpu_seconds(broker.pid)

    before = await figures()
    await anyio.sleep(seconds)
    after = await figures()
    took = after[0] - before[0]
    found.commits, found.records, found.worker_cpu, found.broker_cpu = (
        (b - a) / took for a, b in zip(before[1:], after[1:], strict=True)
    )
    found.records *= found.partitions
    found.inserts, found.ranges = Notes.read(group.notes).per_second(before[0], after[0])
    sizes = [resident_kib(pid) * 1024 for pid in pids]
    found.largest, found.mean = max(sizes), sum(sizes) // len(sizes)


async def disturb(found: Measured, group: Group) -> None:
    """Kill a worker that its supervisor starts again, if there is one; let the single one come and go."""

    async def restart() -> None:
        os.kill((await group.pids())[0], signal.SIGKILL)
        await anyio.sleep(1.0)  # until the supervisor knows

    async def leave() -> None:
        assert group.single is not None
        await group.single.stop()

    async def kill() -> None:
        assert group.single is not None
        group.single.kill()
        await group.single.wait()

    events: tuple[tuple[str, Callable[[], Awaitable[None]], int], ...] = (
        ("restart", restart, 2),
        ("leave", leave, 1),
        ("join", group.start_single, 2),
        ("kill", kill, 1),
    )
    for name, event, commands in events if found.workers > 2 else events[1:]:
        begun, at = time.monotonic(), time.time()
        await event()
        await group.until_assigned(found.partitions, commands)
        took = time.monotonic() - begun
        await anyio.sleep(_SETTLE)
        pause = Notes.read(group.notes).pause(at, time.time())
        found.events[name] = took, pause
        print(f"{name}: {took:.1f} s, nothing written for {pause:.1f} s", flush=True)


async def until_settled(group: Group, notes: Path, records: int) -> None:
    """Wait until all records are written, or nothing is written any more."""
    written, since = -1, time.monotonic()
    while written < records and time.monotonic() - since < 4 * _SETTLE:
        await anyio.sleep(1.0)
        await group.status()
        ranges = Notes.read(notes).ranges.values()
        now = sum(last + 1 - first for each in ranges for first, last in each)
        if now != written:
            written, since = now, time.monotonic()


async def total(url: str, series: str) -> float:
    """Return the sum of the series of a page of metrics."""
    text = await anyio.to_thread.run_sync(lambda: urllib.request.urlopen(url).read().decode())
    return sum(float(value) for value in re.findall(rf"^{series} (\S+)$", text, re.MULTILINE))


def expected(each: Measured, *, are_together: bool) -> float:
    """Return the ranges a second that the model of docs/scale.md expects."""
    age = MAX_AGE + each.partitions / each.records / 2
    if are_together and each.partitions / each.workers / age > TURNS:
        age += 0.5 / TURNS
    return each.partitions / age


def report(found: list[Measured], *, are_together: bool) -> None:
    """Print the measured figures beside the ranges that the model expects."""
    title = f"max_age {MAX_AGE:g} s; " + (f"at most {TURNS:g} INSERTs a second" * are_together)
    table = Table(title=title, title_justify="left", header_style="dim")
    for heading in (
        *("size", "records/s", "assigned s", "ranges/s", "model", "INSERTs/s", "commits/s"),
        *("worker cores", "broker cores", "MB", "largest", "drain s", "lost", "doubled"),
    ):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(
            *(f"{each.partitions}x{each.workers}", f"{each.records:.0f}"),
            *(f"{each.assigned:.1f}", f"{each.ranges:.0f}"),
            *(f"{expected(each, are_together=are_together):.0f}", f"{each.inserts:.1f}"),
            *(f"{each.commits:.1f}", f"{each.worker_cpu:.2f}", f"{each.broker_cpu:.2f}"),
            *(f"{each.mean / 1e6:.0f}", f"{each.largest / 1e6:.0f}", f"{each.drain:.1f}"),
            *(str(each.lost), str(each.doubled)),
        )
    Console(width=140).print(table)
    for each in found:
        for name, (took, pause) in each.events.items():
            print(f"{each.partitions}x{each.workers} {name}: {took:.1f} s, paused {pause:.1f} s")


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", default=_SIZES, help="PARTITIONSxWORKERS")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long to watch each size")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two records")
    parser.add_argument("--apart", action="store_true", help="each range is an INSERT of its own")
    options = parser.parse_args()
    strategy = "apart" if options.apart else "together"
    take = partial(measure, strategy=strategy, every=options.every, seconds=options.seconds)
    found = []
    for size in options.sizes:
        partitions, workers = map(int, size.split("x"))
        found.append(await take(partitions, workers))
        print(found[-1], f"load {os.getloadavg()[0]:.0f}", flush=True)
    report(found, are_together=not options.apart)


if __name__ == "__main__":
    anyio.run(main)
