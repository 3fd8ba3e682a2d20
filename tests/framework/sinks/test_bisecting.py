"""Rows of which some are refused with all others: they are found, and the others are written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.sinks.answers import refusal_of_spark
from kmr.sinks.bisecting import bisect

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OVERFLOW = "[CAST_OVERFLOW_IN_TABLE_INSERT] Fail to assign a value. SQLSTATE: 22003"


class Table:
    """Writes whole pieces; one with a bad row raises. A piece that is written again replaces itself."""

    def __init__(self, bad: set[int], words: str = OVERFLOW) -> None:
        self.pieces: dict[tuple[int, ...], list[int]] = {}
        self._bad, self._words = bad, words
        self.tries = 0

    def write(self, numbers: NDArray[np.int64], is_piece: bool) -> dict[int, str]:
        self.tries += 1
        rows = numbers.tolist()
        if self._bad & set(rows):
            raise RuntimeError(f"Job aborted\n{self._words}\n\tat org.apache.spark")
        name = (rows[0], rows[-1] + 1) if is_piece else ()
        self.pieces[name] = [n for n in rows if n != 3]
        return {rows.index(3): "three"} if 3 in rows else {}

    def rows(self) -> list[int]:
        return sorted(n for piece in self.pieces.values() for n in piece)


@given(bad=st.sets(st.integers(0, 39), max_size=9))
def test_each_row_is_written_once_or_refused_with_its_reason_also_the_second_time(
    bad: set[int],
) -> None:
    table = Table(bad)
    for _ in range(2):
        refused = bisect(40, table.write, refusal_of_spark)
        assert set(refused) == bad | {3}
        assert {refused[row] for row in bad} <= {OVERFLOW.partition(" SQLSTATE")[0]}
        assert table.rows() == [n for n in range(40) if n not in refused]


def test_many_bad_rows_take_a_bounded_number_of_attempts_and_the_reason_says_so() -> None:
    table = Table(set(range(0, 4096, 2)))
    refused = bisect(4096, table.write, refusal_of_spark)
    assert table.tries < 300
    assert len(refused) + len(table.rows()) == 4096
    assert "rows that were not tried alone" in refused[4094]


@given(bad=st.sets(st.integers(0, 39), min_size=1), missed=st.sets(st.integers(0, 39), max_size=2))
def test_rows_that_are_found_are_refused_with_their_reasons_and_the_others_are_one_piece(
    bad: set[int], missed: set[int]
) -> None:
    table = Table(bad)
    found = {row: f"row {row}" for row in bad - missed}
    refused = bisect(40, table.write, refusal_of_spark, lambda: found)
    assert set(refused) == bad | {3}
    assert {row: refused[row] for row in found} == found
    assert table.rows() == [n for n in range(40) if n not in refused]
    if found.keys() == bad:
        assert table.tries <= 2
        assert set(table.pieces) <= {()}


def test_a_value_that_an_executor_cannot_convert_refuses_its_row() -> None:
    table = Table({1}, "Caused by: java.lang.ArithmeticException: long overflow\n\tat java.base")
    assert bisect(3, table.write, refusal_of_spark) == {1: "ArithmeticException: long overflow"}


VIOLATED = "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint pos (v > 0) violated by row:"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (f"{VIOLATED}\n - v : -1", f"{VIOLATED} - v : -1"),
        (f"Caused by: org.apache.spark.SparkArithmeticException: {OVERFLOW}", OVERFLOW[:-16]),
    ],
)
def test_the_reason_has_the_values_and_no_class_of_java(words: str, reason: str) -> None:
    assert bisect(2, Table({1}, words).write, refusal_of_spark) == {1: reason}


def test_an_error_that_is_not_about_values_is_raised() -> None:
    table = Table({1}, "[TASK_WRITE_FAILED] no space. SQLSTATE: 58030")
    with pytest.raises(RuntimeError, match="no space"):
        bisect(4, table.write, refusal_of_spark)


RAISED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "orders.py", line 6, in rate
    {}[n]
KeyError: 5

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "orders.py", line 7, in rate
    raise ValueError(f"no rate of {n}") from error
ValueError: no rate of 5
of two lines
\tat org.apache.spark"""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (RAISED, "ValueError: no rate of 5"),
        (
            "SparkException: Python worker exited unexpectedly (crashed). Consider\n\tat x",
            "Python worker exited unexpectedly (crashed). Consider",
        ),
    ],
)
def test_what_a_function_of_the_user_raises_in_an_executor_refuses_its_row(
    words: str, reason: str
) -> None:
    general: set[str] = set()
    refusal = partial(refusal_of_spark, general=general)
    assert bisect(8, Table({1}, words).write, refusal) == {1: reason, 3: "three"}
    assert general == {reason}


def test_rows_that_are_all_refused_in_the_same_words_have_one_reason() -> None:
    assert set(bisect(4096, Table(set(range(4096)), RAISED).write, refusal_of_spark).values()) == {
        "ValueError: no rate of 5"
    }
