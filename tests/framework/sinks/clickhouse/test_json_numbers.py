"""Numbers and nulls in JSON columns are stored as they are, or refused."""

from __future__ import annotations

import json
from decimal import Decimal
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from .writing import OFFSETS, flush, poisoned_offsets, reasons, rows

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable

    from .writing import OpenWriter

TEXTS = [
    ('{"a": 0.1}', True),
    ('{"a": 0.30000000000000004}', True),
    ('{"a": 0.12345678901234567890}', False),
    ('{"a": 1e400}', False),
    ('{"a": 1.5E+3}', True),
    ('{"a": 9007199254740993}', True),
    ('{"b": [1.5]}', True),
    ('{"b": [9007199254740993]}', False),
    ('{"c": [9007199254740993]}', True),
    ('{"d": [null, [1]]}', False),
    ('{"d": [{"x": 1}, null]}', False),
    ('{"e": "0.12345678901234567890"}', True),
]
VALUES: list[tuple[list[Any], list[int]]] = [
    ([{"a": Decimal("0.1")}, {"a": Decimal("0.12345678901234567890")}, {"a": None}], [1]),
    ([{"a": [Decimal("1.5")]}, {"a": [Decimal("12345678901234567890.1")]}], [1]),
    ([{"a": 1.5}, {"a": nan}, {"a": inf}, {"a": -inf}, {"a": None}], [1, 2, 3]),
    ([{"a": [None]}, {"a": [[1]]}, {"a": [[None]]}], [0]),
    ([{"a": [{"b": 1}]}, {"a": [None]}], [1]),
]


def nearly(value: Any) -> Any:
    """Numbers as floats, and no nulls: JSON columns leave them out."""
    if isinstance(value, dict):
        return {key: nearly(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [nearly(each) for each in value]
    return float(value) if isinstance(value, Decimal) else value


async def test_a_number_of_a_document_that_would_become_another_is_refused(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(f"{OFFSETS}, j JSON")
    result = await flush(
        await open_writer(table), rows(0, len(TEXTS), j=[text for text, _ in TEXTS])
    )
    assert poisoned_offsets(result) == [row for row, (_, kept) in enumerate(TEXTS) if not kept]
    raw = client.raw_query(f"SELECT j FROM {table} ORDER BY offset FORMAT JSONEachRow")
    stored = [json.loads(line)["j"] for line in raw.splitlines()]
    assert stored == [json.loads(text) for text, kept in TEXTS if kept]


@pytest.mark.parametrize(("values", "bad"), VALUES)
async def test_a_value_that_would_become_another_is_refused(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    values: list[Any],
    bad: list[int],
) -> None:
    table = create_table(f"{OFFSETS}, j JSON")
    result = await flush(await open_writer(table), rows(0, len(values), j=pa.array(values)))
    assert poisoned_offsets(result) == bad
    assert all(each.startswith("column j") for each in reasons(result))
    raw = client.raw_query(f"SELECT j FROM {table} ORDER BY offset FORMAT JSONEachRow")
    stored = [json.loads(line)["j"] for line in raw.splitlines()]
    assert stored == [nearly(each) for row, each in enumerate(values) if row not in bad]


LONG, NEXT = "0.1234567890123456789", 2**53 + 1


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        ("Decimal(38, 20)", pa.array([{"a": Decimal(LONG)}, {"a": Decimal("0.5")}]), ["0.5"]),
        ("Decimal(38, 20)", [f'{{"a": {LONG}}}', '{"a": 0.5}'], ["0.5"]),
        ("Decimal(38, 20)", pa.array([{"a": LONG}, {"a": "0.5"}]), [LONG, "0.5"]),
        ("Decimal(38, 20)", [f'{{"a": "{LONG}"}}', '{"a": "0.5"}'], [LONG, "0.5"]),
        ("Float64", pa.array([{"a": nan}, {"a": -inf}]), ["nan", "-inf"]),
        ("Array(Int64)", pa.array([{"a": [NEXT]}, {"a": [1]}]), [f"[{NEXT}]", "[1]"]),
        ("Array(Int64)", [f'{{"a": [{NEXT}]}}', '{"a": [1]}'], [f"[{NEXT}]", "[1]"]),
    ],
)
async def test_a_path_with_a_type_takes_what_it_keeps(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    kind: str,
    given: Any,
    kept: list[str],
) -> None:
    table = create_table(f"{OFFSETS}, j JSON(a {kind})")
    result = await flush(await open_writer(table), rows(0, 2, j=given))
    assert poisoned_offsets(result) == list(range(2 - len(kept)))
    raw = client.raw_query(f"SELECT toString(j.a) AS a FROM {table} ORDER BY offset FORMAT TSV")
    assert raw.decode().split() == kept


async def test_a_large_number_in_an_array_is_refused_beside_fractions_of_the_same_path_only(
    create_table: CreateTable, open_writer: OpenWriter
) -> None:
    texts = ['{"ids": [9007199254740993]}', '{"shares": [1.5]}', '{"shares": [9007199254740993]}']
    writer = await open_writer(create_table(f"{OFFSETS}, j JSON"))
    assert poisoned_offsets(await flush(writer, rows(0, 3, j=texts))) == [2]
