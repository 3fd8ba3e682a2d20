"""Arithmetic of offset ranges: merge, subtract, make from single offsets."""

from __future__ import annotations

from bisect import bisect_left
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ..record import Range

_partition = attrgetter("topic", "partition", "generation")
_order = attrgetter("topic", "partition", "generation", "first")


def merge_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the same offsets in as few ranges as possible, ordered by partition and offset."""
    merged: list[Range] = []
    for r in sorted(ranges, key=_order):
        if merged and _partition(merged[-1]) == _partition(r) and merged[-1].last + 1 >= r.first:
            merged[-1] = merged[-1]._replace(last=max(merged[-1].last, r.last))
        else:
            merged.append(r)
    return tuple(merged)


def subtract_ranges(ranges: Iterable[Range], gone: Iterable[Range]) -> tuple[Range, ...]:
    """Return the offsets of `ranges` that are not in `gone`; offsets of other generations differ."""
    taken = {key: list(group) for key, group in groupby(merge_ranges(gone), _partition)}
    remaining: list[Range] = []
    for r in ranges:
        first = r.first
        holes = taken.get(_partition(r), [])
        for hole in holes[bisect_left(holes, r.first, key=attrgetter("last")) :]:
            if hole.first > r.last:
                break
            if hole.first > first:
                remaining.append(r._replace(first=first, last=hole.first - 1))
            first = hole.last + 1
        if first <= r.last:
            remaining.append(r._replace(first=first))
    return tuple(remaining)


def ranges_of(offsets: NDArray[np.int64], like: Range) -> tuple[Range, ...]:
    """Convert ascending offsets, with repeats, to ranges of the partition and generation of `like`."""
    breaks = np.flatnonzero(np.diff(offsets) > 1)
    firsts = np.concatenate([offsets[:1], offsets[breaks + 1]]).tolist()
    lasts = np.concatenate([offsets[breaks], offsets[-1:]]).tolist()
    return tuple(
        like._replace(first=first, last=last) for first, last in zip(firsts, lasts, strict=True)
    )
