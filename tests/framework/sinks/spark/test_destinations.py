"""Destinations: which one a path gets, the columns that its rows must fit, a table's new partitions."""

from __future__ import annotations

from datetime import date
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest

from kmr.record import Range, Rows, TopicPartition
from kmr.sinks.parquet.columns import DestinationColumns
from kmr.sinks.planning import plan_ranges
from kmr.sinks.spark.destinations import (
    CatalogTable,
    choose_path,
)
from kmr.spark.session import SharedSession

NO_OPTIONS: dict[str, Any] = {
    "format": "parquet",
    "partition_by": (),
    "options": {},
    "schema": None,
}


def test_a_column_without_values_gets_its_type_later() -> None:
    columns = DestinationColumns("/x")
    assert columns.fit(pa.table({"a": [1], "b": pa.nulls(1)})).table.column_names == ["a"]
    fitted = columns.fit(pa.table({"a": [2], "b": ["text"]}))
    assert fitted.table.to_pylist() == [{"a": 2, "b": "text"}]
    assert columns.fit(pa.table({"a": [3]})).table.to_pylist() == [{"a": 3, "b": None}]


def test_rows_with_a_column_that_a_table_lacks_are_refused_unless_it_was_altered() -> None:
    altered = pa.table({"a": [0], "b": [""]}).schema
    columns = DestinationColumns("table t", pa.schema({"a": pa.int64()}), lambda: altered)
    assert columns.fit(pa.table({"a": [1], "b": ["x"]})).table.num_rows == 1
    fitted = columns.fit(pa.table({"a": [1, 2], "c": [1, None]}))
    assert list(fitted.refused) == [0]
    assert "table t has no column c; its columns are a, b" in fitted.refused[0]
    assert fitted.kept().to_pylist() == [{"a": 2, "b": None}]


def test_columns_of_a_path_differ_by_more_than_their_case_and_csv_has_no_nested_values() -> None:
    session = SharedSession(None, {})
    columns = choose_path(session, "/x", **NO_OPTIONS | {"format": "csv"}).columns
    table = pa.table(
        {
            "id": [1, 2, 3, 4, 5],
            "Id": [None, 1, None, None, None],
            "v": [None, None, [1], None, None],
            "KMR_range": [None, None, None, 1, None],
            "a`b": [None, None, None, None, 1],
        }
    )
    fitted = columns.fit(table)
    assert sorted(fitted.refused) == [1, 2, 3, 4]
    assert "Spark reads no such name" in fitted.refused[4]
    assert "the name is taken by id" in fitted.refused[1]
    assert "CSV has no nested values" in fitted.refused[2]
    assert "the name is taken by kmr_range" in fitted.refused[3]


@pytest.mark.parametrize(
    ("format_", "doubt"), [("orc", None), ("delta", None), ("iceberg", "Spark appends to iceberg")]
)
def test_a_format_that_does_not_detect_repeated_writes_is_a_doubt(
    format_: str, doubt: str | None
) -> None:
    session = SharedSession(None, {})
    found = choose_path(session, "hdfs://h/x", **NO_OPTIONS | {"format": format_})
    assert (found.doubt or "").startswith(doubt or "")
    assert (found.doubt is None) == (doubt is None)


@pytest.mark.parametrize(("generation", "application"), [(0, "kmr:g:t:0"), (7, "kmr:g:t:0@7")])
def test_delta_gets_the_generation_of_the_offsets_in_its_transaction_id(
    generation: int, application: str
) -> None:
    """Else it would skip what a reset reads again."""
    session = SharedSession(None, {})
    delta = choose_path(session, "hdfs://h/x", **NO_OPTIONS | {"format": "delta"})
    offsets = np.arange(5)
    added = Rows(pa.table({"o": offsets}), (Range("t", 0, 0, 4),), offsets)
    (part,) = plan_ranges([added], "g", {TopicPartition("t", 0): generation})
    frame = MagicMock()
    delta.write_frame(part, frame)
    options = frame.write.format.return_value.options.return_value.option
    options.assert_called_once_with("txnAppId", application)
    options.return_value.option.assert_called_once_with("txnVersion", "4")


@pytest.mark.parametrize(("format_", "written"), [("delta", ["o"]), ("avro", ["o", "computed"])])
def test_delta_is_not_given_columns_that_the_rows_lack_because_it_may_compute_them(
    format_: str, written: list[str]
) -> None:
    session = MagicMock()
    schema = pa.schema({"o": pa.int64(), "computed": pa.int64()})
    options: dict[str, Any] = NO_OPTIONS | {"format": format_, "schema": schema}
    destination = choose_path(session, "hdfs://h/x", **options)
    rows = pa.table({"o": np.arange(2)})
    added = Rows(rows, (Range("t", 0, 0, 1),), np.arange(2))
    (part,) = plan_ranges([added], "g", {})
    destination.write(part, rows)
    (frame,) = session.get().createDataFrame.call_args.args
    assert frame.column_names == written


class Sql:
    """Keeps the statements that a session is given."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def sql(self, statement: str) -> None:
        self.statements.append(statement)


@pytest.mark.parametrize(
    ("columns", "partitions", "added"),
    [
        ((), [], None),
        (("c",), [("it's",)], r"PARTITION (`c` = 'it\'s')"),
        (
            ("a`b", "d"),
            [(True, date(2026, 1, 2))],
            "PARTITION (`a``b` = 'true', `d` = '2026-01-02')",
        ),
        (("c",), [(None,), (5,)], "PARTITION (`c` = null) PARTITION (`c` = '5')"),
    ],
)
def test_new_partitions_are_added_before_the_table_is_refreshed(
    columns: tuple[str, ...], partitions: Any, added: str | None
) -> None:
    table = CatalogTable("`db`.`t`", "parquet", "file:/x", columns, pa.schema([]))
    session = Sql()
    table.publish(cast("Any", session), partitions)
    expected = ["REFRESH TABLE `db`.`t`"]
    if added is not None:
        expected.insert(0, f"ALTER TABLE `db`.`t` ADD IF NOT EXISTS {added}")
    assert session.statements == expected
