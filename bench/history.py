"""`python -m bench.history`: a history is read beside a live worker, and both are killed again and again.

A topic has millions of small JSON records. `kmr backfill` reads them into ClickHouse by workers or by
Spark, and is interrupted ten times, by Ctrl-C and SIGKILL in turn; a live worker of the same group follows
the records that come meanwhile, and is killed twice. At the end the backfill counts, and so does SQL: no
offset is missing, none is there twice. With `--interruptions 0` it says the rate of the committed offsets.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import clickhouse_connect
import msgspec

from bench.servers import start_servers
from demo.processes import Child, Children
from kmr import Json, Strategy
from kmr.broker.client import BatchProducer
from kmr.delivery.announcement import history_group
from kmr.kafka.admin import connect_admin
from kmr.sinks import ClickHouseWriter

PARTITIONS = 4
TOPIC, GROUP = "numbers", "present"
_BATCH = 5_000
_LOOK = 0.25  # seconds


class Number(msgspec.Struct):
    """A small record."""

    n: int


strategy = Strategy(value=Json(Number), reduce=ClickHouseWriter("numbers", create=True))


@dataclass
class Site:
    """The processes, and how far they are.

    Attributes:
        sent: records of each partition.
        moved: offsets that the last backfill committed after its first commit, and the seconds that took.
    """

    children: Children
    servers: str
    clickhouse: str
    flags: list[str]
    sent: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    moved: tuple[int, float] = (0, 0.0)
    started: int = 0

    async def send(self, producer: BatchProducer, records: int) -> None:
        for start in range(0, records, _BATCH):
            partition = start // _BATCH % PARTITIONS
            count, first = min(_BATCH, records - start), self.sent[partition]
            values = [b'{"n":%d}' % n for n in range(first, first + count)]
            await producer.send(values, partition=partition)
            self.sent[partition] += count

    async def start(self, command: str, *flags: str) -> Child:
        """Run a command for the group."""
        self.started += 1
        return await self.children.start(
            f"{command}-{self.started}",
            *(command, "bench.history:strategy", "--topic", TOPIC, "--group", GROUP),
            *("--bootstrap-servers", self.servers, "--session-timeout", "6s", *flags),
            KMR_CLICKHOUSE_URL=self.clickhouse,
        )

    async def committed(self, group: str) -> int:
        """Return the sum of the committed offsets."""
        async with connect_admin({"bootstrap_servers": self.servers}) as admin:
            return sum(each.offset for each in (await admin.list_group_offsets(group)).values())

    async def backfill(self, until: int | None) -> Child:
        """Run the backfill until it has so many offsets; None: to its end."""
        child = await self.start("backfill", *self.flags)
        begun, first, before, at = 0.0, 0, await self.committed(history_group(GROUP)), 0.0
        while child.running:
            now = await self.committed(history_group(GROUP))
            if now > before:
                at = time.perf_counter()
                begun, first = begun or at, first or now
                before = now
            if until is not None and now >= until:
                break
            await anyio.sleep(_LOOK)
        self.moved = (before - first, at - begun)
        return child


async def main() -> int:
    """Run, count and print; return 1 if an offset is missing or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--interruptions", type=int, default=10)
    parser.add_argument("--engine", choices=("worker", "spark"), default="worker")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kmr-bench-"))
    try:
        async with Children(directory / "logs") as children:
            return await run(children, directory, options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def run(children: Children, directory: Path, options: argparse.Namespace) -> int:
    """Run the whole."""
    servers, clickhouse = await start_servers(children, directory, PARTITIONS)
    flags = ["--workers", str(options.workers)]
    if options.engine == "spark":
        flags = ["--engine", "spark", "--checkpoint", str(directory / "checkpoint")]
    site = Site(children, servers, clickhouse, flags)
    async with BatchProducer(servers, TOPIC) as producer:
        await site.send(producer, options.records)
        print(f"{options.records:,} records sent")
        last = await beside(site, producer, options)
    print(last.tail(2))
    offsets, seconds = site.moved
    if not options.interruptions and seconds:
        print(f"{offsets / seconds:,.0f} offsets/s by {options.engine}")
    return count(site)


async def beside(site: Site, producer: BatchProducer, options: argparse.Namespace) -> Child:
    """Interrupt the backfill, with a live worker beside it; return the last process of the backfill."""
    times, live = options.interruptions, None
    for number in range(times):
        child = await site.backfill(options.records * (number + 1) // (times + 2))
        if number % 2:
            child.kill()
        else:
            child._send(signal.SIGINT)  # noqa: SLF001
        await child.stop()
        if live is not None and number in (times // 3, 2 * times // 3):
            live.kill()
            await live.stop()
            live = None
        live = live or await site.start("run")
        await site.send(producer, options.records // 1_000)
    last = await site.backfill(None)
    await last.stop()
    if live is not None:
        with anyio.fail_after(120):
            while await site.committed(GROUP) < sum(site.sent):  # noqa: ASYNC110  polls the broker
                await anyio.sleep(_LOOK)
        await live.stop()
    return last


def count(site: Site) -> int:
    """Count in SQL; print, and return 1 unless each offset is there once."""
    with clickhouse_connect.get_client(
        dsn=site.clickhouse, autogenerate_session_id=False
    ) as client:
        rows = client.query(
            "SELECT partition, count(), uniqExact(offset), countIf(n != offset) FROM numbers "
            "GROUP BY partition ORDER BY partition"
        ).result_rows
    found = {int(row[0]): [int(each) for each in row[1:]] for row in rows}
    missing = doubled = wrong = 0
    for partition, sent in enumerate(site.sent):
        there, offsets, other = found.get(partition, [0, 0, 0])
        missing, doubled, wrong = missing + sent - offsets, doubled + there - offsets, wrong + other
    print(
        f"{sum(site.sent):,} records sent: {missing:,} missing, {doubled:,} doubled, {wrong:,} wrong"
    )
    return int(bool(missing or doubled or wrong))


if __name__ == "__main__":
    raise SystemExit(anyio.run(main))
