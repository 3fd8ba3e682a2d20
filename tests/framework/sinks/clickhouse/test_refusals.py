"""What an answer of ClickHouse is about: rows with a value in a column, or one row, by column and value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kmr.delivery.announcement import Announcement
from kmr.errors import RecordFailed
from kmr.reducers.sink import Write
from kmr.sinks import ClickHouseWriter

from ...flushes import Flushed
from .writing import COUNTED, OFFSETS, flush, poisoned_offsets, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.reducers.reducer import Context
    from tests.framework.sinks.conftest import CreateTable

    from .writing import OpenWriter


@pytest.mark.parametrize("kind", ["JSON DEFAULT '{}'", "Variant(Array(Int64), Date)"])
async def test_a_type_that_the_server_cannot_convert_refuses_the_rows_with_a_value_and_no_others(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, kind: str
) -> None:
    table = create_table(f"{OFFSETS}, v {kind}")
    writer = await open_writer(table)
    lists = pa.array([None, [["a"]], None, [["b"]]], pa.list_(pa.list_(pa.string())))
    result = await flush(writer, rows(0, 4, v=lists))
    assert poisoned_offsets(result) == [1, 3]
    assert written(client, table) == [0, 2]
    (reason,) = set(reasons(result))
    assert reason.startswith(f"column v ({kind.partition(' DEFAULT')[0]}) cannot hold list<")
    nulls = pa.array([None], pa.list_(pa.list_(pa.string())))
    assert poisoned_offsets(await flush(writer, rows(4, 1, v=nulls))) == []


async def test_the_reason_of_a_row_that_the_server_refuses_has_its_column_and_value(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(f"{OFFSETS}, v JSON, raw String, n UInt8 DEFAULT toUInt8(raw)")
    writer = await open_writer(table)
    documents, numbers = ['{"a": 1}', "{a", '{"a": 1}'], ["1", "2", "three"]
    result = await flush(writer, rows(0, 3, v=documents, raw=numbers))
    assert written(client, table) == [0]
    document, number = sorted(reasons(result), reverse=True)
    assert document == "column v (JSON) cannot hold '{a'"
    assert number.startswith("column raw (String) cannot hold 'three': Cannot parse string 'three'")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("`n` Int64, CONSTRAINT small CHECK n < 50", "DROP CONSTRAINT small"),
        ("`n` Int64 CODEC(NONE), `m` UInt8", "MODIFY COLUMN m Int64"),
    ],
)
async def test_without_reduce_err_a_range_with_a_refused_row_waits_as_a_whole(
    client: Client,
    clickhouse_url: str,
    create_table: CreateTable,
    context: Context,
    before: str,
    after: str,
) -> None:
    """The worker ends; where the table is mended, all rows are written, not those that are left."""
    table = create_table(f"{COUNTED.rpartition(', ')[0]}, {before}")
    numbers = list(range(40, 60))
    columns: dict[str, Any] = {"n": numbers}
    if "CODEC" in before:
        columns["m"] = [n * 6 for n in numbers]
    part = rows(0, 20, **columns)
    part = replace(part, table=part.table.drop_columns(["partition", "offset"]))
    announced = Announcement(0, 19, "g:topic:0:0-19", "w", rows=20)
    strict = context.with_sinks(takes_refused=False)
    for repeated in (False, True):
        writer = ClickHouseWriter(table, url=clickhouse_url)
        await writer.open(strict)
        try:
            with pytest.raises(RecordFailed, match="set reduce_err= in the strategy"):
                await flush(writer, part, write=Write(announced, repeated=repeated))
        finally:
            await writer.close()
        assert written(client, table) == []
    client.command(f"ALTER TABLE {table} {after}")
    writer = ClickHouseWriter(table, url=clickhouse_url)
    await writer.open(strict)
    try:
        assert await flush(writer, part, write=Write(announced, repeated=True)) == Flushed()
    finally:
        await writer.close()
    assert written(client, table) == list(range(20))
