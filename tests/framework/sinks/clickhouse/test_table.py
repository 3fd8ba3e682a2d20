"""Rows and the definition of a table: missing columns, defaults, types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kmr.errors import StrategyError

from ...flushes import Flushed
from .writing import OFFSETS, OpenWriter, flush, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable


async def test_a_missing_table_is_an_error_that_shows_how_to_create_one(
    open_writer: OpenWriter,
) -> None:
    with pytest.raises(StrategyError, match=r"no table default\.nowhere.*CREATE TABLE"):
        await open_writer("nowhere")


async def test_a_column_that_the_table_lacks_is_an_error_unless_it_is_ignored(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS)
    more = rows(0, 2, colour=["red", "blue"])
    writer = await open_writer(table)
    assert f"default.{table} has no column colour" in reasons(await flush(writer, more))[0]
    assert await flush(writer, rows(0, 2, colour=[None, None])) == Flushed()
    client.command(f"TRUNCATE TABLE {table}")
    writer = await open_writer(table, extra_columns="ignore")
    assert await flush(writer, more) == Flushed()
    assert written(client, table) == [0, 1]


async def test_a_column_that_the_rows_lack_needs_a_default(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `a` UInt8 DEFAULT 42, `b` Nullable(UInt8), `c` UInt8 ALIAS a")
    assert await flush(await open_writer(table), rows(0, 1)) == Flushed()
    assert client.query(f"SELECT a, b FROM {table}").result_rows == [(42, None)]
    table = create_table(OFFSETS + ", `needed` UInt8")
    refused = reasons(await flush(await open_writer(table), rows(0, 1)))
    assert refused == ["column needed (UInt8) cannot be null"]
    writer = await open_writer(table, columns=["partition", "offset"])
    assert await flush(writer, rows(0, 1, other=["x"])) == Flushed()


async def test_null_becomes_the_default_of_a_column_that_has_one(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `a` UInt8 DEFAULT 42")
    assert await flush(await open_writer(table), rows(0, 2, a=[1, None])) == Flushed()
    assert written(client, table, "a") == [1, 42]


VARIANTS = "v Variant(Int64, String), d Dynamic, l Array(Dynamic)"


async def test_null_in_a_dynamic_or_variant_stays_null_though_another_column_has_a_default(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(f"{OFFSETS}, a UInt8 DEFAULT 42, b UInt8 DEFAULT 43, {VARIANTS}")
    values: dict[str, Any] = {
        "a": [None, None],
        "b": [1, 2],
        "v": [5, None],
        "d": [None, 5],
        "l": [[1, None], []],
    }
    assert await flush(await open_writer(table), rows(0, 2, **values)) == Flushed()
    found = client.query(f"SELECT a, b, v, d, l FROM {table} ORDER BY offset").result_rows
    assert found == [(42, 1, 5, None, [1, None]), (42, 2, None, 5, [])]


async def test_null_in_a_dynamic_stays_null_where_the_server_fills_null_of_another_column(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(f"{OFFSETS}, a UInt8 DEFAULT 42, n Nullable(UInt8) DEFAULT 7, {VARIANTS}")
    values: dict[str, Any] = {"a": [None, 1, 2], "v": [5, None, 5], "d": ["x", None, "y"]}
    result = await flush(
        await open_writer(table), rows(0, 3, n=[None] * 3, l=[[1], [2], [None, 1]], **values)
    )
    [reason] = reasons(result)  # inside of lists it would be filled, too
    assert reason == (
        "column l (Array(Dynamic)) cannot keep null in an insert with null in a, which its DEFAULT fills: "
        "return a value there"
    )
    found = client.query(f"SELECT a, n, v, d, l FROM {table} ORDER BY offset").result_rows
    assert found == [(42, None, 5, "x", [1]), (1, None, None, None, [2])]


async def test_values_of_a_type_that_cannot_become_that_of_the_column_are_refused(
    create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(OFFSETS + ", `x` Array(UInt8)")
    writer = await open_writer(table)
    reason = "column x (Array(UInt8)) cannot hold string: string is not a list"
    assert reasons(await flush(writer, rows(0, 1, x=["text"]))) == [reason]
    with pytest.raises(
        StrategyError, match=r"all of the last 101 rows were refused for one reason"
    ):
        await flush(writer, rows(1, 100, x=["text"] * 100))
