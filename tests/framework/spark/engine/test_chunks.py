"""Chunks end at the same offsets, however their records were fetched."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kmr.spark.engine.chunks import cut_chunks
from kmr.testing import batch_of

if TYPE_CHECKING:
    from kmr.record import Batch


def pieces(values: list[bytes], cuts: list[int], first: int) -> list[Batch]:
    """The same records as batches, fetched in another way."""
    edges = [0, *sorted({c for c in cuts if 0 < c < len(values)}), len(values)]
    return [batch_of("t", 0, first + a, values[a:b]) for a, b in pairwise(edges)]


@hypothesis_settings(deadline=None)
@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=80),
    st.lists(st.integers(0, 80)),
    st.lists(st.integers(0, 80)),
    st.integers(0, 100),
)
def test_chunks_do_not_depend_on_how_records_were_fetched(
    values: list[bytes], one: list[int], other: list[int], first: int
) -> None:
    def chunks(cuts: list[int]) -> list[tuple[Any, ...]]:
        found = list(cut_chunks(pieces(values, cuts, first), grid=16, max_bytes=100))
        return [
            (c.first, c.last, c.end, [v for b in c.batches for v in b.records["value"].to_pylist()])
            for c in found
        ]

    found = chunks(one)
    assert found == chunks(other)
    assert [value for *_, part in found for value in part] == values
    assert found[0][0] == first
    for before, after in pairwise(found):
        assert before[1] + 1 == after[0]
        assert (before[2] == "count") == (after[0] % 16 == 0)
    assert all(sum(map(len, part)) <= 100 or len(part) == 1 for *_, part in found)
