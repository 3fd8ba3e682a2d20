"""Rows of a map, divided among branches: in the order of their records, and failed records left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kmr.mapping.branching import Branching, join, offsets_in, only_branch
from kmr.mapping.dividing import DividedRows
from kmr.mapping.results import Failure, MapResult
from kmr.tagged_rows import branches, tag

NAMED = Branching(frozenset({"a", "b"}), {})


def tagged_rows(rows: list[tuple[dict[str, Any], str]], offsets: list[int]) -> MapResult:
    """Return what a map makes that returns these rows for the records of these offsets."""
    divided = DividedRows(NAMED)
    of_record = {
        o: [row for row, its in zip(rows, offsets, strict=True) if its == o] for o in offsets
    }
    divided.call_each(of_record.__getitem__, (list(of_record),), list(of_record))
    return NAMED.from_rows(divided.branches, divided.failures)


def found(mapped: MapResult) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    assert mapped.table is not None
    return {
        name: list(zip(mapped.offsets[places].tolist(), rows.to_pylist(), strict=True))
        for name, rows, places in branches(mapped.table)
    }


def test_rows_of_unlike_branches_keep_the_order_of_their_records() -> None:
    rows: list[tuple[dict[str, Any], str]] = [({"x": 1}, "a"), ({"y": "t"}, "b"), ({"x": 2}, "a")]
    mapped = tagged_rows(rows, [5, 5, 7])
    assert mapped.offsets.tolist() == [5, 5, 7]
    assert found(mapped) == {"a": [(5, {"x": 1}), (7, {"x": 2})], "b": [(5, {"y": "t"})]}


def test_a_name_without_a_branch_fails_its_record_and_all_of_its_rows() -> None:
    mapped = tagged_rows([({"x": 1}, "a"), ({"x": 2}, "c"), ({"x": 3}, "a")], [1, 1, 2])
    assert found(mapped) == {"a": [(2, {"x": 3})]}
    (failure,) = mapped.failures
    assert failure.offset == 1
    assert failure.reason.startswith("reduce= has no branch for the name 'c', only a, b")


def test_tables_of_one_batch_are_ordered_by_record_and_then_by_branch() -> None:
    def table(*offsets: int) -> MapResult:
        return MapResult(pa.table({"o": list(offsets)}), np.array(offsets))

    mapped = NAMED.from_tables({"b": table(1, 3, 3), "a": table(2, 3), "other": table(9)})
    assert mapped.offsets.tolist() == [1, 2, 3, 3, 3]
    assert [failure.offset for failure in mapped.failures] == [9]

    mapped = NAMED.from_tables({"b": table(0, 0, 0, 1), "a": table(0, 0)})
    assert mapped.offsets.tolist() == [0, 0, 0, 0, 0, 1]
    assert found(mapped) == {
        "b": [(0, {"o": 0})] * 3 + [(1, {"o": 1})],
        "a": [(0, {"o": 0})] * 2,
    }


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30))
def test_rows_of_any_branches_are_told_apart_and_keep_their_records(
    rows: list[tuple[str, int]],
) -> None:
    offsets = sorted(offset for _, offset in rows)
    named = [({"n": n}, name) for n, (name, _) in enumerate(rows)]
    mapped = tagged_rows(named, offsets)
    bad = {offset for (name, _), offset in zip(rows, offsets, strict=True) if name == "c"}
    assert {failure.offset for failure in mapped.failures} == bad
    kept = [
        (name, offset, n)
        for n, ((name, _), offset) in enumerate(zip(rows, offsets, strict=True))
        if offset not in bad
    ]
    assert mapped.offsets.tolist() == [offset for _, offset, _ in kept]
    expected = {
        branch: [(offset, {"n": n}) for name, offset, n in kept if name == branch]
        for branch in {name for name, _, _ in kept}
    }
    assert (found(mapped) if mapped.table is not None else {}) == expected


def tagged(*offsets: int, failed: int) -> MapResult:
    order = {"a": np.arange(len(offsets))}
    rows = tag({"a": pa.table({"o": list(offsets)})}, order)
    return MapResult(rows, np.array(offsets), (Failure(failed, "wrong"),))


def test_parts_of_a_batch_are_joined_without_the_records_that_failed_in_either() -> None:
    joined = join([tagged(1, 2, failed=3), tagged(4, 5, failed=6)])
    assert found(joined) == {"a": [(o, {"o": o}) for o in (1, 2, 4, 5)]}
    assert [failure.offset for failure in joined.failures] == [3, 6]


def test_the_rows_of_one_branch_can_be_told_from_the_others() -> None:
    mapped = tagged_rows([({"x": 1}, "a"), ({"y": 2}, "b")], [5, 6])
    assert offsets_in(mapped, "b").tolist() == [6]
    assert offsets_in(mapped, "none").tolist() == []
    assert found(only_branch(mapped, "a")) == {"a": [(5, {"x": 1})]}
    assert only_branch(mapped, "none").table is None
