"""`kmr backfill --archive`: what retention has deleted is read from Parquet files, the rest from Kafka."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from tests.framework.history.conftest import PARTITIONS

if TYPE_CHECKING:
    import random

    from tests.framework.history.conftest import Past

SPARK = ("--engine", "spark", "--checkpoint", "progress", "--master", "local[2]")


async def archived(past: Past) -> tuple[str, str]:
    """A topic whose archive overlaps it in one partition, and meets it exactly in another."""
    for partition in range(PARTITIONS):
        await past.send(partition, 3000)
    archive = ("--archive", str(await past.archive()))
    for partition in range(PARTITIONS):
        await past.send(partition, 1000)
    await past.delete_before(p0=2500, p1=3000)
    return archive


async def test_workers_read_what_was_deleted_from_the_archive_also_after_kills(
    past: Past, chance: random.Random
) -> None:
    archive = await archived(past)
    dry = await past.run(*archive, "--dry-run")
    assert dry.code == 0, dry.err
    lines = [line.split() for line in dry.out.splitlines()]
    assert [line[:6] for line in lines[1:4]] == [
        [f"t-{partition}", "0", "4,000", "4,000", "3,000", "1,000"] for partition in range(3)
    ]
    slow = (*archive, "--workers", "2", "--rate", "1000")
    for at_least in (100, 3500):  # in the archive, and where it meets the topic
        async with past.running("backfill", *slow) as process:
            await past.until_done(past.history, at_least)
            await anyio.sleep(chance.uniform(0, 0.5))
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    done = await past.run(*archive)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "complete"
    assert past.found() == past.expected()
    async with past.running("run"):
        await past.send(0, 50)
        await past.until_done(past.group, 12_050)
    assert past.found() == past.expected()


async def test_a_gap_between_archive_and_topic_is_an_error_that_names_it(past: Past) -> None:
    archive = await archived(past)
    await past.delete_before(p1=3400)
    gap = await past.run(*archive)
    assert gap.code == 1
    assert "t-1: offsets 3000 to 3399 are neither in the archive" in gap.err
    assert await past.committed(past.group) == {}
    shutil.rmtree(past.folder / "archive" / "topic=t" / "partition=0")
    nothing = await past.run(*archive)
    assert "t-1: offsets 3000 to 3399" in nothing.err


async def test_a_history_that_retention_has_deleted_asks_for_an_archive(past: Past) -> None:
    await past.send(0, 2000)
    archive = await past.archive()
    async with past.running("backfill", "--rate", "200"):
        await past.until_done(past.history, 100)
    await past.delete_before(p0=1900)
    lost = await past.run()
    assert lost.code == 1
    assert "is not in the topic any more, which begins at 1900: give --archive" in lost.err
    done = await past.run("--archive", str(archive))
    assert done.code == 0, done.err
    assert past.found() == past.expected()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_jvms")
async def test_spark_reads_what_was_deleted_from_the_archive_also_after_a_kill(past: Past) -> None:
    pytest.importorskip("pyspark")
    archive = await archived(past)
    small = ("--max-offsets-per-trigger", "900", "--rate", "1500")
    async with past.running("backfill", *SPARK, *archive, *small) as process:
        await past.until_done(past.history, 2000)
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    done = await past.run(*SPARK, *archive)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "complete"
    assert past.doubled() == 0
    assert past.found() == past.expected()
