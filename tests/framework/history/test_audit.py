"""The count at the end of a backfill: gaps are no loss; rows that are missing or doubled are found."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import aiokafka
import psycopg
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import RecordsToDelete

from kmr import Aggregate, Strategy, Window
from kmr.broker.operations.maintenance import compact
from kmr.history.audit import audit
from kmr.history.plan import BackfillPlan
from kmr.kafka.admin import connect_admin
from kmr.settings import Settings
from kmr.sinks import ClickHouseWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.framework.history.conftest import Past


async def test_marks_of_transactions_and_aborted_records_are_no_loss(past: Past) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=past.broker.bootstrap_servers, transactional_id="x"
    )
    await producer.start()
    try:
        for commit in (True, False, True, False):
            await producer.begin_transaction()
            for _ in range(50):
                await producer.send_and_wait("t", b"1", partition=2)
            await (producer.commit_transaction if commit else producer.abort_transaction)()
        await producer.begin_transaction()  # open: the cut is before it
        await producer.send_and_wait("t", b"1", partition=2)
        done = await past.run("--isolation-level", "read_committed")
        await producer.abort_transaction()
    finally:
        await producer.stop()
    assert done.code == 0, done.err
    assert done.out.splitlines()[-2:] == [
        (
            "204 offsets of the history: 100 in the table, 0 filtered, 0 dead letters, 104 without a record, "
            "0 missing, 0 doubled"
        ),
        "complete",
    ]


COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4000",
    "min.cleanable.dirty.ratio": "0",
}


@pytest.mark.parametrize("past", [COMPACTED], indirect=True)
async def test_gaps_of_compaction_also_one_at_the_cut_are_no_loss(past: Past) -> None:
    await past.send(0, 3000, key=b"same")
    await past.send(1, 10, key=b"same")
    cut = "0:2000,1:5,2:0"
    first = await past.run("--dry-run", "--until", cut)
    assert first.code == 0, first.err
    topics = past.broker._topics
    assert topics is not None
    for partition in topics.partitions:
        if partition.topic == "t":
            await compact(partition, topics, now_ms=2_000_000_000_000)
    done = await past.run("--until", cut)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "complete"
    gaps = int(done.out.splitlines()[-2].split(" dead letters, ")[1].split()[0].replace(",", ""))
    assert gaps > 1000
    async with past.running("run"):
        await past.until_done(past.group, 3010)
    assert past.doubled() == 0
    assert past.found()[-1] == (1, 9)


async def test_rows_that_are_missing_or_doubled_fail_the_count(past: Past) -> None:
    await past.send(0, 1000)
    assert (await past.run()).code == 0
    past.delete("offset = 500")
    past.client.command(
        f"INSERT INTO {past.table} SELECT * FROM {past.table} WHERE offset IN (20, 21)"
    )
    past.client.command(f"INSERT INTO {past.table} VALUES ('t', 0, 13, 13)")  # the map filters it
    done = await past.run()
    assert done.code == 1
    assert done.out.splitlines()[-6:] == [
        (
            "1,000 offsets of the history: 887 in the table, 99 filtered, 10 dead letters, "
            "0 without a record, 1 missing, 3 doubled"
        ),
        "  missing: t-0 offset 500",
        "  doubled: t-0 offset 13",
        "  doubled: t-0 offset 20",
        "  doubled: t-0 offset 21",
        "NOT complete",
    ]


async def test_a_failed_record_that_is_no_dead_letter_is_missing(past: Past) -> None:
    await past.send(0, 300)
    assert (await past.run()).code == 0
    async with connect_admin({"bootstrap_servers": past.broker.bootstrap_servers}) as admin:
        where = {aiokafka.TopicPartition("dead", 0): RecordsToDelete(before_offset=1)}
        await admin._client.delete_records(where)
    done = await past.run()
    assert done.code == 1
    assert "2 dead letters, 0 without a record, 1 missing" in done.out
    assert "  missing: t-0 offset 7" in done.out


async def test_a_history_without_a_record_is_complete_though_no_worker_made_the_table(
    past: Past,
) -> None:
    past.client.command(f"DROP TABLE {past.table}")
    done = await past.run(strategy="new")
    past.client.command(f"CREATE TABLE {past.table} (n Int8) ORDER BY n")  # is dropped at the end
    assert done.code == 0, done.err
    assert done.out.endswith("complete\n")
    assert "has no table" in done.err


async def test_a_map_of_several_rows_is_counted_by_what_it_makes(past: Past) -> None:
    values = [str(n).encode() for n in range(400)]
    await past.produce("t", values, 0)
    done = await past.run(strategy="twin")
    assert done.code == 0, done.err
    past.delete("offset = 9 AND number = -1")
    again = await past.run(strategy="twin")
    assert again.code == 1
    assert "399 in the table" in again.out
    assert "1 missing, 0 doubled" in again.out


ELSEWHERE = """
from kmr import Strategy
from kmr.sinks import DeadLetterWriter, ParquetWriter, PostgresWriter


def parse(record):
    number = int(record.value)
    if number % 10 == 3:
        return None
    return {{"partition": record.partition, "offset": record.offset, "number": number}}


strategy = Strategy(map=parse, reduce={sink}, reduce_err=DeadLetterWriter("dead", max_age=0.1))
"""


async def test_rows_in_postgresql_are_counted(past: Past, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute('CREATE TABLE rows (partition int, "offset" bigint, number bigint)')
    sink = f'PostgresWriter("rows", url="{postgres_url}", max_rows=100, max_age=0.1)'
    await counted_before_and_after(past, sink, partial(lose_in_postgresql, postgres_url))


async def test_rows_in_parquet_files_are_counted(past: Past) -> None:
    sink = 'ParquetWriter("rows", max_rows=100, max_age=0.1)'
    await counted_before_and_after(past, sink, lambda: lose_in_files(past.folder / "rows"))


async def counted_before_and_after(past: Past, sink: str, lose: Callable[[], None]) -> None:
    """Losing the row of offset 20 of partition 1, and doubling that of 21, fails the count."""
    (past.folder / "past.py").write_text(ELSEWHERE.format(sink=sink))
    await past.send(0, 300)
    await past.send(1, 200)
    done = await past.run()
    assert done.code == 0, done.err
    counts = "500 offsets of the history: {} in the table, 50 filtered, 5 dead letters, 0 without a record"
    full, short = counts.format(445), counts.format(443)
    assert done.out.splitlines()[-2:] == [f"{full}, 0 missing, 0 doubled", "complete"]
    lose()
    again = await past.run()
    assert again.code == 1
    assert again.out.splitlines()[-4:] == [
        f"{short}, 1 missing, 1 doubled",
        "  missing: t-1 offset 20",
        "  doubled: t-1 offset 21",
        "NOT complete",
    ]


def lose_in_postgresql(url: str) -> None:
    at = 'partition = 1 AND "offset"'
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute(f"DELETE FROM rows WHERE {at} = 20".encode()).rowcount == 1
        connection.execute(f"INSERT INTO rows SELECT * FROM rows WHERE {at} = 21".encode())


def lose_in_files(directory: Path) -> None:
    for path in directory.glob("*.parquet"):
        rows = pq.read_table(path)
        places = list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        if (1, 20) in places:
            kept = [at for at, place in enumerate(places) if place != (1, 20)]
            pq.write_table(rows.take([*kept, places.index((1, 21))]), path)


@pytest.mark.parametrize(
    "reducer",
    [
        Window("1m", time="timestamp", late="drop", columns={"n": ("*", "count")}),
        Aggregate(["id"], {"n": ("*", "count")}),
    ],
)
async def test_rows_of_many_records_are_not_counted_and_the_reason_says_what_to_do(
    reducer: Window | Aggregate,
) -> None:
    strategy = Strategy(map=lambda record: {"id": 1}, reduce=[reducer, ClickHouseWriter("t")])
    result = await audit(Settings(group="g", topics=("t",)), strategy, BackfillPlan("g", 0, {}))
    assert (
        f"{type(reducer).__name__} makes rows of many records; let it count these"
        in result.uncounted
    )
    assert "letters of refused rows (kmr dlq show --rows)" in result.uncounted
