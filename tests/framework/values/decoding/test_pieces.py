"""`gather` copies each piece unchanged, and none of the bytes around it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.values.decoding.pieces import gather


@given(
    st.binary(max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans())),
)
def test_pieces_of_any_size_and_place_are_gathered(
    data: bytes, cuts: list[tuple[int, int, bool]]
) -> None:
    pieces = [
        (min(start, len(data)), data[start : start + size], valid) for start, size, valid in cuts
    ]
    offsets, gathered, is_ascii = gather(
        np.frombuffer(data, np.uint8),
        np.array([start << 32 | len(piece) for start, piece, _ in pieces], np.int64),
        np.array([valid for _, _, valid in pieces], np.bool_),
    )
    expected = [piece if valid else b"" for _, piece, valid in pieces]
    assert gathered.tobytes() == b"".join(expected)
    assert np.diff(offsets).tolist() == [len(piece) for piece in expected]
    assert is_ascii == b"".join(expected).isascii()


@pytest.mark.parametrize("behind", [0, 1, 40, 200])
@pytest.mark.parametrize("size", [1, 31, 32, 33, 127, 128, 129, 160, 1000])
def test_long_texts_are_copied_and_one_byte_that_is_not_ascii_is_found_anywhere(
    size: int, behind: int
) -> None:
    for odd in (None, 0, size // 2, size - 1):
        text = bytearray(97 + at % 26 for at in range(size))
        if odd is not None:
            text[odd] = 0xC3
        data = b"x" + bytes(text) + b"\xff" * behind
        pieces = np.array([1 << 32 | size, 0, 1 << 32 | size], np.int64)
        offsets, gathered, is_ascii = gather(np.frombuffer(data, np.uint8), pieces)
        assert offsets.tolist() == [0, size, size, 2 * size]
        assert gathered.tobytes() == bytes(text) * 2
        assert is_ascii == (odd is None)
