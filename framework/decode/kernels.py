"""The compiled part of decoding: records walked byte by byte, without the GIL.

Every length and every varint is checked against the bytes that are there before it is used: whatever
the input, these functions end, and read and write only inside their arrays. They report trouble as a
status; the caller knows the topic, and can say where it is.

Layout of a record: KIP-98; `kafka.apache.org/documentation/#record`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from framework.decode.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    END,
    LAST_OFFSET,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    START,
)
from framework.decode.jit import Int, Ints, compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What `parse` counts, in this order.
STATUS, BATCH, ROWS, KEY_BYTES, NULL_KEYS, NULL_VALUES, HEADERS = 0, 1, 2, 3, 4, 5, 6
_COUNTS = 7

OK, BAD_COUNT, BAD_RECORD, BAD_OFFSETS, BAD_END = 0, 1, 2, 3, 4
REASONS = (
    "",
    "it cannot hold as many records as it says",
    "a field of a record does not fit into it",
    "offsets of its records do not ascend",
    "there are bytes after its last record",
)

_SMALLEST_RECORD = 7  # seven fields of one byte each
_LARGEST_MILLISECONDS = (2**63 - 1) // 1000


@compiled
def _varint(data: NDArray[np.uint8], position: Int, end: Int, most: int) -> tuple[Int, Int]:
    """A zigzag varint of at most `most` bytes before `end`, and the position after it.

    The position is -1 if there is none, or if it was -1 before: so a chain needs only one check.
    """
    # Unsigned, so that -1 is beyond every end, and that no index counts from the back.
    if np.uint64(position) >= np.uint64(end):
        return np.int64(0), np.int64(-1)
    if data[np.uint64(position)] < 0x80:  # most are of one byte
        small = np.int64(data[np.uint64(position)])
        return (small >> 1) ^ -(small & 1), position + 1
    value: Int = np.uint64(0)
    shift = np.uint64(0)
    stop = min(end, position + most)
    while position < stop:
        byte = np.uint64(data[np.uint64(position)])
        position += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@compiled
def _bytes(data: NDArray[np.uint8], position: Int, end: Int) -> tuple[Int, Int, Int]:
    """Where bytes with a length before them begin (-1: null), their size, and the position after."""
    size, position = _varint(data, position, end, 5)
    if size < 0:
        return np.int64(-1), np.int64(0), position
    if position < 0 or size > end - position:
        return np.int64(-1), np.int64(0), np.int64(-1)
    return position, size, position + size


@compiled
def _skip_headers(data: NDArray[np.uint8], position: Int, end: Int, pairs: Int) -> Int:
    """The position after `pairs` headers, or -1."""
    if pairs < 0:
        return np.int64(-1)
    for _ in range(pairs):
        key, _, position = _bytes(data, position, end)
        if key < 0:
            return np.int64(-1)
        _, _, position = _bytes(data, position, end)
        if position < 0:
            return np.int64(-1)
    return position


@compiled
def _capacity(headers: NDArray[np.int64]) -> tuple[Int, int]:
    """How many records the batches have together, and the first batch that is too small for its own."""
    capacity = np.int64(0)
    for batch in range(len(headers)):
        count = headers[batch, COUNT]
        if count > (headers[batch, END] - headers[batch, START]) // _SMALLEST_RECORD:
            return 0, batch
        capacity += count
    return capacity, -1


@compiled
def parse(data: NDArray[np.uint8], headers: NDArray[np.int64], first: int) -> tuple[Ints, ...]:
    """Walk all records of the batches in `headers`, whose START and END enclose plain bytes of `data`.

    Records with offsets below `first` are left out. Returns the counts (STATUS and what follows it; on
    any status but OK, BATCH is the row of the damaged one), then one entry per record: offsets,
    timestamps in microseconds, where its key begins in `data` (-1: null) and the key column's Arrow
    offsets, the same for the value, where its headers begin and how many there are. Arrays may be longer
    than ROWS says.
    """
    counts = np.zeros(_COUNTS, np.int64)
    capacity, too_small = _capacity(headers)
    status = OK
    batches = len(headers)
    if too_small >= 0:
        status = BAD_COUNT
        counts[BATCH] = too_small
        batches = 0
    offsets = np.empty(capacity, np.int64)
    timestamps = np.empty(capacity, np.int64)
    key_starts = np.empty(capacity, np.int32)
    key_offsets = np.zeros(capacity + 1, np.int32)
    value_starts = np.empty(capacity, np.int32)
    value_offsets = np.zeros(capacity + 1, np.int32)
    header_starts = np.empty(capacity, np.int32)
    header_counts = np.empty(capacity, np.int32)
    row = 0
    for batch in range(batches):
        counts[BATCH] = batch
        position = headers[batch, START]
        end = headers[batch, END]
        base_offset = headers[batch, BASE_OFFSET]
        span = headers[batch, LAST_OFFSET] - base_offset
        append_time = headers[batch, ATTRIBUTES] & LOG_APPEND_TIME != 0
        previous = np.int64(-1)
        for _ in range(headers[batch, COUNT]):
            size, position = _varint(data, position, end, 5)
            if position < 0 or size < 1 or size > end - position:
                status = BAD_RECORD
                break
            stop = position + size
            # The first byte holds attributes, of which none is defined.
            elapsed, position = _varint(data, position + 1, stop, 10)
            delta, position = _varint(data, position, stop, 5)
            key_start, key_size, position = _bytes(data, position, stop)
            value_start, value_size, position = _bytes(data, position, stop)
            pairs, position = _varint(data, position, stop, 5)
            header_start = position
            position = _skip_headers(data, position, stop, pairs)
            if position != stop:
                status = BAD_RECORD
                break
            if delta <= previous or delta > span:
                status = BAD_OFFSETS
                break
            previous = delta
            if base_offset + delta < first:
                continue
            milliseconds = headers[batch, MAX_TIMESTAMP]
            if not append_time:
                milliseconds = headers[batch, BASE_TIMESTAMP] + elapsed
            # A producer that sends nanoseconds must not wrap around into the past.
            milliseconds = min(max(milliseconds, -_LARGEST_MILLISECONDS), _LARGEST_MILLISECONDS)
            offsets[row] = base_offset + delta
            timestamps[row] = milliseconds * 1000
            key_starts[row] = key_start
            key_offsets[row + 1] = key_offsets[row] + key_size
            value_starts[row] = value_start
            value_offsets[row + 1] = value_offsets[row] + value_size
            header_starts[row] = header_start
            header_counts[row] = pairs
            counts[NULL_KEYS] += key_start < 0
            counts[NULL_VALUES] += value_start < 0
            counts[HEADERS] += pairs
            row += 1
        if status == OK and position != end:
            status = BAD_END
        if status != OK:
            break
    counts[STATUS] = status
    counts[ROWS] = row
    counts[KEY_BYTES] = key_offsets[row]
    return (
        counts,
        offsets,
        timestamps,
        key_starts,
        key_offsets,
        value_starts,
        value_offsets,
        header_starts,
        header_counts,
    )


@compiled
def parse_headers(
    data: NDArray[np.uint8], starts: NDArray[np.int32], counts: NDArray[np.int32], pairs: int
) -> tuple[Ints, ...]:
    """Find the headers that `parse` has counted and checked, `pairs` of them in all.

    Returns the Arrow offsets of the lists; where each header key begins in `data` and the key column's
    Arrow offsets; the same for the values (-1: null); how many values are null, in an array of one.
    """
    rows = len(starts)
    lists = np.zeros(rows + 1, np.int32)
    key_starts = np.empty(pairs, np.int32)
    key_offsets = np.zeros(pairs + 1, np.int32)
    value_starts = np.empty(pairs, np.int32)
    value_offsets = np.zeros(pairs + 1, np.int32)
    nulls = np.zeros(1, np.int64)
    pair = 0
    for row in range(rows):
        position = np.int64(starts[row])
        for _ in range(counts[row]):
            key_starts[pair], size, position = _bytes(data, position, len(data))
            key_offsets[pair + 1] = key_offsets[pair] + size
            value_starts[pair], size, position = _bytes(data, position, len(data))
            value_offsets[pair + 1] = value_offsets[pair] + size
            nulls[0] += value_starts[pair] < 0
            pair += 1
        lists[row + 1] = pair
    return lists, key_starts, key_offsets, value_starts, value_offsets, nulls


@compiled
def gather(
    data: NDArray[np.uint8], starts: NDArray[np.int32], offsets: NDArray[np.int32]
) -> NDArray[np.uint8]:
    """Copy the pieces of `data` that begin at `starts` one behind the other, as `offsets` say."""
    rows = len(starts)
    out = np.empty(offsets[rows], np.uint8)
    for row in range(rows):
        # Unsigned, so that the compiler need not think of indices from the back: 10 times faster.
        to = np.uint64(offsets[row])
        size = np.uint64(offsets[row + 1]) - to
        start = np.uint64(starts[row])
        for i in range(size):
            out[to + i] = data[start + i]
    return out


@compiled
def bitmap(entries: NDArray[np.int32]) -> NDArray[np.uint8]:
    """An Arrow validity bitmap: bit n is set where entry n is not negative."""
    bits = np.zeros((len(entries) + 7) // 8, np.uint8)
    for i in range(len(entries)):
        if entries[i] >= 0:
            bits[i >> 3] |= np.uint8(1 << (i & 7))
    return bits
