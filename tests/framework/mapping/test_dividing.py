"""Rows find their branches as calls return them, and keep the number of their record."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kmr.mapping.branching import Branching
from kmr.mapping.dividing import DividedRows


class View(msgspec.Struct):
    n: int


class LongView(View):
    pass


class Order(msgspec.Struct):
    n: int


class Tagged(msgspec.Struct, tag="named"):
    n: int


BRANCHING = Branching(frozenset({"View", "Order", "named"}), {View: "View", Order: "Order"})

number = st.integers(0, 9)
row = (
    st.builds(View, number)
    | st.builds(LongView, number)
    | st.builds(Order, number)
    | st.builds(Tagged, number)
)
pair = st.tuples(row, st.sampled_from(["named", "View", "unknown"]))
several = st.lists(row | pair, max_size=4)
result = st.none() | row | pair | several | st.just(5) | st.just({"n": 1})


def placed(row: Any) -> tuple[str | None, Any]:
    """The branch of a row, and the row without a name."""
    if isinstance(row, tuple):
        return (None if row[1] == "unknown" else row[1]), row[0]
    names = {View: "View", LongView: "View", Order: "Order", Tagged: "named"}
    return names.get(type(row)), row


@given(st.lists(result, max_size=12), st.booleans())
def test_each_row_is_among_those_of_its_branch_with_the_number_of_its_record(
    results: list[Any], generated: bool
) -> None:
    divided = DividedRows(BRANCHING)
    as_returned = [iter(each) if generated and type(each) is list else each for each in results]
    assert divided.call_each(lambda each: each, (as_returned,), list(range(len(results)))) == len(
        results
    )
    rows = [
        (*placed(row), at)
        for at, each in enumerate(results)
        if each is not None
        for row in (each if type(each) is list else [each])
    ]
    failed = {at for branch, _, at in rows if branch is None}
    assert [failure.offset for failure in divided.failures] == sorted(failed)
    for name, some in divided.branches.items():
        kept = [pair for pair in zip(some.numbers, some.rows, strict=True) if pair[0] not in failed]
        assert kept == [
            (at, row) for branch, row, at in rows if branch == name and at not in failed
        ]
        of_class = {cls for cls, branch in BRANCHING.classes.items() if branch == name}
        assert not some.alike or set(map(type, some.rows)) <= of_class
    assert {branch for branch, _, at in rows if at not in failed} <= divided.branches.keys()


def test_the_first_row_without_a_branch_says_why_its_record_fails() -> None:
    divided = DividedRows(BRANCHING)
    divided.call_each(lambda _: [View(1), (View(2), "what"), Order(3), {"n": 4}], ([0],), [7])
    (failure,) = divided.failures
    assert failure.offset == 7
    assert failure.reason.startswith("reduce= has no branch for the name 'what', only Order, View")
