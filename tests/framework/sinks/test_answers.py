"""What answers of servers mean for the rows, and when a set-up is wrong."""

from __future__ import annotations

import pytest

from kmr.errors import StrategyError
from kmr.sinks.answers import PutOff, SetUp, of_clickhouse, of_sqlstate, one_line


@pytest.mark.parametrize(
    ("state", "kind", "about_values"),
    [
        ("08006", "later", False),  # connection_failure
        ("40001", "later", False),  # serialization_failure
        ("53100", "later", False),  # disk_full
        ("42703", "schema", False),  # undefined_column
        ("42501", "stop", False),  # insufficient_privilege
        ("23505", "rows", True),  # unique_violation
        ("P0001", "rows", False),  # raise_exception
        ("54000", "rows", False),  # program_limit_exceeded
    ],
)
def test_a_state_of_postgres_is_about_later_the_table_or_rows(
    state: str, kind: str, about_values: bool
) -> None:
    answer = of_sqlstate(state, "refused", "a detail")
    assert (answer.kind, answer.about_values) == (kind, about_values)
    assert answer.reason == "refused: a detail"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Code: 252. DB::Exception: Too many parts (300)", "later"),
        ("Code: 252. DB::Exception: Too many partitions for single INSERT block", "rows"),
        ("Code: 241. DB::Exception: Memory limit exceeded", "later"),
        ("Code: 16. DB::Exception: No such column x", "schema"),
        ("Code: 469. DB::Exception: Constraint `c` is violated", "rows"),
        ("Code: 516. DB::Exception: Authentication failed", "stop"),
        ("Code: 395. DB::Exception: no: while pushing to view v", "stop"),
    ],
)
def test_a_code_of_clickhouse_is_about_later_the_table_or_rows(text: str, kind: str) -> None:
    assert of_clickhouse(Exception(text)).kind == kind


def test_a_refused_connection_is_about_later_and_nothing_has_begun() -> None:
    answer = of_clickhouse(ConnectionRefusedError(111, "refused"))
    assert (answer.kind, answer.not_begun) == ("later", True)


def test_an_error_of_our_own_is_no_answer() -> None:
    assert of_clickhouse(ValueError("a bug")).kind == "unknown"


def test_a_set_up_is_wrong_when_a_hundred_rows_are_refused_in_the_same_words() -> None:
    set_up = SetUp()
    set_up.judge("t", 60, dict.fromkeys(range(60), "no such function"), {"no such function"})
    with pytest.raises(StrategyError, match="t: all of the last 120 rows were refused for one"):
        set_up.judge("t", 60, dict.fromkeys(range(60), "no such function"), {"no such function"})


def test_a_row_that_is_written_or_words_about_values_say_that_the_set_up_is_right() -> None:
    set_up = SetUp()
    for _ in range(3):
        set_up.judge("t", 99, dict.fromkeys(range(99), "no"), {"no"})
        set_up.judge("t", 2, {0: "no"}, {"no"})
    set_up.judge("t", 500, dict.fromkeys(range(500), "a duplicate key"), ())


def test_a_reason_is_one_line_of_bounded_length() -> None:
    assert one_line("a\n  b") == "a b"
    assert len(one_line("x" * 1_000)) == 300


def test_parts_that_are_put_off_are_a_reason_to_wait_until_one_is_written() -> None:
    late = PutOff[str]()
    assert (late.reason_to_wait, late.is_hopeless) == (None, False)
    for answer in ("first", *["locked"] * 63):
        late.note(answer)
    assert (late.reason_to_wait, late.is_hopeless) == ("first", False)
    late.note("locked")
    assert late.is_hopeless
    late.is_written = True
    assert (late.reason_to_wait, late.is_hopeless) == (None, False)
