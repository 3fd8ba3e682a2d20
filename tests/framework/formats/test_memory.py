"""Memory by its address, in compiled code."""

from __future__ import annotations

import struct

import numpy as np

from kmr.formats.machine_code import INT64S, Ints, load
from kmr.formats.memory import (
    bits_of,
    high_product,
    leading_zeros,
    load8,
    load64,
    store64,
    zero_bytes,
)


def move(addresses: Ints, found: Ints) -> None:
    start = addresses[0]
    store64(addresses[1] + 1, load64(start + 3))
    found[0] = load8(start + 1)
    found[1] = zero_bytes(load64(start + 3))


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
    assert found.tolist() == [200, 2]
    assert out.tolist() == [0, 0, 0, 5, 6, 7, 8, 9, 10, 0]


def test_bits_and_products_are_those_of_the_numbers() -> None:
    found = np.zeros(3, np.int64)
    load(__name__, {"numbers": (INT64S,)})["numbers"](found)
    assert found.tolist() == [struct.unpack("<q", struct.pack("<d", -0.1))[0], 61, 3]
