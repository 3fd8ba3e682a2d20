"""Letters of rows that belong to no single record: what they say, and how they are named."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kmr.delivery.failures import FAILED_SCHEMA
from kmr.delivery.row_letters import MADE_OF, ROW, row_letters
from kmr.errors import SinkError
from kmr.record import Range, Rows

RANGES = (Range("t", 0, 3, 9, 1), Range("t", 0, 12, 20, 1), Range("t", 2, 5, 5, 1))


def headers(row: dict[str, list[dict[str, bytes]]]) -> dict[object, str]:
    return {pair["key"]: pair["value"].decode() for pair in row["headers"]}


def test_a_letter_of_a_row_has_the_row_as_json_and_says_which_records_it_was_made_of() -> None:
    rows = Rows(pa.table({"k": ["a", "b"], "n": [1, 2]}), RANGES)
    letters = row_letters(rows, ("too large", "too small"), "reduce-2", 4, ValueError("no"), RANGES)
    assert letters.table.schema == FAILED_SCHEMA
    one, two = letters.table.to_pylist()
    assert (one["value"], two["value"]) == (b'{"k":"a","n":1}', b'{"k":"b","n":2}')
    assert (one["reason"], two["reason"]) == ("too large", "too small")
    assert [one[name] for name in ("topic", "partition", "offset")] == ["t", 0, 3]
    assert (one["stage"], one["attempt"], one["exception"]) == ("reduce-2", 4, "ValueError")
    assert headers(one)[MADE_OF] == "t-0[3..20], t-2[5..5]"
    assert letters.ranges == RANGES, "its records are settled with it"


def test_records_of_open_windows_are_not_settled_with_a_letter() -> None:
    rows = Rows(pa.table({"n": [1]}), RANGES[:1], closes=(0, 10))
    letters = row_letters(rows, "no", "reduce-2", 1, None, RANGES[:1])
    assert letters.ranges == ()
    assert not letters.accepted.is_set()


def test_a_row_that_is_made_again_has_the_name_that_it_had_and_no_other_row_has_it() -> None:
    def names(numbers: list[int]) -> list[str]:
        rows = Rows(pa.table({"n": numbers}), RANGES)
        letters = row_letters(rows, "no", "reduce-2", 1, None, RANGES)
        return [headers(row)[ROW] for row in letters.table.to_pylist()]

    assert names([1, 2, 1]) == names([1, 2, 1])
    assert len(set(names([1, 2, 1]))) == 3


def test_a_value_that_json_cannot_hold_is_a_text_in_the_letter_of_its_row() -> None:
    day = datetime(2026, 1, 2, tzinfo=UTC)
    table = pa.table({"k": ["a", "b"], "x": [float("nan"), 1.5], "at": [day, day], "n": [2**60, 1]})
    one, two = row_letters(Rows(table, RANGES), "no", "r", 1, None, RANGES).table["value"]
    at = b'"at":"2026-01-02T00:00:00.000000Z"'
    assert one.as_py() == b'{"k":"a","x":"nan",%s,"n":1152921504606846976}' % at
    assert two.as_py() == b'{"k":"b","x":1.5,%s,"n":1}' % at


def test_a_row_with_a_column_twice_has_a_letter_with_both() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array(["a"])], names=["n", "n"])
    (row,) = row_letters(Rows(table, RANGES), "no", "reduce-2", 1, None, RANGES).table.to_pylist()
    assert row["value"] == b'{"n":1,"n":"a"}'


def test_rows_of_which_nothing_says_what_they_were_made_of_have_no_letter() -> None:
    with pytest.raises(SinkError, match="have no offsets"):
        row_letters(Rows(pa.table({"n": [1]}), ()), "no", "reduce-2", 1, None, ())
