"""Numbers of JSON, compiled: read exactly, or left to msgspec. See `json_texts.py` for the addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...formats.machine_code import compiled, inlined
from ...formats.memory import bits_of, high_product, leading_zeros, load8, load64, trailing_zeros

if TYPE_CHECKING:
    from ...formats.machine_code import Int

_MINUS, _PLUS, _DOT, _ZERO = 45, 43, 46, 48
_COMMA, _CLOSE = 44, 125  # with a bit less it is the end of a list
_ZEROS, _HIGHS = np.uint64(0x3030303030303030), np.uint64(0x8080808080808080)
_UP_FROM_TEN = np.uint64(0x7676767676767676)  # plus 10 it is 0x80
_PAIRS = np.uint64(0x000000FF000000FF)
_MOST_DIGITS = 19  # of a number below 2**64
_SHORT_MANTISSA = 1 << 32
_LARGEST_POWER = 22
_POWERS = np.array([10.0**power for power in range(_LARGEST_POWER + 1)])
_UNITS = np.array([10**power for power in range(_MOST_DIGITS + 1)], np.uint64)
# The powers of numbers of 64 bits that can be halfway between two floats.
_LEAST_TIE, _LARGEST_TIE = -4, 23
_LOWEST, _HIGHEST = -342, 308  # powers of ten whose products with 64 bits may be floats


def _words_of_power(power: int) -> tuple[int, int]:
    """Return the first 128 bits of a power of ten: the upper and the lower half.

    Negative powers are rounded up, so that a product that is a float is not just below it.
    """
    top = 10**power if power >= 0 else (1 << 1500) // 10**-power
    shift = top.bit_length() - 128
    bits = top >> shift if shift > 0 else top << -shift
    bits += power < 0
    return bits >> 64, bits & (2**64 - 1)


_WORDS = np.array([_words_of_power(power) for power in range(_LOWEST, _HIGHEST + 1)], np.uint64)


@inlined
def _eight(word: Int) -> Int:
    """Return the number of 8 digits, of which the first is in the lowest byte."""
    # Numbers of two digits each, then of four, then of all.
    word = word * np.uint64(10) + (word >> np.uint64(8))
    low = (word & _PAIRS) * np.uint64(0x000F424000000064)
    high = ((word >> np.uint64(16)) & _PAIRS) * np.uint64(0x0000271000000001)
    return (low + high) >> np.uint64(32)


@inlined
def _digits(at: Int, end: Int, limit: Int, mantissa: Int) -> tuple[Int, Int]:
    """Append digits to a mantissa; return the address of the first other byte, and the mantissa."""
    while at + 8 <= limit:
        word = load64(at) ^ _ZEROS
        # Only the lowest mark is certain: that of the first byte that is no digit.
        others = (word | (word + _UP_FROM_TEN)) & _HIGHS
        if others == np.uint64(0) and at + 8 <= end:
            mantissa = mantissa * _UNITS[8] + _eight(word)
            at += 8
            continue
        count = min(trailing_zeros(others) >> 3, end - at)
        half = np.uint64(32 - 4 * count)  # a word cannot be shifted by all its bits at once
        return at + count, mantissa * _UNITS[count] + _eight((word << half) << half)
    while at < end:
        digit = load8(at) - _ZERO
        if digit < 0 or digit > 9:
            break
        mantissa = mantissa * np.uint64(10) + np.uint64(digit)
        at += 1
    return at, mantissa


@inlined
def short_integer(at: Int, end: Int, limit: Int) -> tuple[Int, Int]:
    """Read an integer of at most 7 digits before a comma or a bracket; -1 as address: it is none."""
    if at + 8 > limit:
        return np.int64(-1), np.int64(0)
    word = load64(at) ^ _ZEROS
    others = (word | (word + _UP_FROM_TEN)) & _HIGHS
    bits = trailing_zeros(others) & ~7  # of the digits
    after = at + (bits >> 3)
    if others == np.uint64(0) or bits == 0 or after >= end:
        return np.int64(-1), np.int64(0)
    follows = load8(after)
    if follows != _COMMA and follows | 32 != _CLOSE:
        return np.int64(-1), np.int64(0)
    if bits > 8 and word & np.uint64(0xFF) == np.uint64(0):  # a zero in front
        return np.int64(-1), np.int64(0)
    return after, np.int64(_eight(word << np.uint64(64 - bits)))


@inlined
def scan_number(at: Int, end: Int, limit: Int) -> tuple[Int, bool, Int, Int]:
    """Read a number; return the address after it (-1: no number), whether it is an integer, mantissa, power.

    The sign is not part of the mantissa. A power of 9999: the mantissa has too many digits to be exact.
    """
    if at < end and load8(at) == _MINUS:
        at += 1
    begin = at
    power = np.int64(0)
    at, mantissa = _digits(at, end, limit, np.uint64(0))
    digits = at - begin
    integer = True
    bad = digits == 0 or (digits > 1 and load8(begin) == _ZERO)
    if at < end and load8(at) == _DOT:
        integer = False
        dot = at + 1
        at, mantissa = _digits(dot, end, limit, mantissa)
        bad = bad or at == dot
        power = dot - at
        digits += at - dot
    if at < end and (load8(at) | 32) == 101:  # e
        integer = False
        at += 1
        negative = False
        if at < end and (load8(at) == _PLUS or load8(at) == _MINUS):
            negative = load8(at) == _MINUS
            at += 1
        begin_exponent = at
        exponent = np.int64(0)
        while at < end and 48 <= load8(at) <= 57:
            exponent = min(exponent * 10 + load8(at) - 48, np.int64(9999))
            at += 1
        bad = bad or at == begin_exponent
        power += -exponent if negative else exponent
    if bad:
        return np.int64(-1), False, np.int64(0), power
    if digits > _MOST_DIGITS:
        # Zeros in front do not count.
        first = begin
        while first < at and (load8(first) == _ZERO or load8(first) == _DOT):
            digits -= load8(first) == _ZERO
            first += 1
        if digits > _MOST_DIGITS:
            return at, integer, np.int64(0), np.int64(9999)
    return at, integer, np.int64(mantissa), power


@compiled
def as_integer(mantissa: Int, power: Int, negative: bool) -> tuple[Int, bool]:
    """Return an integer, and whether it fits 64 bits."""
    word = np.uint64(mantissa)
    most = np.uint64(0x8000000000000000) if negative else np.uint64(0x7FFFFFFFFFFFFFFF)
    value = np.int64(word)
    return (-value if negative else value), bool(power == 0 and word <= most)


@compiled
def as_float(mantissa: Int, power: Int, negative: bool) -> tuple[Int, bool]:
    """Return the bits of the float nearest to a number, and whether it is known."""
    word = np.uint64(mantissa)
    if word == np.uint64(0):
        return np.int64(0), not negative and power < 9999  # -0 is 0, but -0.0 is not
    # Exact up to 2 ** 53, but floats of 16 and of 17 digits in turn would make this branch slow.
    if word <= np.uint64(_SHORT_MANTISSA) and -_LARGEST_POWER <= power <= _LARGEST_POWER:
        value: Any = np.float64(word)
        value = value / _POWERS[-power] if power < 0 else value * _POWERS[power]
        return bits_of(-value if negative else value), True
    bits, known = _nearest(word, power)
    return np.int64(bits | (np.uint64(negative) << np.uint64(63))), known


@compiled
def is_kept(mantissa: Int, power: Int, float_: Int, bits: Int) -> bool:
    """Whether a number with a power of at most 0 is a float of so many binary digits, or has a fraction.

    `float_`: the bits of the float nearest to it. Below 2 ** bits all integers are floats.
    """
    exponent = (float_ >> 52) & 0x7FF
    if exponent < 1023 + bits:
        return True
    word = np.uint64(mantissa)
    if power < 0:
        if power < -_MOST_DIGITS:
            return True
        unit = _UNITS[-power]
        if word % unit != np.uint64(0):
            return True
        word //= unit
    if word == np.uint64(0):
        return True
    shift = 64 - leading_zeros(word) - bits
    if shift <= 0:
        return True
    return bool((word >> np.uint64(shift)) << np.uint64(shift) == word)


@compiled
def _nearest(mantissa: Int, power: Int) -> tuple[Int, bool]:
    """Return the bits of the nearest float, or False where 128 bits do not tell which it is.

    Daniel Lemire: Number Parsing at a Gigabyte per Second (arXiv 2101.11408).
    """
    nine, one = np.uint64(0x1FF), np.uint64(1)
    if power < _LOWEST or power > _HIGHEST:
        return np.uint64(0), False
    zeros = leading_zeros(mantissa)
    mantissa = mantissa << np.uint64(zeros)
    exponent = ((217706 * power) >> 16) + 64 + 1023 - zeros
    upper, lower = _WORDS[power - _LOWEST, 0], _WORDS[power - _LOWEST, 1]
    high, low = high_product(mantissa, upper), mantissa * upper
    if high & nine == nine and low + mantissa < mantissa:
        rest_high, rest_low = high_product(mantissa, lower), mantissa * lower
        joined = low + rest_high
        if joined < low:
            high += one
        low = joined
        if high & nine == nine and low + one == np.uint64(0) and rest_low + mantissa < mantissa:
            return np.uint64(0), False
    top = high >> np.uint64(63)
    found = high >> (top + np.uint64(9))
    exponent -= np.int64(one ^ top)
    may_be_tie = low <= one and _LEAST_TIE <= power <= _LARGEST_TIE
    if may_be_tie and found & np.uint64(3) == one and found << (top + np.uint64(9)) == high:
        found ^= one  # halfway between two floats: to the even one
    found = (found + (found & one)) >> one
    if found >> np.uint64(53) != np.uint64(0):
        found >>= one
        exponent += 1
    if exponent < 1 or exponent >= 0x7FF:
        return np.uint64(0), False
    return (np.uint64(exponent) << np.uint64(52)) | (found & np.uint64((1 << 52) - 1)), True
