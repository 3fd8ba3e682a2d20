"""The compiled search finds the digits that regular expressions find."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kmr.values.digit_kernel import Digits, find_digits

PIECES = [b".", b"1234567", b"e-", b"E-", b"123", b"x", b"12", b"0" * 20, b"e-12", b"-", b" " * 15]


def search(data: bytes, many: int) -> Digits:
    return find_digits(np.frombuffer(data, np.uint8), many)


@example([b".", b"1234567"], 16)
@example([b"e-", b"123"], 16)
@example([b" " * 15, b"E-", b"123"], 4)
@example([b"0" * 20], 16)
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.sampled_from([4, 8, 16]))
def test_nothing_that_is_there_is_missed(pieces: list[bytes], many: int) -> None:
    data = b"".join(pieces)
    found = search(data, many)
    assert found.fine >= bool(re.search(rb"\.[0-9]{7}", data))
    assert found.many >= bool(re.search(rb"[0-9]{%d}" % many, data))
    assert found.tiny >= bool(re.search(rb"[eE]-[0-9]{3}", data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"a":1.123456,"b":123456789012345,"c":1e-12}',
        b'{"ts":"2026-01-02T03:04:05.123456Z","price":[19.99,1e10]}' * 3,
    ],
)
def test_usual_numbers_and_times_are_not_taken_for_such_digits(data: bytes) -> None:
    assert search(data, 16) == Digits(fine=False, many=False, tiny=False)


def test_what_one_piece_of_memory_ends_with_is_found_in_it_alone() -> None:
    whole = np.frombuffer(b"1.1234567", np.uint8)
    assert find_digits(whole, 16).fine
    assert not find_digits(whole[:-1], 16).fine
