"""Memory by its address, in compiled code."""

from __future__ import annotations

import struct

import numpy as np

from kmr.formats.machine_code import INT64S, Ints, load
from kmr.formats.memory import (
    bits_of,
    bytes_below,
    copy32,
    equal_bytes,
    high_product,
    leading_zeros,
    load8,
    load64,
    store64,
    trailing_zeros,
)


def move(addresses: Ints, found: Ints) -> None:
    start = addresses[0]
    store64(addresses[1] + 1, load64(start + 3))
    found[0] = load8(start + 1)
    found[1] = trailing_zeros(load64(start + 3))


def blocks(addresses: Ints, found: Ints) -> None:
    start = addresses[0] + 1
    copy32(addresses[1] + 1, start)
    found[0] = np.int64(equal_bytes(start, 200))
    found[1] = np.int64(bytes_below(start, 200))
    found[2] = trailing_zeros(np.uint64(0))


def numbers(found: Ints) -> None:
    found[0] = bits_of(-0.1)
    found[1] = leading_zeros(np.uint64(5))
    found[2] = high_product(np.uint64(2**63), np.uint64(6))


def test_words_are_read_and_written_at_any_address() -> None:
    data = np.frombuffer(bytes([7, 200, 9, 0, 0, 5, 6, 7, 8, 9, 10, 11]), np.uint8)
    out = np.zeros(10, np.uint8)
    found = np.zeros(2, np.int64)
    addresses = np.array([data.ctypes.data, out.ctypes.data], np.int64)
    load(__name__, {"move": (INT64S, INT64S)})["move"](addresses, found)
    assert found.tolist() == [200, 16]
    assert out.tolist() == [0, 0, 0, 5, 6, 7, 8, 9, 10, 0]


def test_bits_and_products_are_those_of_the_numbers() -> None:
    found = np.zeros(3, np.int64)
    load(__name__, {"numbers": (INT64S,)})["numbers"](found)
    assert found.tolist() == [struct.unpack("<q", struct.pack("<d", -0.1))[0], 61, 3]


def test_a_block_has_a_bit_for_each_of_its_bytes() -> None:
    data = np.arange(180, 180 + 34).astype(np.uint8)
    out = np.zeros(34, np.uint8)
    found = np.zeros(3, np.int64)
    addresses = np.array([data.ctypes.data, out.ctypes.data], np.int64)
    load(__name__, {"blocks": (INT64S, INT64S)})["blocks"](addresses, found)
    assert found.tolist() == [1 << 19, (1 << 19) - 1, 64]
    assert out.tolist() == [0, *range(181, 213), 0]
