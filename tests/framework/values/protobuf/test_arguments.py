"""Rows become the arguments of a message's class."""

from __future__ import annotations

from typing import Any

import pytest

from kmr.values.encoding import DoesNotFit
from kmr.values.protobuf.arguments import arguments

from .types import All

ALL: Any = All.DESCRIPTOR
YEAR_10000 = 253_402_300_800 * 10**6


def test_nulls_stay_out_and_maps_and_messages_are_dicts() -> None:
    row = {
        "f_int64": 1,
        "f_string": None,
        "counts": [("a", 1), ("b", 2)],
        "inners": [{"n": 1, "tags": None}, {"n": None, "tags": ["x"]}],
        "wrapped": 0,
    }
    assert arguments(ALL, row) == {
        "f_int64": 1,
        "counts": {"a": 1, "b": 2},
        "inners": [{"n": 1}, {"tags": ["x"]}],
        "wrapped": {"value": 0},
    }


@pytest.mark.parametrize(
    ("moment", "seconds", "nanos"),
    [
        (1_500_000, 1, 500_000_000),
        (-1, -1, 999_999_000),
        (YEAR_10000 - 1, 253_402_300_799, 999_999_000),
    ],
)
def test_a_timestamp_has_seconds_and_nanoseconds_that_are_not_negative(
    moment: int, seconds: int, nanos: int
) -> None:
    found = arguments(ALL, {"at": moment})
    assert found == {"at": {"seconds": seconds, "nanos": nanos}}
    assert All(**found).SerializeToString()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"inner": {"tags": ["a", None]}}, "field inner.tags: lists and maps cannot hold null"),
        ({"counts": [("a", None)]}, "field counts: lists and maps cannot hold null"),
        ({"counts": [("a", 1), ("a", 2)]}, "field counts: its key 'a' is there twice"),
        (
            {"at": YEAR_10000},
            f"field at: a Timestamp is of the years 1 to 9999, not {YEAR_10000} us",
        ),
        ({"a": "x", "b": 1}, "field b: the oneof choice has values of a and b"),
    ],
)
def test_what_a_message_cannot_hold_is_refused_with_its_place(
    row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DoesNotFit) as caught:
        arguments(ALL, row)
    assert str(caught.value) == reason


def test_an_enum_holds_only_the_names_of_its_values() -> None:
    assert arguments(ALL, {"colors": ["RED", "DARK"]}) == {"colors": ["RED", "DARK"]}
    with pytest.raises(DoesNotFit, match=r"field color \(enum t.Color\) cannot hold"):
        arguments(ALL, {"color": "PINK"})
