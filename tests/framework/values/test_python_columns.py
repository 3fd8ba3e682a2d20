"""Python values become a column; one that does not fit is refused alone."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow as pa
import pytest

from kmr.values.python_columns import convert, to_column

MIDNIGHT = datetime.fromisoformat("2026-01-01")


def test_a_value_that_does_not_fit_is_null_and_has_a_reason() -> None:
    refused: dict[int, str] = {}
    column = to_column([1, "x", None, 2**70, 4], pa.int64(), refused)
    assert column.to_pylist() == [1, None, None, None, 4]
    assert sorted(refused) == [1, 3]


def test_values_are_bisected_to_those_that_do_not_fit() -> None:
    refused: dict[int, str] = {}
    parts = list(convert([1, 2, "x", 4], [0, 1, 2, 3], pa.int64(), refused))
    assert [rows for rows, _ in parts] == [[0, 1], [3]]
    assert list(refused) == [2]


class Shy:
    def __repr__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (object(), "no type of a column holds <object object"),
        (
            [1, {"b": 2}],
            "no type of a column holds [1, {'b': 2}] (its items have several types, or one",
        ),
        ([Shy()], "no type of a column holds a list"),
    ],
    ids=["object", "list of unlike items", "broken repr"],
)
def test_a_value_without_a_type_is_shown_with_what_to_return(value: object, shown: str) -> None:
    refused: dict[int, str] = {}
    assert list(convert([value], [0], None, refused)) == []
    assert refused[0].startswith(shown)
    assert (
        "; return numbers, texts, times, dicts of them, or lists whose items have one type"
        in refused[0]
    )


@pytest.mark.parametrize(
    ("kind", "values", "bad"),
    [
        (
            pa.timestamp("ms"),
            [MIDNIGHT.replace(microsecond=5_000), MIDNIGHT.replace(microsecond=5)],
            [1],
        ),
        (pa.timestamp("ms"), [1_767_225_600_000, None], []),
        (pa.time32("s"), [time(1, 2, 3), time(1, 2, 3, 500_000)], [1]),
        (pa.duration("s"), [timedelta(seconds=1), timedelta(milliseconds=1)], [1]),
        (
            pa.list_(pa.timestamp("s")),
            [[MIDNIGHT], [MIDNIGHT.replace(microsecond=1)]],
            [1],
        ),
        (pa.date32(), [date(2026, 1, 1), MIDNIGHT, MIDNIGHT.replace(hour=23)], [2]),
        (pa.float32(), [0.1, 1e-60, 1e300], [1, 2]),
    ],
)
def test_a_time_with_more_digits_than_its_type_is_refused_and_not_cut(
    kind: pa.DataType, values: list[Any], bad: list[int]
) -> None:
    refused: dict[int, str] = {}
    column = to_column(values, kind, refused)
    assert sorted(refused) == bad
    assert column.type == kind
    assert all(str(kind) in reason for reason in refused.values())
