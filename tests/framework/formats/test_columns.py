"""Columns that are made from Python values, or of one repeated value."""

from __future__ import annotations

from kmr.formats.columns import Constants, Row, from_rows
from kmr.record import SCHEMA


def test_constant_columns_are_bounded() -> None:
    constants = Constants()
    for n in range(1000):
        assert constants.column("topic", f"t{n}", 2).to_pylist() == [f"t{n}"] * 2
    assert len(constants._columns) <= 64
    assert len(constants.column("topic", "t0", 200_000)) == 200_000
    assert sum(len(column) for column in constants._columns.values()) < 200_000


def test_rows_become_columns_of_the_schema() -> None:
    records = from_rows(
        "t", 2, [Row(7, 1500, 1, b"k", None, [("h", b"x"), ("i", None)]), Row(9, 0, 0, None, b"v")]
    )
    assert records.schema == SCHEMA
    first, second = records.to_pylist()
    assert (first["key"], first["value"], first["timestamp"].timestamp()) == (b"k", None, 1.5)
    assert first["headers"] == [{"key": "h", "value": b"x"}, {"key": "i", "value": None}]
    assert (second["topic"], second["partition"], second["offset"]) == ("t", 2, 9)
    assert (second["value"], second["headers"]) == (b"v", None)
