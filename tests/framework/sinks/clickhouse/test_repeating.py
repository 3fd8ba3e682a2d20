"""Ranges that are written again, and counted where the server's memory of their tokens proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from kmr.delivery.announcement import Announcement
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import Write
from kmr.sinks.clickhouse import inserts

from ...flushes import Flushed, outcome
from .writing import COUNTED, OpenWriter, counted, flush, poisoned_offsets, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable, Proxy


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
async def test_rows_that_the_server_lost_in_a_crash_are_written_again_although_it_knows_their_token(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    proxy: Proxy,
    delivery: str,
) -> None:
    table = create_table(COUNTED)
    writer = await open_writer(table, url=proxy.url, delivery=delivery)
    proxy.faults = ["forget"]
    assert isinstance(await flush(writer, counted(0, 10)), Retry)
    assert written(client, table) == []
    assert await outcome(writer) == Flushed()
    assert written(client, table) == list(range(10))
    assert proxy.tokens == ["g:topic:0:0-9", "g:topic:0:0-9", "g:topic:0:0-9/again-1"]


@pytest.mark.parametrize("fault", ["lose", "forget"])
async def test_rows_of_many_partitions_are_one_insert_that_is_repeated_without_loss_or_doubles(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    proxy: Proxy,
    fault: str,
) -> None:
    table = create_table(COUNTED)
    writer = await open_writer(table, url=proxy.url, delivery="at-least-once")
    proxy.faults = [fault]
    added = [counted(10, 3, partition=partition) for partition in range(20)]
    assert isinstance(await flush(writer, *added), Retry)
    assert await outcome(writer) == Flushed()
    assert len(set(proxy.tokens) - {f"{proxy.tokens[0]}/again-1"}) == 1
    assert client.command(f"SELECT count() FROM {table}") == 60
    assert client.command(f"SELECT uniqExact(partition, offset) FROM {table}") == 60


async def test_rows_of_other_offsets_are_not_taken_for_those_of_a_repeated_insert(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    """The records of an error sink: two stages refuse records of the same offsets in turn."""
    table = create_table(COUNTED)
    ours = [counted(offset, 1) for offset in range(0, 2_000, 2)]
    await flush(await open_writer(table), *ours)
    client.command(f"ALTER TABLE {table} DELETE WHERE 1 SETTINGS mutations_sync = 2")
    await flush(await open_writer(table), *(counted(offset, 1) for offset in range(1, 2_000, 2)))
    writer = await open_writer(table)
    assert await flush(writer, *ours, write=Write(repeated=True)) == Flushed()
    assert written(client, table) == list(range(2_000))


@pytest.mark.parametrize(
    "refuses",
    ["CONSTRAINT odd CHECK n != 7", "`x` UInt8 DEFAULT throwIf(n = 7)", "`x` UInt8 DEFAULT 1"],
)
async def test_a_range_in_pieces_is_completed_once_after_a_crash_and_an_alteration_of_the_table(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    refuses: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def none_found(*_arguments: Any) -> dict[int, Any]:
        return {}

    monkeypatch.setattr(inserts, "raising", none_found)  # so that the rows are divided
    table = create_table(f"{COUNTED}, {refuses}")
    added = counted(0, 300)
    bad = [3, 4, 77, 200, 299] if "7" in refuses else []
    values = np.isin(np.arange(300), bad).astype(np.uint8) * 7
    added = replace(added, table=added.table.set_column(0, "n", pa.array(values)))
    announced = Announcement(0, 299, "g:topic:0:0-299", "w")
    first = await flush(await open_writer(table), added, write=Write(announced))
    assert poisoned_offsets(first) == bad
    again = Write(announced, repeated=True)
    second = await flush(await open_writer(table), added, write=again)
    assert poisoned_offsets(second) == bad
    assert written(client, table) == [n for n in range(300) if n not in bad]
    alter = "DROP CONSTRAINT odd" if "odd" in refuses else "MODIFY COLUMN `x` UInt8 DEFAULT 2"
    client.command(f"ALTER TABLE {table} {alter}")
    for _ in range(2):
        assert await flush(await open_writer(table), added, write=again) == Flushed()
        assert written(client, table) == list(range(300))
