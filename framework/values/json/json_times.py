"""Dates and times of JSON, compiled: RFC 3339 as msgspec reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...formats.machine_code import compiled
from ...formats.memory import load8

if TYPE_CHECKING:
    from ...formats.machine_code import Int

_MINUS, _PLUS, _COLON, _DOT = 45, 43, 58, 46
_FRACTIONS = 6
_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)


@compiled
def _two(at: Int) -> Int:
    """Read two digits; a number above 99 if they are none."""
    tens, ones = load8(at) - 48, load8(at + 1) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return np.int64(10_000)
    return tens * 10 + ones


@compiled
def day_of(at: Int) -> Int:
    """Read `YYYY-MM-DD`: the days since 1970, or a number below -999,999 if it is no date."""
    year = _two(at) * 100 + _two(at + 2)
    month, day = _two(at + 5), _two(at + 8)
    if year < 2 or year > 9998 or month < 1 or month > 12 or day < 1:
        return np.int64(-1_000_000)
    if load8(at + 4) != _MINUS or load8(at + 7) != _MINUS:
        return np.int64(-1_000_000)
    most = _DAYS[month - 1]
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        most = 29
    if day > most:
        return np.int64(-1_000_000)
    # The year begins in March: Howard Hinnant, "chrono-compatible low-level date algorithms".
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@compiled
def moment_of(at: Int, end: Int) -> tuple[Int, bool]:  # noqa: C901
    """Read an RFC 3339 time between two quotes: microseconds since 1970, and whether it is one."""
    if end - at < 19:
        return np.int64(0), False
    days = day_of(at)
    hour, minute, second = _two(at + 11), _two(at + 14), _two(at + 17)
    if (
        days < -999_999
        or load8(at + 10) != 84  # T
        or load8(at + 13) != _COLON
        or load8(at + 16) != _COLON
        or hour > 23
        or minute > 59
        or second > 59
    ):
        return np.int64(0), False
    at += 19
    fraction = np.int64(0)
    if at < end and load8(at) == _DOT:
        begin = at + 1
        at = begin
        while at < end and 48 <= load8(at) <= 57:
            at += 1
        if at == begin or at - begin > _FRACTIONS:
            return np.int64(0), False
        for position in range(begin, begin + _FRACTIONS):
            fraction *= 10
            if position < at:
                fraction += load8(position) - 48
    minutes = np.int64(0)
    if at < end:
        sign = load8(at)
        if sign == 90:  # Z
            at += 1
        elif sign in (_PLUS, _MINUS) and end - at == 6 and load8(at + 3) == _COLON:
            hours, rest = _two(at + 1), _two(at + 4)
            if hours > 23 or rest > 59:
                return np.int64(0), False
            minutes = hours * 60 + rest
            if sign == _MINUS:
                minutes = -minutes
            at += 6
    if at != end:
        return np.int64(0), False
    seconds = (days * 24 + hour) * 3600 + (minute - minutes) * 60 + second
    return seconds * 1_000_000 + fraction, True
