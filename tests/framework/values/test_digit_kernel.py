"""The compiled search finds the digits that regular expressions find."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kmr.values.digit_kernel import Digits, find_digits

PIECES = [
    b".",
    b"1234567",
    b"e-",
    b"E-",
    b"123",
    b"300",
    b"x",
    b"12",
    b"0" * 20,
    b"e-12",
    b"-",
    b" " * 15,
]


def search(data: bytes, many: int, hundreds: int = 0) -> Digits:
    return find_digits(np.frombuffer(data, np.uint8), many, hundreds)


@example([b".", b"1234567"], 16, 0)
@example([b"e-", b"123"], 16, 0)
@example([b" " * 15, b"E-", b"123"], 4, 0)
@example([b" " * 15, b"E-", b"300"], 4, 3)
@example([b"e-", b"12", b"12"], 4, 3)
@example([b"0" * 20], 16, 0)
@example([b"-", b".", b"0" * 20], 16, 0)
@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.sampled_from([4, 8, 16]),
    st.sampled_from([0, 3]),
)
def test_nothing_that_is_there_is_missed(pieces: list[bytes], many: int, hundreds: int) -> None:
    data = b"{" + b"".join(pieces)
    found = search(data, many, hundreds)
    assert found.fine >= bool(re.search(rb"\.[0-9]{7}", data))
    assert found.many >= bool(re.search(rb"[^0-9.][0-9]{%d}|\.0{16}" % many, data))
    assert found.tiny >= bool(re.search(rb"[eE]-([%d-9][0-9]{2}|[0-9]{4})" % hundreds, data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"a":1.123456,"b":123456789012345,"c":1e-12}',
        b'{"ts":"2026-01-02T03:04:05.123456Z","price":[19.99,1e10]}' * 3,
        b'{"small":1e-120,"other":[-2.5E-299,3e+308]}',
    ],
)
def test_usual_numbers_and_times_are_not_taken_for_such_digits(data: bytes) -> None:
    assert search(data, 16, 3) == Digits(fine=False, many=False, tiny=False)


def test_the_digits_of_a_fraction_are_no_large_number() -> None:
    assert not search(b'{"x":0.12345678901234567890,"y":-1.00000000001234567}' * 2, 16).many


def test_what_one_piece_of_memory_ends_with_is_found_in_it_alone() -> None:
    whole = np.frombuffer(b"1.1234567", np.uint8)
    assert find_digits(whole, 16).fine
    assert not find_digits(whole[:-1], 16).fine
