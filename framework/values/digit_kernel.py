"""The compiled search for digits that a decoder of JSON may lose: one look at each byte, without the GIL."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ..formats.machine_code import BYTES, NUMBER, compiled, load

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..formats.machine_code import Int, Kernel

MOST: Final = 16
"""The longest run of digits that can be asked for."""

_REACH: Final = MOST + 1  # the bytes after a place that are looked at
_DOT, _MINUS, _E, _ZERO = 46, 45, 101, 48
_LOWER = 32  # the bit that makes E an e


class Digits(NamedTuple):
    """Which digits bytes may have: False means that they have none of the kind.

    Attributes:
        fine: a point and 7 digits after it.
        many: the given number of digits in a row, after a byte that is no digit and no point; or 16 zeros
            after a point.
        tiny: an exponent below zero of 3 digits that is large enough, or of 4.
    """

    fine: bool
    many: bool
    tiny: bool


def find_digits(data: NDArray[np.uint8], many: int, hundreds: int = 0) -> Digits:
    """Search bytes, which begin with no digit.

    Args:
        many: 4, 8, 12 or 16 digits, of which six places are looked at.
        hundreds: the least first digit of a tiny exponent of 3 digits.
    """
    found = np.zeros(3, np.uint8)
    end = np.zeros(2 * _REACH, np.uint8)
    last = data[-_REACH:]
    end[: len(last)] = last
    _kernel()(data, end, many, hundreds, found)
    fine, large, tiny = found.tolist()
    return Digits(bool(fine), bool(large), bool(tiny))


@cache
def _kernel() -> Kernel:
    return load(__name__, {"_find": (BYTES, BYTES, NUMBER, NUMBER, BYTES)})["_find"]


@compiled
def _is(byte: Int, other: int) -> Int:
    return np.uint8(byte == np.uint8(other))


@compiled
def _is_digit(byte: Int) -> Int:
    return np.uint8(np.uint8(byte - np.uint8(_ZERO)) < np.uint8(10))


@compiled
def _search(data: NDArray[np.uint8], count: int, hundreds: int, found: NDArray[np.uint8]) -> None:
    """Search from all places but the last ones. Without a branch the loop becomes vector code."""
    fine = many = tiny = np.uint8(0)
    one, two, three, four = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    five, six, seven, last = np.uint64(5), np.uint64(6), np.uint64(7), np.uint64(MOST)
    step = np.uint64(count) // four
    least = np.uint8(hundreds)
    for at in range(np.uint64(max(0, len(data) - _REACH))):
        point, second, third = (
            _is(data[at], _DOT),
            _is_digit(data[at + two]),
            _is_digit(data[at + three]),
        )
        fine |= (
            point
            & _is_digit(data[at + one])
            & second
            & third
            & _is_digit(data[at + four])
            & _is_digit(data[at + five])
            & _is_digit(data[at + six])
            & _is_digit(data[at + seven])
        )
        many |= (
            ~(point | _is_digit(data[at]))
            & _is_digit(data[at + one])
            & second
            & _is_digit(data[at + step + one])
            & _is_digit(data[at + two * step + one])
            & _is_digit(data[at + three * step + one])
            & _is_digit(data[at + four * step])
        )
        many |= (
            point
            & _is(data[at + one], _ZERO)
            & _is(data[at + two], _ZERO)
            & _is(data[at + five], _ZERO)
            & _is(data[at + seven], _ZERO)
            & _is(data[at + last], _ZERO)
        )
        tiny |= (
            _is(data[at] | np.uint8(_LOWER), _E)
            & _is(data[at + one], _MINUS)
            & second
            & third
            & _is_digit(data[at + four])
            & (np.uint8(data[at + two] >= np.uint8(_ZERO) + least) | _is_digit(data[at + five]))
        )
    found[0] |= fine
    found[1] |= many & np.uint8(1)
    found[2] |= tiny


def _find(
    data: NDArray[np.uint8],
    end: NDArray[np.uint8],
    count: int,
    hundreds: int,
    found: NDArray[np.uint8],
) -> None:
    _search(data, count, hundreds, found)
    _search(end, count, hundreds, found)
