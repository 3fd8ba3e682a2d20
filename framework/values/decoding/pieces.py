"""Pieces of the input, copied behind each other by compiled code."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ...formats.machine_code import BYTES, INT32S, INT64S, NUMBER, inlined, load
from ...formats.memory import bytes_below, copy32, load8

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...formats.machine_code import Int, Ints, Kernel

LARGEST = 2**31 - 1  # bytes of a column of text
BLOCK = 32  # bytes that are copied together
_ASCII = 0x80


def gather(
    data: NDArray[np.uint8], pieces: NDArray[np.int64], valid: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.uint8], bool]:
    """Concatenate pieces of `data`; a null has none. Returns Arrow offsets, bytes, and if all are ASCII.

    Returns no offsets where they would not fit into 32 bits.
    """
    there = np.ones(len(pieces), np.uint8) if valid is None else valid.view(np.uint8)
    offsets = np.empty(len(pieces) + 1, np.int32)
    total = np.zeros(2, np.int64)
    _kernels()["_offsets_of"](pieces, there, offsets, total)
    if total[0] > LARGEST:
        return offsets[:0], np.empty(0, np.uint8), True
    out = np.empty(int(total[0]) + BLOCK, np.uint8)
    addresses = np.array([data.ctypes.data, out.ctypes.data], np.int64)
    _kernels()["_copy_pieces"](addresses, len(data), pieces, offsets, out, total)
    return offsets, out[:-BLOCK], not total[1]


def gather_fixed(
    data: NDArray[np.uint8], pieces: NDArray[np.int64], valid: NDArray[np.bool_], size: int
) -> NDArray[np.uint8]:
    """Concatenate pieces of `size` bytes each; a null has zeros."""
    out = np.zeros(len(pieces) * size, np.uint8)
    _kernels()["_copy_fixed"](data, pieces, valid.view(np.uint8), size, out)
    return out


@cache
def _kernels() -> dict[str, Kernel]:
    return load(
        __name__,
        {
            "_offsets_of": (INT64S, BYTES, INT32S, INT64S),
            "_copy_pieces": (INT64S, NUMBER, INT64S, INT32S, BYTES, INT64S),
            "_copy_fixed": (BYTES, INT64S, BYTES, NUMBER, BYTES),
        },
    )


def _offsets_of(pieces: Ints, valid: Ints, offsets: Ints, total: Ints) -> None:
    size = np.int64(0)
    for row in range(len(pieces)):
        offsets[row] = size
        size += (pieces[row] & 0xFFFFFFFF) * np.int64(valid[row] != 0)
    offsets[len(pieces)] = size
    total[0] = size


def _copy_pieces(
    addresses: Ints, size: int, pieces: Ints, offsets: Ints, out: Ints, total: Ints
) -> None:
    base, out_base = addresses[0], addresses[1]
    end = base + size
    high = np.uint64(0)  # not 0: a byte is not ASCII
    for row in range(len(pieces)):
        to = out_base + np.int64(offsets[row])
        left = np.int64(offsets[row + 1]) - np.int64(offsets[row])
        start = base + (pieces[row] >> 32 if left > 0 else np.int64(0))
        high |= copy_piece(to, start, left, end, out_base, out)
    total[1] = high != np.uint64(0)


@inlined
def copy_piece(to: Int, start: Int, left: Int, end: Int, out_base: Int, out: Ints) -> Int:
    """Copy `left` bytes from one address to another; return 0 if all are ASCII.

    Blocks are copied whole, and one even for an empty text, which saves a branch. The next text overwrites
    the bytes after the end of this one.

    Args:
        end: the end of the memory to read. Behind the last text there is room for a block.
        out_base: the address of `out`, which `to` is in.
    """
    high = np.uint64(0)
    while left >= 4 * BLOCK and start + 4 * BLOCK <= end:
        low = np.uint64(0xFFFFFFFF)
        for at in range(0, 4 * BLOCK, BLOCK):
            copy32(to + at, start + at)
            low &= bytes_below(start + at, _ASCII)
        high |= ~low & np.uint64(0xFFFFFFFF)
        left -= 4 * BLOCK
        start += 4 * BLOCK
        to += 4 * BLOCK
    while start + BLOCK <= end:
        copy32(to, start)
        beyond = np.uint64(max(BLOCK - left, np.int64(0)))
        high |= ~bytes_below(start, _ASCII) & (np.uint64(0xFFFFFFFF) >> beyond)
        left -= BLOCK
        if left <= 0:
            break
        start += BLOCK
        to += BLOCK
    while left > 0:
        out[to - out_base] = load8(start)
        high |= np.uint64(load8(start) >> 7)
        start += 1
        to += 1
        left -= 1
    return high


def _copy_fixed(data: Ints, pieces: Ints, valid: Ints, size: int, out: Ints) -> None:
    for row in range(len(pieces)):
        if valid[row]:
            start = np.uint64(pieces[row]) >> np.uint64(32)
            to = np.uint64(row * size)
            for i in range(np.uint64(size)):
                out[to + i] = data[start + i]
