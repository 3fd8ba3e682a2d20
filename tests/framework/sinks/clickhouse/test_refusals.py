"""What an answer of ClickHouse is about: rows with a value in a column, or one row, by column and value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from .writing import OFFSETS, flush, poisoned_offsets, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

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
