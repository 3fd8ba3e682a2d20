"""How many rows a statement gets."""

from __future__ import annotations

from kmr.sinks.postgres.pace import Pace


def test_statements_have_fewer_rows_after_a_slow_one_and_more_after_quick_ones() -> None:
    pace = Pace(8.0)
    assert (pace.rows, pace.limit(None), pace.limit(5)) == (None, None, 5)
    pace.exceeded(32_768)
    assert (pace.rows, pace.limit(None), pace.limit(5)) == (4_096, 4_096, 5)
    pace.exceeded(4_096)
    assert pace.rows == 512
    pace.took(512, 7.0)
    pace.took(100, 0.1)
    assert pace.rows == 512
    for _ in range(11):
        pace.took(1 << 19, 1.0)
    assert pace.rows is None


def test_a_statement_has_at_least_one_row() -> None:
    pace = Pace(1.0)
    pace.exceeded(1)
    assert pace.rows == 1
