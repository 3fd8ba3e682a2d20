"""Ranges against sets of single offsets, the obvious model."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kmr.delivery.ranges import merge_ranges, ranges_of, subtract_ranges
from kmr.record import Range

range_lists = st.lists(
    st.builds(
        lambda partition, first, length: Range("t", partition, first, first + length, 1),
        st.integers(0, 1),
        st.integers(0, 40),
        st.integers(0, 8),
    ),
    max_size=12,
)


def offsets_in(ranges: tuple[Range, ...] | list[Range]) -> set[tuple[int, int]]:
    return {(r.partition, o) for r in ranges for o in range(r.first, r.last + 1)}


@given(range_lists)
def test_merging_keeps_every_offset_in_disjoint_ranges_with_gaps_between(
    ranges: list[Range],
) -> None:
    merged = merge_ranges(ranges)
    assert offsets_in(merged) == offsets_in(ranges)
    for one, two in itertools.pairwise(merged):
        assert one.partition < two.partition or one.last + 1 < two.first


@given(range_lists, range_lists)
def test_subtracting_leaves_exactly_the_other_offsets(
    ranges: list[Range], gone: list[Range]
) -> None:
    ranges = list(merge_ranges(ranges))
    assert offsets_in(subtract_ranges(ranges, gone)) == offsets_in(ranges) - offsets_in(gone)


def test_offsets_of_another_generation_are_not_taken_out() -> None:
    whole = Range("t", 0, 0, 9, generation=2)
    assert subtract_ranges([whole], [Range("t", 0, 3, 4, generation=1)]) == (whole,)


@given(st.lists(st.integers(0, 50), min_size=1).map(sorted))
def test_ascending_offsets_with_repeats_become_the_ranges_that_cover_them(
    offsets: list[int],
) -> None:
    ranges = ranges_of(np.array(offsets, dtype=np.int64), Range("t", 0, 0, 50, 1))
    assert offsets_in(ranges) == {(0, o) for o in offsets}
    assert merge_ranges(ranges) == ranges
