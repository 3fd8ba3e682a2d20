"""Types of PostgreSQL for Arrow's, and the text for COPY. Values are checked in test_writer.py."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kmr.columns.fitted import fit_columns
from kmr.errors import StrategyError
from kmr.sinks.postgres.types import PostgresColumn, column_type, copy_columns, copy_text, targets


def test_null_and_empty_text_differ_and_bytes_are_hexadecimal() -> None:
    table = pa.table({"s": ["", None], "raw": pa.array([b"\x00\xff", None], pa.binary())})
    assert copy_text(copy_columns(table)) == b'"","\\x00ff"\n,\n'
    assert copy_text(copy_columns(table.slice(1))) == b",\n"


def test_a_type_that_postgres_lacks_is_an_error() -> None:
    assert column_type(pa.dictionary(pa.int8(), pa.string())) == "text"
    assert column_type(pa.decimal128(10, 2)) == "numeric(10, 2)"
    with pytest.raises(StrategyError, match="no type for Arrow's sparse_union"):
        column_type(pa.sparse_union([pa.field("a", pa.int8())]))


def test_a_number_is_no_time() -> None:
    columns = [PostgresColumn("at", "timestamp with time zone", "timestamptz")]
    fitted = fit_columns(pa.table({"at": [1]}), targets(columns))
    assert fitted.refused[0].startswith("column at (timestamp with time zone) cannot hold int64")
    assert fitted.general == set(fitted.refused.values())


def test_whole_numbers_fit_a_numeric_with_digits() -> None:
    columns = [PostgresColumn("n", "numeric(5,2)", "numeric", (5, 2))]
    fitted = fit_columns(pa.table({"n": [1, 99_999]}), targets(columns))
    assert [str(value) for value in fitted.kept()["n"].to_pylist()] == ["1.00"]
    assert fitted.refused == {1: "column n (numeric(5,2)) cannot hold 99999"}


def test_a_span_is_whole_in_text_and_cut_to_microseconds_in_an_interval() -> None:
    columns = [PostgresColumn("t", "text", "text"), PostgresColumn("i", "interval", "interval")]
    span = pa.array([1_500_000_001], pa.duration("ns"))
    fitted = fit_columns(pa.table({"t": span, "i": span}), targets(columns))
    assert fitted.table.to_pylist() == [{"t": "00:00:01.500000001", "i": "00:00:01.500000"}]
    assert fitted.cut == {"i": 1}
