"""Casts of whole arrays, and the rows for which they fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.sinks.casts import Cast, Misfit, cast_parts, either, lists_of, to_integer, with_items


def bad_rows(cast: Cast) -> list[int]:
    return [] if cast.bad is None else np.flatnonzero(cast.bad).tolist()


@settings(max_examples=50)
@given(st.lists(st.one_of(st.just("x"), st.integers(0, 255).map(str)), min_size=1, max_size=300))
def test_bisecting_finds_every_value_that_cannot_be_cast(texts: list[str]) -> None:
    cast = cast_parts(pa.array(texts), lambda part: pc.cast(part, pa.uint8()))
    assert bad_rows(cast) == [n for n, text in enumerate(texts) if text == "x"]
    assert cast.array.to_pylist() == [None if text == "x" else int(text) for text in texts]


@pytest.mark.parametrize(
    ("values", "bad"),
    [
        ([0, 127, 128, -129, None], [2, 3]),
        ([1.0, 1.5, float("nan")], [1, 2]),
        (["12", "-3", "1.0", "x"], [2, 3]),
    ],
)
def test_integers_keep_their_value(values: list[Any], bad: list[int]) -> None:
    assert bad_rows(to_integer(pa.array(values), pa.int8())) == bad


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)]
)
def test_a_list_does_not_fit_if_one_of_its_items_does_not(kind: pa.DataType) -> None:
    lists = lists_of(pa.array([[1, 300], None, [2, 3]], kind))
    cast = with_items(lists, to_integer(lists.flatten(), pa.uint8()))
    assert bad_rows(cast) == [0]
    assert cast.array.to_pylist()[1:] == [None, [2, 3]]


def test_what_is_not_a_list_is_a_misfit() -> None:
    with pytest.raises(Misfit, match="int64 is not a list"):
        lists_of(pa.array([1]))


def test_masks_are_joined() -> None:
    one, other = np.array([True, False, False]), np.array([False, False, True])
    joined = either(one, other)
    assert joined is not None
    assert joined.tolist() == [True, False, True]
    assert either(one, None) is either(None, one) is one
    assert either(None, None) is None
