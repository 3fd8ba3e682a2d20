"""The compiled part of `kmr.memory.distinct_keys`: hashes of keys, and the look-ups in its shards.

The hash is MurmurHash3 (x64, 128 bits; Austin Appleby, public domain). It is no protection against a producer
that wants two keys to collide: such a producer can as well send the same key twice.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ..formats.machine_code import INT64_TABLE, INT64S, NUMBER, Int, Ints, compiled, load
from ..formats.memory import high_product, load8, load64, store64

if TYPE_CHECKING:
    from ..formats.machine_code import Kernel

SHARDS: Final = 64
WORDS: Final = 3
"""Words of a slot: both halves of the hash, and when the key was seen last, or EMPTY."""

EMPTY: Final = -(2**63)
SLOTS, CAPACITY, USED, MOST = 0, 1, 2, 3
"""Columns of the directory, one row for each shard: address, slots, those in use, and the most of these."""

_C1: Final = np.uint64(0x87C37B91114253D5)
_C2: Final = np.uint64(0x4CF5AD432745937F)
_F1: Final = np.uint64(0xFF51AFD7ED558CCD)
_F2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_AHEAD: Final = (
    32  # rows whose slots are read together, so that the processor waits for memory once
)

_SIGNATURES: Final = {
    "_hash": (NUMBER, INT64S, INT64S, INT64_TABLE),
    "_see": (INT64_TABLE, INT64S, NUMBER, INT64_TABLE, INT64S, INT64S, INT64S),
    "_move": (INT64_TABLE, INT64_TABLE, NUMBER),
}


@cache
def kernels() -> dict[str, Kernel]:
    """Load at the first call: two threads at once do it twice, to no harm."""
    return load(__name__, _SIGNATURES)


@compiled
def _rotate(word: Int, bits: int) -> Int:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@compiled
def _finish(word: Int) -> Int:
    word ^= word >> np.uint64(33)
    word *= _F1
    word ^= word >> np.uint64(33)
    word *= _F2
    return word ^ (word >> np.uint64(33))


@compiled
def _tail(at: Int, size: Int) -> Int:
    """Read fewer than 8 bytes."""
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(load8(at + i)) << np.uint64(8 * i)
    return word


def _hash(address: Int, starts: Ints, ends: Ints, hashes: Ints) -> None:
    """Mix a value into the hash of each row, which begins as its seed; values begin below an address."""
    for row in range(len(starts)):
        at = address + starts[row]
        size = ends[row] - starts[row]
        low, high = np.uint64(hashes[row, 0]), np.uint64(hashes[row, 1])
        end = at + (size & ~15)
        while at < end:
            low ^= _rotate(load64(at) * _C1, 31) * _C2
            low = (_rotate(low, 27) + high) * np.uint64(5) + np.uint64(0x52DCE729)
            high ^= _rotate(load64(at + 8) * _C2, 33) * _C1
            high = (_rotate(high, 31) + low) * np.uint64(5) + np.uint64(0x38495AB5)
            at += 16
        left = size & 15
        if left > 8:
            high ^= _rotate(_tail(at + 8, left - 8) * _C2, 33) * _C1
        if left:
            low ^= _rotate((load64(at) if left >= 8 else _tail(at, left)) * _C1, 31) * _C2
        low ^= np.uint64(size)
        high ^= np.uint64(size)
        low += high
        high += low
        low, high = _finish(low), _finish(high)
        low += high
        high += low
        hashes[row, 0], hashes[row, 1] = np.int64(low), np.int64(high)


@compiled
def _slot(directory: Ints, low: Int, high: Int) -> Int:
    """Return the address of the first slot where a key may be."""
    shard = np.int64(high & np.uint64(SHARDS - 1))
    place = np.int64(high_product(low, np.uint64(directory[shard, CAPACITY])))
    return directory[shard, SLOTS] + place * 8 * WORDS


def _see(
    directory: Ints,
    times: Ints,
    within: Int,
    hashes: Ints,
    wanted: Ints,
    seen: Ints,
    progress: Ints,
) -> None:
    """Look up and note keys, from row `progress[0]` on, until the end or until a shard is full.

    Args:
        times: of each row, never descending.
        wanted: 0 for rows that are left out.
        seen: set to 1 where the key was seen less than `within` before.
        progress: the row where it ended, and a number that means nothing.
    """
    row = progress[0]
    rows = len(times)
    sink = np.uint64(0)
    ahead = row
    while row < rows:
        if row == ahead:
            ahead = min(rows, row + _AHEAD)
            for each in range(row, ahead):
                at = _slot(directory, np.uint64(hashes[each, 0]), np.uint64(hashes[each, 1]))
                sink ^= load64(at)
        if wanted[row]:
            low, high = np.uint64(hashes[row, 0]), np.uint64(hashes[row, 1])
            shard = np.int64(high & np.uint64(SHARDS - 1))
            begin = directory[shard, SLOTS]
            end = begin + directory[shard, CAPACITY] * 8 * WORDS
            at = _slot(directory, low, high)
            while True:
                last = np.int64(load64(at + 16))
                if last == EMPTY:
                    if directory[shard, USED] >= directory[shard, MOST]:
                        progress[0], progress[1] = row, shard
                        return
                    directory[shard, USED] += 1
                    store64(at, low)
                    store64(at + 8, high)
                    break
                if load64(at) == low and load64(at + 8) == high:
                    if times[row] - last < within:
                        seen[row] = 1
                    break
                at += 8 * WORDS
                if at == end:
                    at = begin
            store64(at + 16, np.uint64(times[row]))
        row += 1
    progress[0], progress[1] = row, np.int64(sink)


def _move(old: Ints, new: Ints, after: Int) -> None:
    """Copy the keys that were seen after a time into empty slots."""
    capacity = np.uint64(len(new))
    for row in range(len(old)):
        if old[row, 2] != EMPTY and old[row, 2] > after:
            at = np.int64(high_product(np.uint64(old[row, 0]), capacity))
            while new[at, 2] != EMPTY:
                at += 1
                if at == len(new):
                    at = np.int64(0)
            new[at, 0], new[at, 1], new[at, 2] = old[row, 0], old[row, 1], old[row, 2]
