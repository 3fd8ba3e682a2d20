"""`kmr backfill --engine spark`: the same history, cut and count, read by a query that ends."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

pytest.importorskip("pyspark")

from tests.framework.history.conftest import PARTITIONS

if TYPE_CHECKING:
    import random

    from tests.framework.history.conftest import Past

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_jvms")]

SPARK = ("--engine", "spark", "--checkpoint", "progress", "--master", "local[2]")


async def test_spark_reads_to_the_cut_and_no_further_and_goes_on_with_its_own_checkpoint_alone(
    past: Past,
) -> None:
    await past.send(0, 3000)
    await past.send(1, 500)
    begin = ("--from", "0:1000,1:0,2:0")
    small = ("--max-offsets-per-trigger", "300", "--rate", "300")
    async with past.running("backfill", *SPARK, *begin, *small) as process:
        await past.until_done(past.group, 3500)
        await past.send(0, 400)
        await past.until_done(past.history, 1100)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 1
    elsewhere = await past.run(*SPARK[:2], "--checkpoint", "elsewhere", "--master", "local[2]")
    assert elsewhere.code == 2
    assert "was begun with --engine spark --checkpoint " in elsewhere.err
    assert "was begun with --engine spark" in (await past.run()).err
    (past.folder / "progress").rename(past.folder / "away")
    lost = await past.run(*SPARK)
    assert lost.code == 1
    assert "is empty, but group g.backfill has committed offsets of it" in lost.err
    shutil.rmtree(past.folder / "progress")  # the new one
    (past.folder / "away").rename(past.folder / "progress")
    done = await past.run(*SPARK)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "complete"
    async with past.running("run"):
        await past.until_done(past.group, 3900)
    assert past.doubled() == 0
    assert past.found() == [row for row in past.expected() if row[0] or row[1] >= 1000]


async def test_a_kill_of_spark_and_one_of_a_live_worker_lose_and_double_nothing(
    past: Past, chance: random.Random
) -> None:
    for partition in range(PARTITIONS):
        await past.send(partition, 6000)
    small = ("--max-offsets-per-trigger", "900", "--rate", "1500")
    async with past.running("backfill", *SPARK, *small) as first:
        await past.until_done(past.group, 3 * 6000)
        async with past.running("run") as live:
            await past.until_done(past.history, 1000)
            await anyio.sleep(chance.uniform(0, 0.5))
            os.killpg(first.pid, signal.SIGKILL)
            await first.wait()
            for partition in range(PARTITIONS):
                await past.send(partition, 300)
            os.killpg(live.pid, signal.SIGKILL)
            await live.wait()
        async with past.running("run"):
            done = await past.run(*SPARK)
            assert done.code == 0, done.err
            await past.until_done(past.group, 3 * 6300)
    assert done.out.splitlines()[-1] == "complete"
    assert past.doubled() == 0
    assert past.found() == past.expected()
