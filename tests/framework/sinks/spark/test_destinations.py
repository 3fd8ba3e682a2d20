"""Destinations: which one a path gets, the columns that its rows must fit, a table's new partitions."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.record import Range, Rows, TopicPartition
from kmr.sinks.parquet.columns import Columns
from kmr.sinks.planning import plan_ranges
from kmr.sinks.spark.destinations import (
    CatalogTable,
    FileDestination,
    SparkDestination,
    choose_path,
)
from kmr.spark.runtime.session import SharedSession

if TYPE_CHECKING:
    from pathlib import Path

NO_OPTIONS: dict[str, Any] = {
    "format": "parquet",
    "partition_by": (),
    "compression": "zstd",
    "options": {},
    "schema": None,
}


def test_a_column_without_values_gets_its_type_later() -> None:
    columns = Columns("/x")
    assert columns.fit(pa.table({"a": [1], "b": pa.nulls(1)})).table.column_names == ["a"]
    fitted = columns.fit(pa.table({"a": [2], "b": ["text"]}))
    assert fitted.table.to_pylist() == [{"a": 2, "b": "text"}]
    assert columns.fit(pa.table({"a": [3]})).table.to_pylist() == [{"a": 3, "b": None}]


def test_an_unknown_column_of_a_table_is_an_error_unless_the_table_was_altered() -> None:
    altered = pa.table({"a": [0], "b": [""]}).schema
    columns = Columns("table t", pa.schema({"a": pa.int64()}), lambda: altered)
    assert columns.fit(pa.table({"a": [1], "b": ["x"]})).table.num_rows == 1
    with pytest.raises(StrategyError, match=r"table t has no column c; its columns are a, b"):
        columns.fit(pa.table({"c": [1]}))


def test_parquet_is_written_here_and_every_other_format_by_spark(tmp_path: Path) -> None:
    session = SharedSession(None, {})
    here = choose_path(None, str(tmp_path), **NO_OPTIONS)
    assert isinstance(here, FileDestination)
    assert here.doubt is None
    with_options = choose_path(session, str(tmp_path), **NO_OPTIONS | {"options": {"a": "b"}})
    assert isinstance(with_options, SparkDestination)
    for format_, doubt in (("orc", None), ("delta", None), ("iceberg", "Spark appends to iceberg")):
        by_spark = choose_path(session, "hdfs://h/x", **NO_OPTIONS | {"format": format_})
        assert isinstance(by_spark, SparkDestination)
        assert (by_spark.doubt or "").startswith(doubt or "")
        assert (by_spark.doubt is None) == (doubt is None)


@pytest.mark.parametrize(("generation", "application"), [(0, "kmr:g:t:0"), (7, "kmr:g:t:0@7")])
def test_delta_gets_the_generation_of_the_offsets_in_its_transaction_id(
    generation: int, application: str
) -> None:
    """Else it would skip what a reset reads again."""
    session = SharedSession(None, {})
    delta = choose_path(session, "hdfs://h/x", **NO_OPTIONS | {"format": "delta"})
    assert isinstance(delta, SparkDestination)
    offsets = np.arange(5)
    added = Rows(pa.table({"o": offsets}), (Range("t", 0, 0, 4),), offsets)
    (part,) = plan_ranges([added], "g", {TopicPartition("t", 0): generation})
    frame = MagicMock()
    delta.write_frame(part, frame)
    options = frame.write.format.return_value.options.return_value.option
    options.assert_called_once_with("txnAppId", application)
    options.return_value.option.assert_called_once_with("txnVersion", "4")


def test_a_path_that_only_spark_can_write_is_an_error_without_a_session() -> None:
    with pytest.raises(StrategyError, match="x: only Spark writes orc"):
        choose_path(None, "x", **NO_OPTIONS | {"format": "orc"})
    with pytest.raises(StrategyError, match="nosuch://x cannot be written from here"):
        choose_path(None, "nosuch://x", **NO_OPTIONS)


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
