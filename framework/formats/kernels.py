"""The compiled part of decoding: batch headers and records walked byte by byte, without the GIL.

These functions allocate their results and call the machine code of `kernel_source`. With any input, they
end, and read and write only inside their arrays. They report errors as a status; the caller adds topic and
offset.

Layout of record batches and records: KIP-98; `kafka.apache.org/documentation/#recordbatch`. A batch has 61
bytes before its first record; all formats since 0 have offset, length and version at the same places.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

import numpy as np

from .machine_code import BYTES, INT32_TABLE, INT32S, INT64_TABLE, INT64S, NUMBER, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .machine_code import Kernel

P = ParamSpec("P")
R = TypeVar("R")

Int: TypeAlias = Any
"""A 64-bit integer of compiled code: `int` and `np.int64` are the same there, but not to a type checker."""

Ints: TypeAlias = Any
"""An array of `Int`."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at the first call, to code that runs without the GIL, and cache it on disk. Imports numba.

    The cache is beside the source, or else in the user's cache directory. Where neither can be written,
    every process compiles.
    """
    numba: Any = import_module("numba")
    result: Callable[P, R]
    try:
        result = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no directory for the cache
        result = numba.njit(nogil=True)(function)
    return result


# Columns of the table that `scan` makes, one row per record batch. START and END enclose the records.
POSITION, START, END, BASE_OFFSET, LAST_OFFSET = 0, 1, 2, 3, 4
ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, COUNT, CRC, MAGIC = 5, 6, 7, 8, 9, 10, 11
_COLUMNS = 12
_ROOM = 64  # rows of the table at first

# Results of `scan`, in this order. BATCHES are the rows that the table has to have, or nothing is read.
BATCHES, INCOMPLETE, HEADERS_READ, FLAGS, SCAN_STATUS, BAD_POSITION = range(6)

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
    "scan": (BYTES, NUMBER, INT64_TABLE, INT64S),
    "parse": (BYTES, INT64_TABLE, NUMBER, INT64S, INT64_TABLE, INT32_TABLE),
    "parse_headers": (BYTES, INT32S, INT32S, INT32S, INT32_TABLE, INT64S),
    "gather": (BYTES, INT32S, INT32S, BYTES),
    "bitmap": (INT32S, BYTES),
}


@cache
def _kernels() -> dict[str, Kernel]:
    """Load at the first call: two threads at once do it twice, to no harm."""
    return load(f"{__package__}.kernel_source", _SIGNATURES, depends_on=(__name__,))


def scan(data: NDArray[np.uint8], first: int) -> tuple[NDArray[np.int64], int, int, int, int]:
    """Read the headers of all whole record batches that reach offset `first` or beyond.

    Returns the table of headers; the bitwise or of their ATTRIBUTES; a status and the position of its
    batch; the size in bytes of the incomplete batch at the end, 0 if there is none.
    """
    headers = np.empty((_ROOM, _COLUMNS), np.int64)
    results = np.zeros(6, np.int64)
    scan_into = _kernels()["scan"]
    scan_into(data, first, headers, results)
    batches = int(results[BATCHES])
    if batches > _ROOM:
        headers = np.empty((batches, _COLUMNS), np.int64)
        scan_into(data, first, headers, results)
    _, incomplete, rows, flags, status, position = results.tolist()
    return headers[:rows], flags, status, position, incomplete if status == OK else 0


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
    _kernels()["parse"](data, headers, first, counts, longs, ints)
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
    _kernels()["parse_headers"](data, starts, counts, lists, table, nulls)
    return lists, table, int(nulls[0])


def gather(
    data: NDArray[np.uint8], starts: NDArray[np.int32], offsets: NDArray[np.int32]
) -> NDArray[np.uint8]:
    """Concatenate the pieces of `data` that begin at `starts`; `offsets` are their Arrow offsets."""
    out = np.empty(offsets[len(starts)], np.uint8)
    _kernels()["gather"](data, starts, offsets, out)
    return out


def bitmap(entries: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return an Arrow validity bitmap: bit n is set where entry n is not negative."""
    bits = np.zeros((len(entries) + 7) // 8, np.uint8)
    _kernels()["bitmap"](entries, bits)
    return bits
