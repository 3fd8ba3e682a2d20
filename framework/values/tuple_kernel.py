"""The compiled reader of rows that are MessagePack arrays: their values go to slots, without the GIL."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ..formats.machine_code import BYTES, INT64S, Int, Ints, compiled, load

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats.machine_code import Kernel

INTEGER, FLOAT, BOOLEAN, TEXT, BINARY, MOMENT = range(6)
"""What a column holds: the values of it are of this kind, or null."""

NO_SUCH: Final = -1

# The tags of MessagePack. Of lengths with 1, 2 and 4 bytes the first one; an array has none of 1 byte.
_NIL, _FALSE, _TRUE, _BIN8, _EXT8, _FLOAT64 = 0xC0, 0xC2, 0xC3, 0xC4, 0xC7, 0xCB
_UINT8, _UINT64, _INT8, _INT64, _FIXEXT4, _FIXEXT8 = 0xCC, 0xCF, 0xD0, 0xD3, 0xD6, 0xD7
_FIXSTR, _STR8, _ARRAY8 = 0xA0, 0xD9, 0xDB
_MILLION: Final = 1_000_000


def read_tuples(
    data: NDArray[np.uint8],
    kinds: NDArray[np.int64],
    bases: NDArray[np.int64],
    values: NDArray[np.int64],
    valid: NDArray[np.uint8],
) -> bool:
    """Read an array of arrays, all as long as `kinds`; return False at a value that is not of its kind.

    Args:
        data: what msgspec encoded: it is not checked.
        kinds: of the columns.
        bases: the first slot of each column.
        values: gets the slots, see `kmr.values.decoding.slots`: microseconds for a moment.
        valid: gets for each slot whether it is not null.
    """
    done = np.zeros(1, np.int64)
    _kernel()(data, kinds, bases, values, valid, done)
    return bool(done[0])


@cache
def _kernel() -> Kernel:
    parameters = (BYTES, INT64S, INT64S, INT64S, BYTES, INT64S)
    return load(__name__, {"_read": parameters})["_read"]


@compiled
def _big(data: NDArray[np.uint8], at: Int, size: Int) -> Int:
    number = np.uint64(0)
    for i in range(size):
        number = (number << np.uint64(8)) | np.uint64(data[np.uint64(at + i)])
    return number


@compiled
def _length(tag: Int, first: int) -> Int:
    """Return how many bytes of a length follow a tag, the first of three; 0: it is none of them."""
    return np.int64(1) << (tag - first) if first <= tag <= first + 2 else np.int64(0)


# Each of these reads what follows a tag at `at`, and returns where it ends; NO_SUCH: it is of another kind.


@compiled
def _integer(data: NDArray[np.uint8], at: Int, tag: Int, values: Ints, slot: Int) -> Int:
    if tag < 0x80 or tag >= 0xE0:
        values[slot] = tag if tag < 0x80 else tag - 256
        return at
    if _UINT8 <= tag <= _UINT64:
        size = np.int64(1) << (tag - _UINT8)
        values[slot] = np.int64(_big(data, at, size))
        return at + size if values[slot] >= 0 else NO_SUCH  # 64 bits without a sign
    if _INT8 <= tag <= _INT64:
        size = np.int64(1) << (tag - _INT8)
        above = np.int64(64) - 8 * size
        values[slot] = (np.int64(_big(data, at, size)) << above) >> above
        return at + size
    return NO_SUCH


@compiled
def _moment(data: NDArray[np.uint8], at: Int, tag: Int, values: Ints, slot: Int) -> Int:
    if tag == _FIXEXT4:
        values[slot] = np.int64(_big(data, at + 1, np.int64(4))) * _MILLION
        return at + 5
    if tag == _FIXEXT8:
        both = _big(data, at + 1, np.int64(8))
        seconds = np.int64(both & np.uint64(0x3FFFFFFFF))
        values[slot] = seconds * _MILLION + np.int64(both >> np.uint64(34)) // 1000
        return at + 9
    if tag == _EXT8:
        nanoseconds = np.int64(_big(data, at + 2, np.int64(4)))
        values[slot] = np.int64(_big(data, at + 6, np.int64(8))) * _MILLION + nanoseconds // 1000
        return at + 14
    return NO_SUCH


@compiled
def _piece(data: NDArray[np.uint8], at: Int, tag: Int, kind: Int, values: Ints, slot: Int) -> Int:
    size = _length(tag, _STR8 if kind == TEXT else _BIN8)
    length = np.int64(_big(data, at, size))
    if size == 0:
        if kind != TEXT or tag & 0xE0 != _FIXSTR:
            return NO_SUCH
        length = tag & 0x1F
    at += size
    values[slot] = (at << 32) | length
    return at + length


@compiled
def _value(data: NDArray[np.uint8], at: Int, kind: Int, values: Ints, slot: Int) -> Int:
    tag = np.int64(data[np.uint64(at)])
    at += 1
    if tag == _NIL:
        return at
    if kind == INTEGER:
        return _integer(data, at, tag, values, slot)
    if kind == MOMENT:
        return _moment(data, at, tag, values, slot)
    if kind == FLOAT:
        if tag != _FLOAT64:
            return NO_SUCH
        values[slot] = np.int64(_big(data, at, np.int64(8)))
        return at + 8
    if kind == BOOLEAN:
        values[slot] = tag - _FALSE
        return at if _FALSE <= tag <= _TRUE else NO_SUCH
    return _piece(data, at, tag, kind, values, slot)


def _read(
    data: NDArray[np.uint8], kinds: Ints, bases: Ints, values: Ints, valid: Ints, done: Ints
) -> None:
    tag = np.int64(data[0])
    size = _length(tag, _ARRAY8)
    rows = np.int64(_big(data, np.int64(1), size)) if size else tag & 0x0F
    at = 1 + size
    for row in range(rows):
        at += 1 + _length(np.int64(data[np.uint64(at)]), _ARRAY8)
        for column in range(len(kinds)):
            slot = np.uint64(bases[column] + row)
            valid[slot] = data[np.uint64(at)] != _NIL
            values[slot] = 0
            at = _value(data, at, kinds[column], values, slot)
            if at < 0:
                return
    done[0] = 1
