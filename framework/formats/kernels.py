"""The compiled part of decoding: batch headers and records walked byte by byte, without the GIL.

These functions allocate their results and call the machine code of the kernels below. With any input, they
end, and read and write only inside their arrays. They report errors as a status; the caller adds topic and
offset.

Layout of record batches and records: KIP-98; `kafka.apache.org/documentation/#recordbatch`. A batch has 61
bytes before its first record; all formats since 0 have offset, length and version at the same places.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .blocks import BLOCKS
from .machine_code import (
    BYTES,
    INT32_TABLE,
    INT32S,
    INT64_TABLE,
    INT64S,
    NUMBER,
    Int,
    Ints,
    compiled,
    load,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from .machine_code import Kernel

# Columns of the table that `scan` makes, one row per record batch. START and END enclose the records.
POSITION, START, END, BASE_OFFSET, LAST_OFFSET = 0, 1, 2, 3, 4
ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, COUNT, CRC, MAGIC = 5, 6, 7, 8, 9, 10, 11
_COLUMNS = 12
_ROOM = 64  # rows of the table at first, for the first part
_ROOM_OF_A_PART = 8  # for each other part

# What `scan` notes of a part, in this order. BATCHES are the rows that the table has to have for it.
BATCHES, INCOMPLETE, HEADERS_READ, FLAGS, SCAN_STATUS, BAD_POSITION = range(6)
_RESULTS = 6

# Bits of ATTRIBUTES.
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
LEGACY = 0x10000  # not Kafka's: marks that some batch is of format 0 or 1

# Statuses, of `scan` and of `parse`.
OK, BAD_LENGTH, BAD_MAGIC, BAD_OFFSETS, BAD_COUNT, BAD_CRC, BAD_RECORD, BAD_END = range(8)
REASONS = (
    "",
    "its length is impossible",
    "its format version is unknown",
    "its offsets do not ascend",
    "its record count is impossible",
    "its checksum is wrong",
    "a field of a record does not fit into it",
    "there are bytes after its last record",
)

# What `parse` counts, in this order.
STATUS, BATCH, ROWS, NULL_KEYS, NULL_VALUES, HEADERS = range(6)
_COUNTS = 6

CRC_FROM = 21  # the checksum covers everything from the attributes to the end
_ENVELOPE = 12  # base offset and length, which the length does not count
_HEADER = 61
_LEGACY_MINIMUM = 14  # checksum, version, attributes, key length, value length
_LARGEST_OFFSET = 2**62
SMALLEST_RECORD = 7  # seven fields of one byte each
_LARGEST_MILLISECONDS = (2**63 - 1) // 1000

_SIGNATURES: Final = {
    "_scan": (BYTES, INT64S, INT64S, INT64_TABLE, INT64_TABLE),
    "_parse": (BYTES, INT64_TABLE, NUMBER, INT64S, INT64_TABLE, INT32_TABLE),
    "_parse_headers": (BYTES, INT32S, INT32S, INT32S, INT32_TABLE, INT64S),
    "_gather": (BYTES, INT32S, INT32S, BYTES),
    "_bitmap": (INT32S, BYTES),
}


@cache
def _kernels() -> dict[str, Kernel]:
    """Load at the first call: two threads at once do it twice, to no harm."""
    return load(__name__, _SIGNATURES)


class Scanned(NamedTuple):
    """What `scan` found in one part.

    Attributes:
        start: the row of its first header in the table, and `stop` the row behind its last one.
        flags: the bitwise or of their ATTRIBUTES.
        status: OK, or why a batch is refused, and `position` where that begins.
        incomplete: the size in bytes of the incomplete batch at the end, 0 if there is none.
    """

    start: int
    stop: int
    flags: int
    status: int
    position: int
    incomplete: int


def scan(
    data: NDArray[np.uint8], bounds: Sequence[int], firsts: Sequence[int]
) -> tuple[NDArray[np.int64], list[Scanned]]:
    """Read the headers of all whole record batches that reach the wanted offset or beyond, of several parts.

    Args:
        data: the parts, one behind the other.
        bounds: where each part begins, and where the last one ends.
        firsts: the wanted offset of each.

    Returns:
        The table of headers, with positions in their parts, and what else is known of each part.
    """
    count = len(firsts)
    begins, wanted = np.array(bounds, np.int64), np.array(firsts, np.int64)
    room = _ROOM + _ROOM_OF_A_PART * (count - 1)
    while True:
        headers = np.empty((room, _COLUMNS), np.int64)
        results = np.zeros((count, _RESULTS), np.int64)
        _kernels()["_scan"](data, begins, wanted, headers, results)
        table = results.tolist()
        needed = sum(row[BATCHES] for row in table)
        if needed <= room:
            break
        room = needed
    found, at = [], 0
    for _, incomplete, rows, flags, status, position in table:
        left = incomplete if status == OK else 0
        found.append(Scanned(at, at + rows, flags, status, position, left))
        at += rows
    return headers, found


def parse(
    data: NDArray[np.uint8], headers: NDArray[np.int64], first: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Walk all records of the batches in `headers`, whose START and END enclose plain bytes of `data`.

    Records with offsets below `first` are left out. Returns the counts (STATUS to HEADERS; on any status
    but OK, BATCH is the row of the damaged one), then two tables with one column per record: offset and
    timestamp in microseconds; start of its key in `data` (-1: null) and the key column's Arrow offsets,
    the same for the value, start and number of its headers. Tables may be wider than ROWS.
    """
    counts = np.zeros(_COUNTS, np.int64)
    room = min(
        int(headers[:, COUNT].sum()), len(data) // SMALLEST_RECORD
    )  # COUNT may be impossible
    longs = np.empty((2, room), np.int64)
    ints = np.empty((6, room + 1), np.int32)
    _kernels()["_parse"](data, headers, first, counts, longs, ints)
    return counts, longs, ints


def parse_headers(
    data: NDArray[np.uint8], starts: NDArray[np.int32], counts: NDArray[np.int32], pairs: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """Find the headers that `parse` has counted and checked, `pairs` of them in all.

    Returns the Arrow offsets of the lists; a table with one column per header: the start of its key in
    `data` and the key column's Arrow offsets, the same for the value (-1: null); the number of null values.
    """
    lists = np.zeros(len(starts) + 1, np.int32)
    table = np.zeros((4, pairs + 1), np.int32)
    nulls = np.zeros(1, np.int64)
    _kernels()["_parse_headers"](data, starts, counts, lists, table, nulls)
    return lists, table, int(nulls[0])


def gather(
    data: NDArray[np.uint8], starts: NDArray[np.int32], offsets: NDArray[np.int32]
) -> pa.Buffer:
    """Concatenate the pieces of `data` that begin at `starts`; `offsets` are their Arrow offsets."""
    block = BLOCKS.allocate(int(offsets[len(starts)]))
    _kernels()["_gather"](data, starts, offsets, block.data)
    return block.buffer


def bitmap(entries: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return an Arrow validity bitmap: bit n is set where entry n is not negative."""
    bits = np.zeros((len(entries) + 7) // 8, np.uint8)
    _kernels()["_bitmap"](entries, bits)
    return bits


# The kernels, in the part of Python that numba compiles. They allocate nothing. Every length and every varint
# is checked against the available bytes before it is used.


@compiled
def _unsigned(data: NDArray[np.uint8], position: Int, size: int) -> Int:
    """Read a big-endian number; the caller has checked the bounds."""
    value = np.uint64(0)
    for i in range(position, position + size):
        value = (value << np.uint64(8)) | np.uint64(data[i])
    return value


@compiled
def _int64(data: NDArray[np.uint8], position: Int) -> Int:
    return np.int64(_unsigned(data, position, 8))


@compiled
def _int32(data: NDArray[np.uint8], position: Int) -> Int:
    return np.int64(np.int32(np.uint32(_unsigned(data, position, 4))))


@compiled
def _count(data: NDArray[np.uint8]) -> tuple[int, Int]:
    """Return the number of whole batches, and the size of the incomplete one at the end (0 if none).

    A batch with an impossible length counts as whole, and as the last: `scan` refuses it.
    """
    size = len(data)
    position = 0
    batches = 0
    while size - position >= _ENVELOPE:
        length = _int32(data, position + 8)
        if length < _LEGACY_MINIMUM:
            return batches + 1, 0
        if length > size - position - _ENVELOPE:
            return batches, length + _ENVELOPE
        batches += 1
        position += length + _ENVELOPE
    return batches, _ENVELOPE if position < size else 0


@compiled
def _read(data: NDArray[np.uint8], position: Int, length: Int, previous: Int, header: Ints) -> int:
    """Fill `header`; `previous` is the last offset of the batch before. Return a status."""
    base = _int64(data, position)
    magic = data[position + 16]
    header[POSITION] = position
    header[END] = position + _ENVELOPE + length
    header[BASE_OFFSET] = base
    header[MAGIC] = magic
    if base <= previous or base > _LARGEST_OFFSET:
        return BAD_OFFSETS
    if magic < 2:
        header[START] = position
        header[LAST_OFFSET] = base
        header[ATTRIBUTES] = LEGACY
        header[CRC] = header[COUNT] = 0
        header[BASE_TIMESTAMP] = header[MAX_TIMESTAMP] = header[PRODUCER_ID] = -1
        return OK
    if magic > 2:
        return BAD_MAGIC
    if length < _HEADER - _ENVELOPE:
        return BAD_LENGTH
    span = _int32(data, position + 23)
    count = _int32(data, position + 57)
    if span < 0:
        return BAD_OFFSETS
    if count < 0 or count > span + 1:
        return BAD_COUNT
    header[START] = position + _HEADER
    header[LAST_OFFSET] = base + span
    header[CRC] = np.int64(_unsigned(data, position + 17, 4))
    header[ATTRIBUTES] = np.int64(_unsigned(data, position + 21, 2))
    header[BASE_TIMESTAMP] = _int64(data, position + 27)
    header[MAX_TIMESTAMP] = _int64(data, position + 35)
    header[PRODUCER_ID] = _int64(data, position + 43)
    header[COUNT] = count
    return OK


def _scan(
    data: NDArray[np.uint8], bounds: Ints, firsts: Ints, headers: Ints, results: Ints
) -> None:
    """Fill `headers` and `results`; see `scan`. A part that lacks room in the table is not read."""
    rows = np.int64(0)
    for part in range(len(firsts)):
        mine = data[bounds[part] : bounds[part + 1]]
        _scan_part(mine, firsts[part], headers[rows:], results[part])
        rows += results[part, HEADERS_READ]


@compiled
def _scan_part(data: NDArray[np.uint8], first: Int, headers: Ints, results: Ints) -> None:
    """Read the headers of one part."""
    batches, results[INCOMPLETE] = _count(data)
    results[BATCHES] = batches
    if batches > len(headers):
        return
    position = np.int64(0)
    previous = np.int64(-1)
    rows = 0
    for _ in range(batches):
        length = _int32(data, position + 8)
        status = BAD_LENGTH
        if length >= _LEGACY_MINIMUM:
            status = _read(data, position, length, previous, headers[rows])
        if status != OK:
            results[SCAN_STATUS] = status
            break
        previous = headers[rows, LAST_OFFSET]
        position += _ENVELOPE + length
        if previous >= first:
            results[FLAGS] |= headers[rows, ATTRIBUTES]
            rows += 1
    results[HEADERS_READ] = rows
    results[BAD_POSITION] = position


@compiled
def _varint(data: NDArray[np.uint8], position: Int, end: Int, most: int) -> tuple[Int, Int]:
    """Read a zigzag varint of at most `most` bytes before `end`; return it and the position after it.

    The position is -1 if there is none, or if it was -1 before, so a chain needs only one check.
    """
    # Unsigned, so that -1 is beyond every end and no index is negative.
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
    """Return the start of length-prefixed bytes (-1: null), their size, and the position after them."""
    size, position = _varint(data, position, end, 5)
    if size < 0:
        return np.int64(-1), np.int64(0), position
    if position < 0 or size > end - position:
        return np.int64(-1), np.int64(0), np.int64(-1)
    return position, size, position + size


@compiled
def _skip_headers(data: NDArray[np.uint8], position: Int, end: Int, pairs: Int) -> Int:
    """Return the position after `pairs` headers, or -1."""
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
def _too_small(headers: Ints, room: int) -> int:
    """Return the first batch that is too small for its records, or the last if all need more room; or -1."""
    for batch in range(len(headers)):
        count = headers[batch, COUNT]
        if count > (headers[batch, END] - headers[batch, START]) // SMALLEST_RECORD:
            return batch
        room -= count
        if room < 0:
            return batch
    return -1


def _parse(
    data: NDArray[np.uint8], headers: Ints, first: Int, counts: Ints, longs: Ints, ints: Ints
) -> None:
    """Fill `counts` and the tables; see `parse`."""
    too_small = _too_small(headers, longs.shape[1])
    if too_small >= 0:
        counts[STATUS] = BAD_COUNT
        counts[BATCH] = too_small
        return
    offsets, timestamps = longs[0], longs[1]
    key_starts, key_offsets = ints[0], ints[1]
    value_starts, value_offsets = ints[2], ints[3]
    header_starts, header_counts = ints[4], ints[5]
    key_offsets[0] = value_offsets[0] = 0
    status = OK
    row = 0
    for batch in range(len(headers)):
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
            # The first byte holds attributes; none is defined yet.
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


def _parse_headers(
    data: NDArray[np.uint8], starts: Ints, counts: Ints, lists: Ints, table: Ints, nulls: Ints
) -> None:
    """Fill `lists` and the table, all zeros before, and count the null values; see `parse_headers`."""
    key_starts, key_offsets, value_starts, value_offsets = table[0], table[1], table[2], table[3]
    pair = 0
    for row in range(len(starts)):
        position = np.int64(starts[row])
        for _ in range(counts[row]):
            key_starts[pair], size, position = _bytes(data, position, len(data))
            key_offsets[pair + 1] = key_offsets[pair] + size
            value_starts[pair], size, position = _bytes(data, position, len(data))
            value_offsets[pair + 1] = value_offsets[pair] + size
            nulls[0] += value_starts[pair] < 0
            pair += 1
        lists[row + 1] = pair


def _gather(data: NDArray[np.uint8], starts: Ints, offsets: Ints, out: Ints) -> None:
    """Copy the pieces; see `gather`."""
    for row in range(len(starts)):
        # Unsigned, so that the compiler need not handle negative indices: 10 times faster.
        to = np.uint64(offsets[row])
        size = np.uint64(offsets[row + 1]) - to
        start = np.uint64(starts[row])
        for i in range(size):
            out[to + i] = data[start + i]


def _bitmap(entries: Ints, bits: Ints) -> None:
    """Set the bits, all zeros before, of entries that are not negative."""
    for i in range(len(entries)):
        if entries[i] >= 0:
            bits[i >> 3] |= np.uint8(1 << (i & 7))
