"""Workers that write Parquet files, with and without Spark, killed with SIGKILL again and again."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pyarrow.parquet as pq
import pytest

from kmr.broker.client import BatchProducer
from tests.processes import open_descendants

if TYPE_CHECKING:
    from anyio.abc import Process

    from kmr.broker import Broker
    from kmr.testing import StartBroker

pytestmark = pytest.mark.slow

CHUNK = 1_000
PATIENCE = 300.0  # seconds, for a loaded machine
STRATEGIES = f"""
from kmr import Strategy, map_batch
from kmr.sinks import ParquetWriter
from kmr.sinks.spark.writer import SparkWriter

@map_batch
def locate(batch):
    return batch.select(["partition", "offset", "timestamp", "kmr_offset"])

class Loud(SparkWriter):
    def flush(self, write):
        super().flush(write)
        print("flushed", flush=True)

class LoudFiles(ParquetWriter):
    async def flush(self, write):
        await super().flush(write)
        print("flushed", flush=True)

def even(frame):
    return frame.where("offset % 2 = 0")

through_spark = Strategy(
    locate, [Loud(path="out", transform=even, master="local[2]", max_rows={CHUNK}, max_age=600.0)]
)
by_count = Strategy(locate, [LoudFiles("out", max_rows={CHUNK}, max_age=600.0)])
by_age = Strategy(locate, [LoudFiles("out", max_rows={CHUNK}, max_age=1.0)])
"""


async def start(broker: Broker, directory: Path, strategy: str) -> Process:
    (directory / "strategies.py").write_text(STRATEGIES)
    return await anyio.open_process(
        [
            str(Path(sys.executable).with_name("kmr")),
            *("run", f"strategies:{strategy}", "--topic", "in", "--group", "g"),
            *("--bootstrap-servers", broker.bootstrap_servers, "--heartbeat-interval", "0.1"),
            *("--session-timeout", "2", "--commit-interval", "0.1"),
        ],
        cwd=directory,
        env={**os.environ, "NO_COLOR": "1"},
        stdin=None,
        stderr=None,
    )


async def read_flushes(process: Process, count: int) -> int:
    """Read the process's output until it has flushed `count` more times, or ended; return how many."""
    assert process.stdout is not None
    seen = b""
    with anyio.fail_after(PATIENCE):
        while seen.count(b"flushed") < count:
            try:
                seen += await process.stdout.receive()
            except anyio.EndOfStream:
                break
    return seen.count(b"flushed")


def delivered(directory: Path) -> Counter[tuple[int, int]]:
    """Count the rows of each partition and offset in the visible files."""
    found: Counter[tuple[int, int]] = Counter()
    for file in (directory / "out").rglob("[!_.]*.parquet"):
        rows = pq.read_table(file, columns=["partition", "offset"])
        found.update(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return found


async def kill_again_and_again(
    broker: Broker, directory: Path, strategy: str, *, records: int, kills: int
) -> tuple[Counter[tuple[int, int]], int]:
    """Kill workers in the middle, let the last one finish.

    Returns what they delivered, and how often those that were killed had flushed at most.
    """
    async with BatchProducer(broker.bootstrap_servers, "in", linger=0.001) as producer:
        for _ in range(records // CHUNK):
            await producer.send([b"x"] * CHUNK)
    flushes = 0
    for _ in range(kills):
        process = await start(broker, directory, strategy)
        try:
            flushes += await read_flushes(process, 5)
            process.kill()
            # It may have been killed before it printed the last flush.
            flushes += await read_flushes(process, records) + 1
        finally:
            if process.returncode is None:
                process.kill()
            await process.aclose()
    process = await start(broker, directory, strategy)
    try:
        with anyio.fail_after(PATIENCE):
            while len(delivered(directory)) < records:
                assert await read_flushes(process, 1)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
    return delivered(directory), flushes


async def test_a_range_that_is_written_again_after_a_kill_is_in_the_files_once(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """One partition, and flushes by count only: a worker that restarts cuts the same ranges."""
    broker = await start_broker(default_partitions=1, group_min_session_timeout=0.5)
    records = 100 * CHUNK
    found, _ = await kill_again_and_again(broker, tmp_path, "by_count", records=records, kills=2)
    assert len(found) == records, "missing"
    assert found.total() == records, "doubled"


async def test_after_kills_no_row_is_missing_and_only_rows_of_killed_workers_are_doubled(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = await start_broker(default_partitions=4, group_min_session_timeout=0.5)
    records = 100 * CHUNK
    found, flushes = await kill_again_and_again(
        broker, tmp_path, "by_age", records=records, kills=2
    )
    assert len(found) == records, "missing"
    doubled = found.total() - records
    assert doubled <= flushes * CHUNK, f"{doubled} doubled, but the killed flushed {flushes} times"


@pytest.mark.usefixtures("quick_jvms")
async def test_a_worker_with_its_own_session_drains_at_sigterm_and_leaves_no_jvm(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    broker = await start_broker(default_partitions=1, group_min_session_timeout=0.5)
    async with BatchProducer(broker.bootstrap_servers, "in") as producer:
        await producer.send([b"x"] * (CHUNK + CHUNK // 2))
    process = await start(broker, tmp_path, "through_spark")
    try:
        assert await read_flushes(process, 1) == 1
        jvms = open_descendants(process.pid)
        assert jvms
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(PATIENCE):
            assert await process.wait() == 0
            for jvm in jvms:
                await anyio.wait_readable(jvm)  # it has ended
                os.close(jvm)
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
    found = delivered(tmp_path)
    assert sorted(offset for _, offset in found) == list(range(0, CHUNK + CHUNK // 2, 2))
    assert found.total() == len(found)
