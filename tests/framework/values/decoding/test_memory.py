"""Memory by its address, in compiled code."""

from __future__ import annotations

import struct

import numpy as np

from kmr.formats.kernels import compiled
from kmr.values.decoding.memory import bits_of, load8, load64, store64, zero_bytes


@compiled
def _moved(data: np.ndarray, out: np.ndarray) -> tuple[int, int]:
    start = np.int64(data.ctypes.data)
    store64(np.int64(out.ctypes.data) + 1, load64(start + 3))
    return load8(start + 1), zero_bytes(load64(start + 3))


@compiled
def _bits(number: float) -> int:
    return int(bits_of(number))


def test_words_are_read_and_written_at_any_address() -> None:
    data = np.frombuffer(bytes([7, 200, 9, 0, 0, 5, 6, 7, 8, 9, 10, 11]), np.uint8)
    out = np.zeros(10, np.uint8)
    assert _moved(data, out) == (200, 2)
    assert out.tolist() == [0, 0, 0, 5, 6, 7, 8, 9, 10, 0]


def test_the_bits_of_a_float_are_those_of_its_eight_bytes() -> None:
    assert _bits(-0.1) == struct.unpack("<q", struct.pack("<d", -0.1))[0]
