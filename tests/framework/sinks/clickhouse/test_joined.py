"""Ranges of several partitions in one INSERT under one token, and their successors, in a real table."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import anyio
import pytest

from kmr.delivery.announcement import JoinedAnnouncement
from kmr.errors import UnexpectedDuplicate
from kmr.record import TopicPartition
from kmr.reducers.buffer import Buffer
from kmr.reducers.joined_turn import JoinedTurn
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import Write
from kmr.testing import Journal, MemoryWriter

from ...flushes import Flushed, outcome
from .writing import COUNTED, OFFSETS, counted, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.record import Rows
    from kmr.sinks.clickhouse.writer import ClickHouseWriter
    from tests.framework.sinks.conftest import CreateTable, Proxy

    from .writing import OpenWriter

ROWS = 5


def announced(partition: int, token: str) -> JoinedAnnouncement:
    own = f"g:topic:{partition}:0-{ROWS - 1}"
    return JoinedAnnouncement(0, ROWS - 1, own, "writer", rows=ROWS, joined=token)


async def deliver(writer: ClickHouseWriter, added: Rows, write: Write) -> Flushed | Retry:
    writer.reset()
    writer.add(added)
    return await outcome(writer, write)


async def turn_of(lanes: int) -> JoinedTurn:
    """Return a turn whose lanes have announced their ranges."""
    buffers = [Buffer(MemoryWriter(Journal())) for _ in range(lanes)]
    turn = JoinedTurn(buffers)
    async with anyio.create_task_group() as tasks:
        for buffer in buffers:
            tasks.start_soon(turn.gather, buffer)
    return turn


async def write_together(
    open_writer: OpenWriter, table: str, partitions: list[int], token: str | None = None, **to: str
) -> tuple[list[Flushed | Retry], str]:
    """Write ranges of partitions at once, as their lanes do."""
    turn = await turn_of(len(partitions))
    turn.token = token or turn.token
    results: dict[int, Flushed | Retry] = {}
    opened = {partition: await open_writer(table, **to) for partition in partitions}
    if token is not None:  # a late INSERT: what precedes it was done when it was not late yet
        for writer in opened.values():
            writer._proven |= {TopicPartition("topic", each) for each in partitions}

    async def lane(partition: int) -> None:
        write = Write(announced(partition, turn.token), joined=turn)
        added = counted(0, ROWS, partition=partition)
        results[partition] = await deliver(opened[partition], added, write)

    async with anyio.create_task_group() as tasks:
        for partition in partitions:
            tasks.start_soon(lane, partition)
    return [results[partition] for partition in partitions], turn.token


async def write_again(open_writer: OpenWriter, table: str, partition: int, token: str) -> None:
    """Write a range as the next owner of its partition does."""
    write = Write(announced(partition, token), repeated=True)
    added = counted(0, ROWS, partition=partition)
    assert await deliver(await open_writer(table), added, write) == Flushed()


def content(client: Client, table: str) -> dict[int, int]:
    query = f"SELECT partition, count() FROM {table} GROUP BY partition"
    return {row[0]: row[1] for row in client.query(query).result_rows}


async def test_small_ranges_of_many_partitions_are_one_insert(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(COUNTED)
    results, token = await write_together(open_writer, table, list(range(20)), url=proxy.url)
    assert results == [Flushed()] * 20
    assert proxy.tokens == [f"g:{token}"]
    assert content(client, table) == dict.fromkeys(range(20), ROWS)


async def test_whoever_takes_the_token_first_each_row_is_written_once(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    """The INSERT of all comes at any time, twice or never, and each partition has one or more successors."""
    for seed in range(8):
        chance = random.Random(seed)
        table = create_table(COUNTED)
        partitions = list(range(chance.randint(2, 4)))
        token = f"token-{seed}"
        steps: list[int | None] = [None] * chance.choice((0, 1, 1, 2))
        steps += partitions + chance.choices(partitions, k=2)
        chance.shuffle(steps)
        for step in steps:
            if step is None:  # the INSERT of all; it may be late: nobody waits for it any more
                await write_together(open_writer, table, partitions, token)
            else:
                await write_again(open_writer, table, step, token)
        assert content(client, table) == dict.fromkeys(partitions, ROWS), (seed, steps)


async def test_successors_at_the_same_time_write_each_row_once(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(COUNTED)
    partitions = [0, 1, 2, 3]
    async with anyio.create_task_group() as tasks:
        for partition in partitions * 2:
            tasks.start_soon(write_again, open_writer, table, partition, "shared")
        tasks.start_soon(write_together, open_writer, table, partitions, "shared")
    assert content(client, table) == dict.fromkeys(partitions, ROWS)


@pytest.mark.parametrize("fault", ["lose", "forget"])
async def test_after_a_lost_answer_each_range_is_written_alone_or_found(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy, fault: str
) -> None:
    table = create_table(COUNTED)
    proxy.faults = [fault]
    results, token = await write_together(open_writer, table, [0, 1, 2], url=proxy.url)
    assert all(isinstance(result, Retry) for result in results)
    assert content(client, table) == ({0: ROWS, 1: ROWS, 2: ROWS} if fault == "lose" else {})
    for partition in (0, 1, 2):
        await write_again(open_writer, table, partition, token)
    assert content(client, table) == dict.fromkeys(range(3), ROWS)


async def test_rows_that_the_server_refuses_do_not_hold_the_other_partitions_up(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(f"{COUNTED}, CONSTRAINT few CHECK `partition` != 1 OR `offset` != 2")
    results, _ = await write_together(open_writer, table, [0, 1, 2])
    kept = [result for result in results if isinstance(result, Flushed)]
    assert [sum(len(each.rows) for each in result.refusals) for result in kept] == [0, 1, 0]
    assert content(client, table) == {0: ROWS, 1: ROWS - 1, 2: ROWS}


async def test_a_first_range_that_is_there_is_unexpected_and_the_others_are_written(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(COUNTED)
    await write_again(open_writer, table, 1, "")
    turn = await turn_of(2)
    found: list[str] = []

    async def lane(partition: int) -> None:
        writer = await open_writer(table)
        write = Write(announced(partition, turn.token), joined=turn)
        try:
            await deliver(writer, counted(0, ROWS, partition=partition), write)
        except UnexpectedDuplicate as error:
            found.append(str(error))

    async with anyio.create_task_group() as tasks:
        for partition in (0, 1):
            tasks.start_soon(lane, partition)
    assert len(found) == 1
    assert "topic-1[0..4] were not written" in found[0]
    assert content(client, table) == {0: ROWS, 1: ROWS}


async def test_only_a_table_that_can_be_counted_and_has_one_partition_and_no_view_takes_them(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    def joins(writer: ClickHouseWriter, added: Rows) -> tuple[bool, bool]:
        writer.reset()
        writer.add(added)
        return writer.capabilities.joins_rows > 0, writer.may_join()

    table = create_table(COUNTED)
    assert joins(await open_writer(table), counted(0, 2)) == (True, True)
    own = rows(0, 2, n=[0, 0], topic=["topic", "topic"])  # data, which may be anything
    assert joins(await open_writer(table), own) == (True, False)
    assert not joins(await open_writer(create_table(OFFSETS)), rows(0, 2))[0]
    divided = create_table(COUNTED)
    client.command(f"DROP TABLE {divided}")
    client.command(
        f"CREATE TABLE {divided} ({COUNTED}) ENGINE = MergeTree ORDER BY offset PARTITION BY n "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    assert not joins(await open_writer(divided), counted(0, 2))[0]
    client.command(f"CREATE MATERIALIZED VIEW {table}_view ENGINE = Null AS SELECT n FROM {table}")
    try:
        assert not joins(await open_writer(table), counted(0, 2))[0]
    finally:
        client.command(f"DROP VIEW {table}_view")
    assert written(client, table) == []
