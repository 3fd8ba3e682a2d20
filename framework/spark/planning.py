"""What a micro-batch reads, and how it is divided among tasks. Plain arithmetic, without a broker."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from framework.spark.offsets import OffsetRange, Offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from framework.record import TopicPartition

__all__ = ["divide", "limit_offsets", "ranges_between"]


def ranges_between(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """The ranges from `start` to `end`, for partitions that are in both and have any; in order."""
    return [
        OffsetRange(*partition, start[partition], end[partition])
        for partition in sorted(end)
        if partition in start and start[partition] < end[partition]
    ]


def limit_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], rows: int
) -> Offsets:
    """The end of a micro-batch of about `rows` offsets, shared by what each partition has waiting.

    Every partition with something waiting moves by at least one offset, so that none starves.
    """
    waiting = {p: max(0, end[p] - start.get(p, end[p])) for p in end}
    total = sum(waiting.values())
    if total <= rows:
        return dict(end)
    return {
        p: end[p]
        if not waiting[p]
        else start[p] + min(waiting[p], max(1, rows * waiting[p] // total))
        for p in end
    }


def divide(
    ranges: Iterable[OffsetRange], parts: int | None, *, grid: int | None = None
) -> list[OffsetRange]:
    """Divide ranges into about `parts` pieces of about the same size, one task each.

    Args:
        parts: None, or no more than there are ranges: each range stays whole.
        grid: divide only at offsets that are multiples of this.
    """
    ranges = list(ranges)
    if parts is None or parts <= len(ranges):
        return ranges
    total = sum(whole.size for whole in ranges)
    divided = []
    for whole in ranges:
        pieces = max(1, round(parts * whole.size / total))
        cuts = {whole.first + whole.size * piece // pieces for piece in range(1, pieces)}
        if grid is not None:
            cuts = {cut // grid * grid for cut in cuts}
        edges = [whole.first, *sorted(c for c in cuts if whole.first < c < whole.end), whole.end]
        divided += [whole._replace(first=first, end=end) for first, end in pairwise(edges)]
    return divided
