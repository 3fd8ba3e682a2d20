"""The headers of record batches: where each begins and ends, its offsets, and what is special about it.

Compiled, and written so that no input can make it read outside the bytes that it is given. Layout: the
`RecordBatch` of KIP-98, 61 bytes before the first record; all formats since 0 share offset, length and
version at the same places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from framework.decode.jit import Int, Ints, compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Columns of the table that `scan` makes, one row per record batch. START and END enclose the records.
POSITION, START, END, BASE_OFFSET, LAST_OFFSET = 0, 1, 2, 3, 4
ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, COUNT, CRC, MAGIC = 5, 6, 7, 8, 9, 10, 11
_COLUMNS = 12

# Bits of ATTRIBUTES.
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
LEGACY = 0x10000  # not Kafka's: marks that some batch is of format 0 or 1

OK, BAD_LENGTH, BAD_MAGIC, BAD_OFFSETS, BAD_COUNT, BAD_CRC = 0, 1, 2, 3, 4, 5
REASONS = (
    "",
    "its length is impossible",
    "its format version is unknown",
    "its offsets do not follow those before",
    "its record count is impossible",
    "its checksum is wrong",
)

CRC_FROM = 21  # the checksum covers everything from the attributes to the end
_ENVELOPE = 12  # base offset and length: what stands before the bytes that the length counts
_HEADER = 61
_LEGACY_MINIMUM = 14  # checksum, version, attributes, key length, value length
_LARGEST_OFFSET = 2**62


@compiled
def _unsigned(data: NDArray[np.uint8], position: Int, size: int) -> Int:
    """A big-endian number; the caller has checked that it is there."""
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
    """How many whole batches there are, and the size of the incomplete one at the end, 0 if none.

    A batch whose length is impossible counts as whole, and as the last: `scan` will refuse it.
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
    """Fill `header`; `previous` is the last offset of the batch before. Returns a status."""
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


@compiled
def scan(data: NDArray[np.uint8], first: int) -> tuple[NDArray[np.int64], int, int, Int, Int]:
    """Read the headers of all whole record batches that reach offset `first` or beyond.

    Returns the table of headers; the ATTRIBUTES of all, joined by "or"; a status and the position of
    the batch that it is about; the size in bytes of the incomplete batch at the end, 0 if there is none.
    """
    batches, incomplete = _count(data)
    headers = np.empty((batches, _COLUMNS), np.int64)
    position = np.int64(0)
    previous = np.int64(-1)
    rows = 0
    flags = 0
    for _ in range(batches):
        length = _int32(data, position + 8)
        status = BAD_LENGTH
        if length >= _LEGACY_MINIMUM:
            status = _read(data, position, length, previous, headers[rows])
        if status != OK:
            return headers[:rows], flags, status, position, 0
        previous = headers[rows, LAST_OFFSET]
        position += _ENVELOPE + length
        if previous >= first:
            flags |= headers[rows, ATTRIBUTES]
            rows += 1
    return headers[:rows], flags, OK, position, incomplete
