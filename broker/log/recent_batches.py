"""Where the newest batches of a log are: most consumers read them, and find them without the file."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

MOST_BATCHES: Final = 1024
"""Batches that a log remembers, 16 bytes each; when there are so many, the older half is forgotten."""


class RecentBatches:
    """The offsets and positions of batches that this process appended to the active segment.

    Calls: `add` for each batch; `cut` after a failed write; `clear` when a new segment begins.
    """

    def __init__(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")

    def add(self, offset: int, position: int) -> None:
        """Note the next batch."""
        if len(self._offsets) >= MOST_BATCHES:
            del self._offsets[: MOST_BATCHES // 2], self._positions[: MOST_BATCHES // 2]
        self._offsets.append(offset)
        self._positions.append(position)

    def cut(self, offset: int) -> None:
        """Forget the batches from `offset` on."""
        kept = bisect_left(self._offsets, offset)
        del self._offsets[kept:], self._positions[kept:]

    def clear(self) -> None:
        """Forget all."""
        del self._offsets[:], self._positions[:]

    def find(
        self, offset: int, limit: int, most_bytes: int, segment_bytes: int
    ) -> tuple[int, int, int, int] | None:
        """Return position, end, first offset and next offset of the batches from `offset` to `limit`.

        Args:
            offset: in the first of them.
            limit: above `offset`; a batch ends there.
            most_bytes: of all of them.
            segment_bytes: where the newest batch ends.

        Return None if the first one is not remembered, or has more than `most_bytes`.
        """
        offsets, positions = self._offsets, self._positions
        first = bisect_right(offsets, offset) - 1
        if first < 0:
            return None
        position, after = positions[first], bisect_left(offsets, limit, first)
        if after < len(offsets):
            segment_bytes = positions[after]
        if segment_bytes - position > most_bytes:
            after = bisect_right(positions, position + most_bytes, first, after) - 1
            if after == first:
                return None
            segment_bytes, limit = positions[after], offsets[after]
        return position, segment_bytes, offsets[first], limit
