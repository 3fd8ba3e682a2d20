"""Texts in JSON columns are stored as they are, or as the same time, or refused."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from .writing import OFFSETS, flush, poisoned_offsets, reasons, rows

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable

    from .writing import OpenWriter

AT = "2024-01-01 10:00:00.5"
CASES = [
    (["2024-02-30", "2024-2-1", "2024/02/01", "2024-02-01", "x"], [0, 1, 2]),
    (["2024-01-01T25:00:00", "2024-01-01 10:00:00.1234567891", AT, "24-01-01"], [0, 1]),
    ([AT, "", "1700000000", "123456", "-5", "n/a", "1", "2024-01-01T10:00:00Z"], [1, 2, 3, 4]),
    (["2024-01-01", "9999-12-31", "1950-05-01", "0001-01-01", "20240101", "2024.1.1"], range(1, 6)),
    (["1950-05-01", "1960-05-01", "9999-12-31"], []),
    (["9999-12-31", "1234-56-78", "20240101", "2024.1.1", "", "123456"], []),
    (["2024-01-01", "2024-01-01 00:00:00", "2024-01-01T00:00:00"], []),
]


def moment(text: str) -> Any:
    try:
        whole, _, fraction = text.partition(".")
        return datetime.fromisoformat(whole), fraction.rstrip("0")
    except ValueError:
        return text


def documents(texts: list[str]) -> pa.Array[Any]:
    return pa.array([json.dumps({"a": {"b": text}}) for text in texts])


def structs(texts: list[str]) -> pa.Array[Any]:
    return pa.array([{"a": {"b": text}} for text in texts])


def maps(texts: list[str]) -> pa.Array[Any]:
    kind = pa.map_(pa.string(), pa.map_(pa.string(), pa.string()))
    return pa.array([[("a", [("b", text)]), ("c", [])] for text in texts], kind)


@pytest.mark.parametrize("made", [documents, structs, maps])
@pytest.mark.parametrize(("texts", "bad"), CASES)
async def test_a_text_that_would_become_another_time_is_refused(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    made: Any,
    texts: list[str],
    bad: Any,
) -> None:
    table = create_table(f"{OFFSETS}, j JSON")
    writer = await open_writer(table)
    result = await flush(writer, rows(0, len(texts), j=made(texts)))
    assert poisoned_offsets(result) == list(bad)
    assert all("column j value that becomes another time" in each for each in reasons(result))
    raw = client.raw_query(f"SELECT j FROM {table} ORDER BY offset FORMAT JSONEachRow")
    stored = [moment(json.loads(line)["j"]["a"]["b"]) for line in raw.splitlines()]
    assert stored == [moment(text) for row, text in enumerate(texts) if row not in bad]


@pytest.mark.parametrize(
    ("values", "bad"),
    [
        (pa.array([{"d": [date(1980, 1, 1)]}, {"d": [date(1950, 5, 1)]}, {"d": []}]), [1]),
        (pa.array([{"d": date(1940, 1, 1)}, {"d": date(1950, 5, 1)}, {"d": None}]), []),
    ],
)
async def test_a_date_that_would_become_another_is_refused(
    create_table: CreateTable, open_writer: OpenWriter, values: Any, bad: list[int]
) -> None:
    writer = await open_writer(create_table(f"{OFFSETS}, j JSON"))
    assert poisoned_offsets(await flush(writer, rows(0, 3, j=values))) == bad


@pytest.mark.parametrize("made", [documents, structs, maps])
async def test_texts_of_other_paths_and_of_a_path_with_a_type_stay(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, made: Any
) -> None:
    table = create_table(f"{OFFSETS}, j JSON(a.b String)")
    texts = [AT, "", "2024-02-30", "123456", "9999-12-31"]
    assert poisoned_offsets(await flush(await open_writer(table), rows(0, 5, j=made(texts)))) == []
    raw = client.raw_query(f"SELECT j.a.b AS b FROM {table} ORDER BY offset FORMAT JSONEachRow")
    assert [json.loads(line)["b"] for line in raw.splitlines()] == texts
    other = create_table(f"{OFFSETS}, j JSON")
    values = [{"a": AT, "b": ""}, {"a": None, "b": "123456"}]
    assert poisoned_offsets(await flush(await open_writer(other), rows(0, 2, j=values))) == []
