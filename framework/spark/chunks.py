"""Cutting what a task reads into chunks, at offsets that do not depend on how it was fetched.

A chunk is what reducers flush together, so its offsets are in deduplication tokens and file names. They
must be the same when a micro-batch is replayed, by another task, with other settings. So chunks end at
multiples of `GRID`, at the end of the micro-batch, or where the bytes of the records from the chunk's
first offset on exceed a constant: nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from framework.record import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

__all__ = ["CHUNK_BYTES", "GRID", "Chunk", "cut_chunks"]

GRID: Final = 131_072
"""Offsets; changing it changes the tokens of a micro-batch that is replayed after the change."""

CHUNK_BYTES: Final = 64 * 1024 * 1024
"""Bytes of keys and values; the same holds for it."""

ChunkEnd = Literal["count", "bytes", "trigger"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive batches of one partition.

    Attributes:
        first, last: the offsets, both inclusive.
        end: why it ends: at the grid (`count`), at its bytes, or with the micro-batch (`trigger`).
    """

    batches: tuple[Batch, ...]
    first: int
    last: int
    end: ChunkEnd


def cut_chunks(
    batches: Iterable[Batch], *, grid: int = GRID, max_bytes: int = CHUNK_BYTES
) -> Iterator[Chunk]:
    """Batches of one range, without gaps between them, as chunks.

    A chunk has at least one record, even if that alone is larger than `max_bytes`.
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
                held.append(_slice(rest, rest.first, stop - 1))
            rest = _slice(rest, stop, rest.last) if stop <= rest.last else None
            room -= size
            if end is not None:
                yield _chunk(held, end)
                held, room = [], max_bytes
    if held:
        yield _chunk(held, "trigger")


def _fitting(batch: Batch, stop: int, room: int, *, need_one: bool) -> tuple[int, int]:
    """Up to which offset, exclusive and not above `stop`, the records fit into `room`; and their bytes."""
    offsets = batch.offsets()
    count = int(np.searchsorted(offsets, stop))
    sizes = np.cumsum(_sizes(batch.records.slice(0, count)))
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


def _slice(batch: Batch, first: int, last: int) -> Batch:
    if (first, last) == (batch.first, batch.last):
        return batch
    offsets = batch.offsets()
    start, stop = np.searchsorted(offsets, [first, last + 1]).tolist()
    records = batch.records.slice(start, stop - start)
    return Batch(
        batch.topic,
        batch.partition,
        first,
        last,
        nbytes=batch.nbytes * (stop - start) // max(1, len(offsets)),
        load=partial(_same, records),
        max_timestamp_ms=batch.max_timestamp_ms,
    )


def _same(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


def _sizes(records: pa.RecordBatch) -> NDArray[np.int64]:
    """The bytes of every record's key and value."""
    return _lengths(records.column("key")) + _lengths(records.column("value"))


def _lengths(column: Any) -> NDArray[np.int64]:
    lengths = pc.fill_null(pc.binary_length(column), 0)
    found: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return found
