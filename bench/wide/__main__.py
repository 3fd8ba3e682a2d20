"""`python -m bench.wide`: workers of 4 to 512 partitions beside a loop by hand and sentry-arroyo, in one run.

Trickle: ten records a second to each partition for a while. Backlog: a topic that is full before its
reader starts. Printed are processor time by wall time (1.0 is one core), what is left unread, INSERTs a
second, the age at which 99 % of the rows are in the table, and the ratios of the processor times.
Idle: no records at all; printed are the processor time of worker and broker, and the memory of a partition.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.request import urlopen

import anyio
import clickhouse_connect
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code
from rich.console import Console
from rich.table import Table

from bench.process import cpu_seconds, resident_kib
from bench.wide.producer import send
from bench.wide.strategies import DDL, TABLE
from demo.processes import Children, give_up_after
from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

    from demo.processes import Child

BY_HAND: Final = "loop by hand"
OTHERS: Final = {BY_HAND: "bench.wide.by_hand", "sentry-arroyo": "bench.wide.arroyo"}
CONTENDERS: Final = {
    "exactly once -> ClickHouse": "exactly",
    "at least once -> ClickHouse": "at_least",
    "exactly once -> nothing": "exactly_nothing",
    "at least once -> nothing": "at_least_nothing",
    **dict.fromkeys(OTHERS, ""),
}
_WITHOUT_TABLE: Final = "exactly once -> nothing"
_PATIENCE: Final = 120.0
_PER_BATCH: Final = 100


@dataclass(frozen=True)
class Result:
    """One contender with one topic.

    Attributes:
        cores: processor time by wall time.
        behind: records that were sent and not settled at the end.
        inserts: a second, without a table flushes.
        visible: seconds from a record's timestamp to its row, of 99 %; None without a table.
        rate: records a second.
    """

    cores: float
    behind: int
    inserts: float
    visible: float | None
    rate: float


class Idle(NamedTuple):
    """A worker without records: processor time by wall time, its own and the broker's, and its memory."""

    worker: float
    broker: float
    kib: int


class Bench:
    """Runs contenders against one broker and one ClickHouse."""

    def __init__(self, children: Children, broker: Child, port: int, clickhouse: int) -> None:
        self._children = children
        self._broker = broker
        self._address = f"127.0.0.1:{port}"
        self._url = f"http://127.0.0.1:{clickhouse}"
        self._client = clickhouse_connect.get_client(dsn=self._url)

    async def _topic(self, partitions: int) -> str:
        name = f"wide-{partitions}-{uuid.uuid4().hex[:8]}"
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        try:
            response = await admin.create_topics([NewTopic(name, partitions, 1)])
        finally:
            await admin.close()
        for topic, code, *reason in response.topic_errors:
            if code:
                raise SystemExit(
                    f"bench.wide: the broker does not create topic {topic} with {partitions} partitions: "
                    f"{reason[0] if reason and reason[0] else for_code(code).__name__}"
                )
        return name

    async def _start(self, name: str, topic: str) -> _Contender:
        self._client.command(f"DROP TABLE IF EXISTS {TABLE}")
        self._client.command(DDL)
        group = uuid.uuid4().hex
        if name in OTHERS:
            command = [sys.executable, "-m", OTHERS[name], "--address", self._address]
            command += ["--topic", topic, "--group", group, "--clickhouse", self._url]
            return _Contender(await self._children.spawn(f"other-{group}", command), None)
        http = free_port()
        child = await self._children.start(
            f"worker-{group}",
            *("run", f"bench.wide.strategies:{CONTENDERS[name]}", "--topic", topic),
            *("--group", group, "--bootstrap-servers", self._address, "--http-port", str(http)),
            KMR_CLICKHOUSE_URL=self._url,
        )
        return _Contender(child, http)

    async def trickle(self, name: str, partitions: int, rate: float, seconds: float) -> Result:
        """Measure a contender while so many records a second are sent to each partition."""
        topic = await self._topic(partitions)
        contender = await self._start(name, topic)
        await contender.wait_ready()
        command = [sys.executable, "-m", "bench.wide.producer", "--address", self._address]
        command += ["--topic", topic, "--partitions", str(partitions), "--rate", str(rate)]
        producer = await self._children.spawn(f"producer-{topic}", command)
        try:
            await anyio.sleep(6)
            contender.check()
            before, cpu, started = contender.figures(), cpu_seconds(contender.pid), time.monotonic()
            blocks = self._blocks()
            await anyio.sleep(seconds)
            took = time.monotonic() - started
            cpu, after = cpu_seconds(contender.pid) - cpu, contender.figures()
            blocks = self._blocks() - blocks
            contender.check()
            producer.check()
        finally:
            await producer.stop()
            await contender.stop()
        flushed = after.flushes - before.flushes if "nothing" in name else blocks
        rate = (after.settled - before.settled) / took
        visible = self._visible() if "nothing" not in name else None
        return Result(cpu / took, after.consumed_to_end, flushed / took, visible, rate)

    async def idle(self, partitions: int, seconds: float) -> Idle:
        """Measure a worker whose partitions have no records."""
        contender = await self._start(_WITHOUT_TABLE, await self._topic(partitions))
        try:
            await contender.wait_ready()
            await anyio.sleep(8)
            pids, started = (contender.pid, self._broker.pid), time.monotonic()
            before = [cpu_seconds(pid) for pid in pids]
            await anyio.sleep(seconds)
            took = time.monotonic() - started
            cores = [(cpu_seconds(pid) - cpu) / took for pid, cpu in zip(pids, before, strict=True)]
            return Idle(cores[0], cores[1], resident_kib(contender.pid))
        finally:
            await contender.stop()

    def _blocks(self) -> int:
        """Return how many INSERTs the table has taken, each of which is a block."""
        sql = f"SELECT max(max_block_number) FROM system.parts WHERE table = '{TABLE}'"
        return int(str(self._client.command(sql)))

    def _visible(self) -> float | None:
        (row,) = self._client.query(
            f"SELECT quantileExact(0.99)(toFloat64(seen) - toFloat64(timestamp)), count() FROM {TABLE} "
            "WHERE timestamp > (SELECT min(timestamp) FROM wide) + 6"
        ).result_rows
        return float(row[0]) if row[1] else None

    async def backlog(self, name: str, partitions: int, records: int) -> Result:
        """Measure how fast a contender reads a topic that is full."""
        topic = await self._topic(partitions)
        rounds = max(1, records // (partitions * _PER_BATCH))
        for _ in range(rounds):
            send(self._address, topic, partitions, _PER_BATCH)
        total = rounds * partitions * _PER_BATCH
        contender = await self._start(name, topic)
        try:
            if contender.http is None:
                return await self._read_by_other(name, contender, total)
            await contender.wait_ready()
            first, blocks = contender.figures(), self._blocks()
            cpu, started = cpu_seconds(contender.pid), time.monotonic()
            figures = first
            with give_up_after(_PATIENCE, f"{name}: the backlog is not read"):
                while figures.settled < total:
                    await anyio.sleep(0.1)
                    figures = contender.figures()
            took = time.monotonic() - started
            blocks = self._blocks() - blocks
            flushed = figures.flushes - first.flushes if "nothing" in name else blocks
            cores = (cpu_seconds(contender.pid) - cpu) / took
            return Result(cores, 0, flushed / took, None, (total - first.settled) / took)
        finally:
            await contender.stop()

    async def _read_by_other(self, name: str, contender: _Contender, total: int) -> Result:
        count, started, cpu = 0, 0.0, 0.0
        with give_up_after(_PATIENCE, f"{name}: the backlog is not read"):
            while count < total:
                await anyio.sleep(0.1)
                count = int(str(self._client.command(f"SELECT count() FROM {TABLE}")))
                if not started and count:
                    started, cpu, first = time.monotonic(), cpu_seconds(contender.pid), count
        took = time.monotonic() - started
        return Result(
            (cpu_seconds(contender.pid) - cpu) / took, 0, 0.0, None, (total - first) / took
        )


@dataclass(frozen=True)
class Figures:
    """What a worker says of itself."""

    settled: int
    consumed_to_end: int
    flushes: float


class _Contender:
    def __init__(self, child: Child, http: int | None) -> None:
        self._child = child
        self.http = http

    @property
    def pid(self) -> int:
        return self._child.pid

    def check(self) -> None:
        self._child.check()

    async def stop(self) -> None:
        await self._child.stop()

    async def wait_ready(self) -> None:
        if self.http is None:
            await anyio.sleep(3)
            return
        with give_up_after(_PATIENCE, f"{self._child.name} is not ready"):
            while True:
                self._child.check()
                try:
                    if self._get("ready") is not None:
                        return
                except OSError:
                    await anyio.sleep(0.1)

    def _get(self, path: str) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.http}/{path}", timeout=30) as answer:
            content: bytes = answer.read()
        return content

    def figures(self) -> Figures:
        if self.http is None:
            return Figures(0, 0, 0.0)
        status: dict[str, Any] = json.loads(self._get("status"))
        behind = sum((each["end"] or 0) - (each["watermark"] or 0) for each in status["partitions"])
        flushes = sum(
            float(line.rpartition(" ")[2])
            for line in self._get("metrics").decode().splitlines()
            if line.startswith("kmr_reduce_flushes_total")
        )
        return Figures(status["settled"], behind, flushes)


def report(console: Console, title: str, found: dict[str, Result]) -> None:
    """Print a table of one topic; ratios are of the loop by hand."""
    shown = Table(title=title, title_justify="left", header_style="dim")
    headings = ("cores", "x by hand", "records/s", "behind", "INSERTs/s", "visible s (p99)")
    for heading in ("contender", *headings):
        shown.add_column(heading, justify="left" if heading == "contender" else "right")
    base = found.get(BY_HAND)
    for name, each in found.items():
        is_ours = name not in OTHERS
        shown.add_row(
            name,
            f"{each.cores:.3f}",
            "" if base is None or not base.cores else f"{each.cores / base.cores:.1f}",
            f"{each.rate:,.0f}" if is_ours or each.rate else "",
            f"{each.behind:,}" if is_ours else "",
            f"{each.inserts:.1f}",
            "" if each.visible is None else f"{each.visible:.1f}",
        )
    Console(width=140).print(shown) if not console.is_terminal else console.print(shown)


def idle_table(found: dict[int, Idle]) -> Table:
    """Return a table of idle workers. The memory of a partition is beside the worker of the fewest."""
    shown = Table(title="no records", title_justify="left", header_style="dim")
    for heading in ("partitions", "cores", "of the broker", "KiB a partition"):
        shown.add_column(heading, justify="right")
    fewest = min(found)
    for partitions, each in found.items():
        more = partitions - fewest
        kib = f"{(each.kib - found[fewest].kib) / more:.0f}" if more else ""
        shown.add_row(f"{partitions:,}", f"{each.worker:.4f}", f"{each.broker:.4f}", kib)
    return shown


async def measure(given: argparse.Namespace) -> None:
    """Start the servers, run every contender with every topic, print a table of each."""
    directory, console = Path(tempfile.mkdtemp(prefix="kmr-wide-")), Console()
    names: Sequence[str] = [name for name in CONTENDERS if given.only in name]
    try:
        async with Children(directory / "logs") as children:
            servers, ports = [], {"broker": free_port(), "clickhouse": free_port()}
            for name, port in ports.items():
                child = await children.start(
                    name, name, "serve", "--data", str(directory / name), "--port", str(port)
                )
                await children.wait_for_port(child, port)
                servers.append(child)
            bench = Bench(children, servers[0], *ports.values())
            if given.idle:
                console.print(
                    idle_table({n: await bench.idle(n, given.seconds) for n in given.idle})
                )
            for partitions in given.partitions:
                if given.rate:
                    found = {
                        name: await bench.trickle(name, partitions, given.rate, given.seconds)
                        for name in names
                    }
                    title = f"trickle, {partitions} partitions, {given.rate:g} records/s each"
                    report(console, title, found)
                if given.records:
                    found = {
                        name: await bench.backlog(name, partitions, given.records) for name in names
                    }
                    report(
                        console,
                        f"backlog, {partitions} partitions, {given.records:,} records",
                        found,
                    )
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 64, 512])
    parser.add_argument("--rate", type=float, default=10.0, help="records a second; 0: no trickle")
    parser.add_argument("--records", type=int, default=1_000_000, help="backlog; 0: none")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a trickle is watched")
    parser.add_argument(
        "--idle", type=int, nargs="*", default=[4, 2000], help="partitions without records"
    )
    parser.add_argument("--only", default="", help="contenders whose name has this text")
    anyio.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
