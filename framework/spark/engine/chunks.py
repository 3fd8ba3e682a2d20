"""Cutting the batches of a task into chunks, at offsets that do not depend on how they were fetched.

Reducers flush a chunk as a whole, so its offsets are in deduplication tokens and file names. They must be
the same when another task, with other settings, replays the micro-batch. So a chunk ends at a multiple of
`GRID`, at the end of the micro-batch, or where the bytes of its records exceed a constant; nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from ...record import Batch

GRID: Final = 131_072
"""Offsets. A change makes other tokens for a micro-batch that is replayed after it."""

CHUNK_BYTES: Final = 64 * 1024 * 1024
"""Bytes of keys and values. A change makes other tokens, as one of `GRID` does."""

ChunkEnd = Literal["count", "bytes", "trigger"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive batches of one partition.

    Attributes:
        first, last: the offsets, both inclusive.
        end: why it ends: at the grid (`count`), at its size (`bytes`) or with the micro-batch (`trigger`).
    """

    batches: tuple[Batch, ...]
    first: int
    last: int
    end: ChunkEnd


def cut_chunks(
    batches: Iterable[Batch], *, grid: int = GRID, max_bytes: int = CHUNK_BYTES
) -> Iterator[Chunk]:
    """Cut the batches of one range, without gaps between them, into chunks.

    A chunk has at least one record, even one that alone is larger than `max_bytes`.
    """
    held: list[Batch] = []
    room = max_bytes
    for batch in batches:
        rest: Batch | None = batch
        while rest is not None:
            edge = rest.first // grid * grid + grid
            stop = min(rest.last + 1, edge)
            end: ChunkEnd | None = "count" if stop == edge else None
            fitting, size = _fitting(rest, stop, room, need_one=room == max_bytes)
            if fitting < stop:
                stop, end = fitting, "bytes"
            if stop > rest.first:
                held.append(rest.slice(rest.first, stop - 1))
            rest = rest.slice(stop, rest.last) if stop <= rest.last else None
            room -= size
            if end is not None:
                yield _chunk(held, end)
                held, room = [], max_bytes
    if held:
        yield _chunk(held, "trigger")


def _fitting(batch: Batch, stop: int, room: int, *, need_one: bool) -> tuple[int, int]:
    """Return the offset, at most `stop` (exclusive), up to which records fit into `room`; and their bytes."""
    offsets = batch.offsets()
    count = int(np.searchsorted(offsets, stop))
    records = batch.records.slice(0, count)
    sizes = np.cumsum(_lengths(records.column("key")) + _lengths(records.column("value")))
    if not count or sizes[-1] <= room:
        return stop, int(sizes[-1]) if count else 0
    rows = int(np.searchsorted(sizes, room, side="right"))
    if rows == 0 and need_one:
        rows = 1
    if rows == count:
        return stop, int(sizes[-1])
    return int(offsets[rows]), int(sizes[rows - 1]) if rows else 0


def _chunk(batches: list[Batch], end: ChunkEnd) -> Chunk:
    return Chunk(tuple(batches), batches[0].first, batches[-1].last, end)


def _lengths(column: Any) -> NDArray[np.int64]:
    lengths = pc.fill_null(pc.binary_length(column), 0)
    found: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return found
