"""Python values become a column; one that does not fit is refused alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kmr.values.python_columns import convert, to_column


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
        ([1, {"b": 2}], "no type of a column holds [1, {'b': 2}] (ArrowInvalid: cannot mix struct"),
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
