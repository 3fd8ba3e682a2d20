"""Rows for which a DEFAULT or MATERIALIZED expression raises: each alone, and no other row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.sinks.clickhouse import raising
from kmr.sinks.clickhouse.table import ClickHouseColumn
from kmr.sinks.clickhouse.types import type_of

from .writing import OFFSETS, flush, poisoned_offsets, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable, Proxy

    from .writing import OpenWriter

RAISES = "`raw` String, `n` Array(UInt32) DEFAULT CAST(raw AS Array(UInt32))"


async def test_every_good_row_among_bad_ones_is_written_by_one_insert(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table = create_table(f"{OFFSETS}, {RAISES}, m UInt32 MATERIALIZED n[1] + length(raw)")
    writer = await open_writer(table, url=proxy.url)
    raw = [f"[{n}x" if n % 2 else f"[{n}]" for n in range(200)]
    result = await flush(writer, rows(0, 200, raw=raw))
    assert poisoned_offsets(result) == list(range(1, 200, 2))
    assert written(client, table) == list(range(0, 200, 2))
    assert len(set(proxy.tokens)) == 1, "a part for each good row would be too many"
    assert all("column raw (String) cannot hold '[" in each for each in reasons(result))
    assert not any("not tried alone" in each for each in reasons(result))


GUARDED = {
    "n Array(UInt32) DEFAULT CAST(raw AS Array(UInt32))": ("[{}x", "[{}]"),
    "n DateTime MATERIALIZED toDateTime(raw)": ("x{}", "2026-01-01"),
    "n UInt32 DEFAULT toUInt32(raw) + 1": ("{}x", "{}"),
    "n UInt8 DEFAULT throwIf(length(raw) > 9, 'long')": ("{}" + "x" * 9, "{}"),
}


@pytest.mark.parametrize("column", GUARDED)
async def test_thousands_of_bad_rows_are_found_without_trying_them(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
) -> None:
    monkeypatch.setattr(raising, "_MOST_BAD", 10)
    bad, good = GUARDED[column]
    table = create_table(f"{OFFSETS}, raw String, {column}")
    writer = await open_writer(table, url=proxy.url)
    raw = [good.format(n) if n % 7 == 0 else bad.format(n) for n in range(2_000)]
    result = await flush(writer, rows(0, 2_000, raw=raw))
    assert written(client, table) == list(range(0, 2_000, 7))
    assert poisoned_offsets(result) == [n for n in range(2_000) if n % 7]
    found = dict(zip(poisoned_offsets(result), reasons(result), strict=True))
    assert f"column raw (String) cannot hold '{raw[1_999]}'" in found[1_999]
    assert not any("not tried alone" in each for each in found.values())
    assert len(set(proxy.tokens)) == 1


async def test_bad_rows_of_two_expressions_and_of_what_no_condition_says_are_found(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raising, "_MOST_BAD", 100)
    columns = "n UInt32 DEFAULT toUInt32(raw), m UInt32 DEFAULT intDiv(100, d), f FixedString(3) DEFAULT s"
    table = create_table(f"{OFFSETS}, raw String, d UInt8, s String, {columns}")
    writer = await open_writer(table)
    count = 600
    texts = ["x" if n % 2 else "1" for n in range(count)]
    divisors = [0 if n % 3 == 0 else 1 for n in range(count)]
    long = ["long" if n % 100 == 1 else "abc" for n in range(count)]
    result = await flush(writer, rows(0, count, raw=texts, d=divisors, s=long))
    kept = [n for n in range(count) if n % 2 == 0 and n % 3 and n % 100 != 1]
    assert written(client, table) == kept
    assert len(poisoned_offsets(result)) == count - len(kept)


@pytest.mark.parametrize(
    ("expression", "conditions"),
    [
        ("toUInt32(raw)", ["variantType(CAST(raw, 'Variant(UInt32, String)')) = 'String'"]),
        ("intDiv(id, n)", ["n = 0"]),
        ("throwIf(n > 3)", ["n > 3"]),
        ("if(raw = '', 0, toUInt32(raw))", []),  # not evaluated for each row
        ("arrayMap(x -> toUInt32(raw), [1])", []),
        ("toUInt32OrZero(raw)", []),
        ("CAST(raw, 'Bool')", []),  # Variant takes other texts
        ("CAST(raw, 'Nullable(UInt8)')", []),  # null
        ("CAST(n, 'UInt8')", []),
        ("toUInt32(other)", []),
    ],
)
def test_a_condition_is_known_where_the_expression_surely_raises(
    expression: str, conditions: list[str]
) -> None:
    columns = [
        ClickHouseColumn(name, kind, has_default=False, type=type_of(kind))
        for name, kind in (("raw", "String"), ("n", "Int64"), ("id", "Int64"))
    ]
    assert list(raising._conditions(expression, columns)) == conditions


KEYS = {
    "PARTITION BY": ("MergeTree PARTITION BY toUInt32(raw) % 3 ORDER BY tuple()", ""),
    "ORDER BY": ("MergeTree ORDER BY (toUInt32(raw), partition)", ""),
    "INDEX": ("MergeTree ORDER BY tuple()", ", INDEX i toUInt32(raw) TYPE minmax"),
}


@pytest.mark.parametrize("where", KEYS)
async def test_thousands_of_rows_for_which_a_key_raises_are_found_without_trying_them(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    monkeypatch.setattr(raising, "_MOST_BAD", 10)
    engine, index = KEYS[where]
    table = create_table(f"{OFFSETS}, raw String{index}", engine)
    writer = await open_writer(table, url=proxy.url)
    raw = [str(n) if n % 7 == 0 else f"{n}x" for n in range(2_000)]
    result = await flush(writer, rows(0, 2_000, raw=raw))
    assert poisoned_offsets(result) == [n for n in range(2_000) if n % 7]
    assert written(client, table) == list(range(0, 2_000, 7))
    assert len(set(proxy.tokens)) == 1
