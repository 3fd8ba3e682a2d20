"""Which columns of a table rows are written to."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.sinks.choosing import choose


class Column(NamedTuple):
    name: str
    is_needed: bool = False


TABLE = [Column("a"), Column("b", is_needed=True), Column("c")]


def test_the_columns_of_the_rows_are_chosen_and_those_that_the_table_needs() -> None:
    choice = choose("t", TABLE, ["c"], None, "error")
    assert [column.name for column in choice.columns] == ["c", "b"]
    assert choice.problems == {}


def test_a_column_that_the_table_never_had_is_about_the_rows_that_have_it() -> None:
    choice = choose("t", TABLE, ["a", "b", "x"], None, "error")
    assert "t has no column x to write to; its columns are a, b, c" in choice.problems["x"]
    rows = pa.table({"a": [1, 2], "b": [1, 2], "x": [None, 5]})
    assert list(choice.fit(rows, []).refused) == [1]


def test_a_column_that_is_gone_is_about_the_table() -> None:
    with pytest.raises(StrategyError, match="t has no column x to write to"):
        choose("t", TABLE, ["a", "b", "x"], None, "error", had=["x"])


def test_columns_that_are_ignored_are_left_out_and_counted_where_they_have_a_value() -> None:
    choice = choose("t", TABLE, ["a", "b", "x"], None, "ignore")
    assert choice.left_out == ["x"]
    rows = pa.table({"a": [1, 2], "b": [1, 2], "x": [None, 5]})
    assert choice.fit(rows, []).left_out == {"x": 1}


def test_columns_that_were_asked_for_have_to_be_there() -> None:
    choice = choose("t", TABLE, ["a"], ["a", "c"], "error")
    assert choice.problems[None] == "the rows for t have no column c"
    assert [column.name for column in choice.columns] == ["a", "c"]


def test_rows_with_none_of_the_columns_or_with_one_twice_cannot_be_written() -> None:
    assert "none of its columns" in choose("t", TABLE, ["x"], None, "ignore").problems[None]
    assert "the column a twice" in choose("t", TABLE, ["a", "a", "b"], None, "error").problems[None]
