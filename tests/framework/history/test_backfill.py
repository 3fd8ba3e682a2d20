"""`kmr backfill` by workers: real processes, the bundled broker, the embedded ClickHouse."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from typing import TYPE_CHECKING

import anyio
from aiokafka.admin import NewPartitions

from kmr.chaos.services import free_port
from kmr.kafka.admin import connect_admin
from tests.framework.history.conftest import PARTITIONS, STRATEGY

if TYPE_CHECKING:
    import random

    from tests.framework.history.conftest import Past


async def test_a_history_is_read_to_the_cut_and_counted(past: Past) -> None:
    for partition in range(PARTITIONS):
        await past.send(partition, 2000)
    done = await past.run("--workers", "2")
    assert done.code == 0, done.err
    assert past.found() == past.expected()
    total = 3 * 2000
    assert f"{total:,} offsets, " in done.out
    assert done.out.splitlines()[-2:] == [
        (
            "6,000 offsets of the history: 5,340 in the table, 600 filtered, 60 dead letters, 0 without a "
            "record, 0 missing, 0 doubled"
        ),
        "complete",
    ]
    committed = await past.committed(past.group)
    assert [entry.offset for _, entry in sorted(committed.items())] == [2000] * 3


async def test_a_dry_run_prints_the_plan_and_changes_nothing(past: Past) -> None:
    await past.send(0, 700)
    done = await past.run("--dry-run", "--from", "0:200,1:0,2:0", "--until", "0:600,1:0,2:0")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[1][:4] == ["t-0", "200", "600", "400"]
    assert lines[1][5] in ("bytes", "kB")
    assert done.out.endswith("dry run: nothing was changed\n")
    assert await past.committed(past.group) == {}
    assert await past.committed(past.history) == {}
    assert past.found() == []


async def test_kills_of_a_backfill_beside_a_live_worker_lose_and_double_nothing(
    past: Past, chance: random.Random
) -> None:
    """Killed at random moments, with its workers; the live worker is killed too, while the topic grows."""
    for partition in range(PARTITIONS):
        await past.send(partition, 6000)
    slow = ("--workers", "2", "--rate", "1000")
    async with past.running("backfill", *slow) as first:
        await past.until_done(past.group, 3 * 6000)  # the cut
        async with past.running("run") as live:
            await past.until_done(past.history, 200)
            os.killpg(first.pid, signal.SIGKILL)
            await first.wait()
            for partition in range(PARTITIONS):
                await past.send(partition, 500)
            for _ in range(2):
                before = sum(e.offset for e in (await past.committed(past.history)).values())
                async with past.running("backfill", *slow) as again:
                    await past.until_done(past.history, before + 200)
                    await anyio.sleep(chance.uniform(0, 0.5))
                    os.killpg(again.pid, signal.SIGKILL)
                    await again.wait()
            os.killpg(live.pid, signal.SIGKILL)
            await live.wait()
        async with past.running("run"):
            done = await past.run("--workers", "2")
            assert done.code == 0, done.err
            await past.until_done(past.group, 3 * 6500)
    assert done.out.splitlines()[-1] == "complete"
    assert past.doubled() == 0
    assert past.found() == past.expected()


async def test_a_backfill_that_is_interrupted_several_times_goes_on_where_it_was(
    past: Past,
) -> None:
    await past.send(0, 6000)
    cuts, positions = set(), []
    for _ in range(2):
        async with past.running("backfill", "--rate", "400") as process:
            with anyio.fail_after(180):
                while not (await past.committed(past.history)):  # noqa: ASYNC110  polls the broker
                    await anyio.sleep(0.1)
                before = sum(e.offset for e in (await past.committed(past.history)).values())
                await past.until_done(past.history, before + 100)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 1
        cuts.add(str(sorted((await past.committed(past.group)).items())))
        positions.append(sum(e.offset for e in (await past.committed(past.history)).values()))
        await past.send(0, 100)
    log = (past.folder / "backfill.log").read_text()
    assert log.count("offsets are left; the same command goes on") == 2
    assert len(cuts) == 1
    assert positions == sorted(set(positions))
    assert positions[-1] < 6000
    done = await past.run()
    assert done.code == 0, done.err
    assert "it goes on: " in done.out
    assert past.found() == past.expected({0: 6000})


async def test_a_repeated_backfill_writes_nothing_and_counts_again(past: Past) -> None:
    await past.send(1, 1000)
    assert (await past.run()).code == 0
    await past.send(1, 50)
    again = await past.run()
    assert again.code == 0, again.err
    assert "it goes on: 1,000 offsets are done" in again.out
    assert "starting workers" not in again.err
    assert past.found() == past.expected({1: 1000})


async def test_a_group_that_has_committed_is_refused_and_nothing_changes(past: Past) -> None:
    await past.send(0, 100)
    async with past.running("run"):
        await past.until_done(past.group, 100)
        refused = await past.run()
    assert refused.code == 1
    assert (
        "group g has committed offsets, which the cut would pass: t-0: 100 (the cut would be 100)"
        in (refused.err)
    )
    assert await past.committed(past.history) == {}


async def test_a_live_worker_begins_at_the_cut_and_a_partition_that_is_added_is_its_own(
    past: Past,
) -> None:
    await past.send(0, 2000)
    async with past.running("backfill", "--rate", "300", "--metadata-max-age", "0.2"):
        await past.until_done(past.group, 2000)
        async with connect_admin({"bootstrap_servers": past.broker.bootstrap_servers}) as admin:
            await admin._client.create_partitions({"t": NewPartitions(PARTITIONS + 1)})
        await past.send_to_new(PARTITIONS, 700)
        await past.send(0, 300)
        port = free_port()
        async with past.running("run", "--http-port", str(port)):
            await past.until_done(past.group, 3000)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status") as answer:  # noqa: ASYNC210
                backfill = json.load(answer)["backfill"]
            assert (backfill["group"], backfill["offsets"]) == (past.history, 2000)
            present = [row for row in past.found() if row[0] == PARTITIONS or row[1] >= 2000]
            assert present == [
                row for row in past.expected() if row[0] == PARTITIONS or row[1] >= 2000
            ]
            await past.until_done(past.history, 2000)
    done = await past.run()
    assert done.code == 0, done.err
    assert past.doubled() == 0
    assert past.found() == past.expected()


async def test_the_rate_limits_all_workers_together(past: Past) -> None:
    for partition in range(2):
        await past.send(partition, 3000)
    begun = anyio.current_time()
    done = await past.run("--workers", "2", "--rate", "2000")
    assert done.code == 0, done.err
    # A part of 500 records or more is read at once, at first by each worker.
    assert anyio.current_time() - begun > 2.0


async def test_a_missing_table_is_noticed_before_the_cut_is_committed(past: Past) -> None:
    await past.send(0, 10)
    (past.folder / "past.py").write_text(STRATEGY.format(table="absent"))
    refused = await past.run()
    assert refused.code == 1
    assert "reduce-1: " in refused.err
    assert "absent" in refused.err
    assert await past.committed(past.group) == await past.committed(past.history) == {}
