"""JSON columns: an object is stored as it is, or its row is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import nan
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from .writing import OFFSETS, flush, poisoned_offsets, reasons, rows, written

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable

    from .writing import OpenWriter

CHANGED = (
    '{"a.b": 1}',
    '{"a.b": 1, "a": {"b": 2}}',
    '{"a": [{"b.c": 1}]}',
    '{"a\\u002eb": 1}',
    '{"a": [1, true]}',
    '{"a": [[false, 1.5]]}',
    '{"a": [[1], true]}',
    '{"a": ["x", true]}',
    '{"a":',
    "[1]",
    "",
    '{"a": [9007199254740993, 1.5]}',
)
KEPT = (
    '{"a": {"b": 1}}',
    '{"a": "\\ud83d\\ude00"}',
    '{"a": "b.c", "d": "[1, true]"}',
    '{"a": [true, false]}',
    '{"a": [true, null]}',
    '{"a": 1.5, "b": true}',
    '{"b": [9007199254740993, 1]}',
    '{"a": [9007199254740992, 1.5]}',
)


async def test_a_document_that_the_server_would_change_is_refused(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(f"{OFFSETS}, j JSON")
    writer = await open_writer(table)
    texts = [*CHANGED, *KEPT]
    result = await flush(writer, rows(0, len(texts), j=texts))
    assert poisoned_offsets(result) == list(range(len(CHANGED)))
    assert all(each.startswith("column j") for each in reasons(result))
    raw = client.raw_query(f"SELECT j FROM {table} ORDER BY offset FORMAT JSONEachRow")
    stored = [json.loads(line)["j"] for line in raw.splitlines()]
    assert repr(stored) == repr([json.loads(text) for text in KEPT])


BATCHES: list[tuple[list[Any], set[int]]] = [
    ([[{"a": 1}], [{"a": "x", "t": datetime(2026, 1, 2, tzinfo=UTC)}], ['{"a": [1, "y"]}']], set()),
    ([[{"a": 2**53 + 1}], [{"a": 1.5}], [{"a": [True]}]], set()),
    ([[{"a": "2026-01-01"}], [{"a": "", "b": 1}], [{"a": "x"}]], {1}),
    ([[{"a": 1}], [{"a": nan}], [{"a": "x"}]], {1}),
    ([['{"a": [[1]]}'], ['{"a": [null]}'], ['{"b": [null]}']], {1}),
]


@pytest.mark.parametrize(("batches", "bad"), BATCHES)
async def test_objects_of_several_types_in_one_flush_are_stored_as_they_are(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    batches: list[Any],
    bad: set[int],
) -> None:
    table = create_table(f"{OFFSETS}, j JSON")
    parts = [rows(at, 1, j=pa.array(each)) for at, each in enumerate(batches)]
    assert poisoned_offsets(await flush(await open_writer(table), *parts)) == sorted(bad)
    raw = client.raw_query(f"SELECT offset, j.a FROM {table} ORDER BY offset FORMAT JSONEachRow")
    stored = {(row := json.loads(line))["offset"]: row["j.a"] for line in raw.splitlines()}
    given = [json.loads(each) if isinstance(each, str) else each for [each] in batches]
    assert stored == {at: each.get("a") for at, each in enumerate(given) if at not in bad}


@pytest.mark.parametrize("kind", ["Dynamic", "Variant(Int64, String)"])
async def test_values_of_another_type_than_most_of_a_flush_fail_alone(
    create_table: CreateTable, open_writer: OpenWriter, kind: str
) -> None:
    writer = await open_writer(create_table(f"{OFFSETS}, v {kind}"))
    result = await flush(writer, rows(0, 2, v=[1, 2]), rows(2, 1, v=["x"]))
    assert poisoned_offsets(result) == [2]
    assert reasons(result) == ["column v: 'x' is string, but most values are int64"]


OBJECTS: Any = pa.array([{"a.b": 1, "a": {"b": 2}}, {"a.b": None, "a": {"b": 2}}])
MAPS: Any = pa.array([[("a.b", 1)], [("a", 1)]], pa.map_(pa.string(), pa.int64()))
LISTS: Any = pa.array([[[{"x.y": "1"}]], [[{"x.y": None}]]])


@pytest.mark.parametrize("values", [OBJECTS, MAPS, pa.StructArray.from_arrays([LISTS], ["l"])])
async def test_an_object_with_a_key_that_has_a_dot_is_refused(
    create_table: CreateTable, open_writer: OpenWriter, values: Any
) -> None:
    writer = await open_writer(create_table(f"{OFFSETS}, j JSON"))
    result = await flush(writer, rows(0, 2, j=values))
    assert poisoned_offsets(result) == [0]
    assert "column j key with a dot (JSON) cannot hold" in reasons(result)[0]


PATHS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    "values",
    [
        ['{"n": 1.5}', '{"n": 300}', '{"n": -1}', '{"n": "x"}', '{"n": 1, "t": {"d": 1e99}}', "{}"],
        [*({"n": n, "t": {"d": "1.5"}} for n in (1.5, 300.0, -1.0, 0.5, 257.0)), {}],
        pa.array([*([("n", n)] for n in ("1.5", "300", "-1", "x", "")), [("n", "7")]], PATHS),
    ],
)
async def test_a_value_that_does_not_fit_the_type_of_its_path_is_refused(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, values: Any
) -> None:
    table = create_table(f"{OFFSETS}, j JSON(n UInt8, t.d Decimal(5, 2))")
    writer = await open_writer(table)
    result = await flush(writer, rows(0, 6, j=values))
    assert poisoned_offsets(result) == list(range(5))
    assert "column j.n (JSON(" in reasons(result)[0]
    assert written(client, table) == [5]
