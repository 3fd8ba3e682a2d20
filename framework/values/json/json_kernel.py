"""The compiled part of decoding JSON: objects walked byte by byte into buffers of columns, without the GIL.

One function serves all types: a table says which fields are wanted, and how they are read. It accepts only
what msgspec accepts, with the same result, and leaves everything else to msgspec: a cell (an escaped string,
a number with many digits) or a whole row.

`at` and `end` are addresses: an array as an argument would cost a counted reference in each call, which takes
longer than the work. Every address is checked against the end of its row before it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...formats.kernels import compiled
from ..decoding.memory import bits_of, load8, load64, zero_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

Int: TypeAlias = Any
"""A 64-bit integer of compiled code: `int` and `np.int64` are the same there, but not to a type checker."""

Bytes: TypeAlias = "NDArray[np.uint8]"

# How a wanted field is read. RAW: only its place is noted. UNKNOWN: a field that is not wanted.
UNKNOWN, RAW, TEXT, INTEGER, FLOAT, BOOLEAN, DATETIME, DATE = -1, 0, 1, 2, 3, 4, 5, 6

# Columns of the table of fields.
CODE, NULLABLE, REQUIRED, LOW, HIGH = range(5)

# What `parse` found in a cell. ODD: valid JSON, which it does not read; the place of its text is noted.
MISSING, VALUE, NULL, ODD = range(4)

_LEARNED = 64  # fields of a row whose place is predicted
_DEEPEST = 60  # levels of a value that is skipped
_FRACTIONS = 6
_LARGEST_MANTISSA = 1 << 53
_LARGEST_POWER = 22
_POWERS = np.array([10.0**power for power in range(_LARGEST_POWER + 1)])
_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)

_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _SLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _DOT, _ZERO = 34, 92, 44, 58, 45, 43, 46, 48
_OPEN, _CLOSE, _LIST, _LIST_END = 123, 125, 91, 93


@compiled
def _spaces(at: Int, end: Int) -> Int:
    """Return the address of the next byte that is no white space."""
    while at < end:
        byte = load8(at)
        if byte > 32 or (byte != 32 and byte != 10 and byte != 13 and byte != 9):
            break
        at += 1
    return at


@compiled
def _plain(at: Int, end: Int) -> Int:
    """Return the address of the next byte of a string that is `"`, `\\`, a control or not ASCII."""
    while at + 8 <= end:
        word = load64(at)
        quotes = word ^ _QUOTES
        slashes = word ^ _SLASHES
        found = (
            ((quotes - _ONES) & ~quotes)
            | ((slashes - _ONES) & ~slashes)
            | ((word - _SPACES) & ~word)
            | word
        ) & _HIGHS
        if found != np.uint64(0):
            return at + zero_bytes(found)
        at += 8
    while at < end:
        byte = load8(at)
        if byte in (_QUOTE, _BACKSLASH) or byte < 32 or byte >= 128:
            break
        at += 1
    return at


@compiled
def _utf8(at: Int, end: Int) -> Int:
    """Return the address after one character that is not ASCII, or -1 if it is not valid UTF-8."""
    first = load8(at)
    if first < 0xC2 or first > 0xF4:
        return np.int64(-1)
    size = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if at + size > end:
        return np.int64(-1)
    second = load8(at + 1)
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if second < low or second > high:
        return np.int64(-1)
    for position in range(at + 2, at + size):
        if load8(position) & 0xC0 != 0x80:
            return np.int64(-1)
    return at + size


@compiled
def _escape(at: Int, end: Int) -> Int:
    """Return the address after an escape, or -1 if it is not valid, or half of a pair."""
    if at + 1 >= end:
        return np.int64(-1)
    byte = load8(at + 1)
    if byte in (34, 92, 47, 98, 102, 110, 114, 116):  # " \ / b f n r t
        return at + 2
    if byte != 117 or at + 6 > end:  # u
        return np.int64(-1)
    code = 0
    for position in range(at + 2, at + 6):
        digit = load8(position)
        if 48 <= digit <= 57:
            digit -= 48
        elif 97 <= digit <= 102:
            digit -= 87
        elif 65 <= digit <= 70:
            digit -= 55
        else:
            return np.int64(-1)
        code = code * 16 + digit
    return np.int64(-1) if 0xD800 <= code <= 0xDFFF else at + 6


@compiled
def _string(at: Int, end: Int) -> tuple[Int, bool]:
    """Return the address of the quote that ends a string (-1: none), and whether it has no escapes."""
    plain = True
    while True:
        at = _plain(at, end)
        if at >= end:
            return np.int64(-1), plain
        byte = load8(at)
        if byte == _QUOTE:
            return at, plain
        if byte >= 128:
            at = _utf8(at, end)
        elif byte == _BACKSLASH:
            plain = False
            at = _escape(at, end)
        else:
            return np.int64(-1), plain
        if at < 0:
            return at, plain


@compiled
def _digits(at: Int, end: Int) -> Int:
    while at < end and 48 <= load8(at) <= 57:
        at += 1
    return at


@compiled
def _number(at: Int, end: Int) -> tuple[Int, bool]:
    """Return the address after a number (-1: none), and whether it is an integer."""
    if at < end and load8(at) == _MINUS:
        at += 1
    begin = at
    at = _digits(at, end)
    if at == begin or (at > begin + 1 and load8(begin) == _ZERO):
        return np.int64(-1), False
    integer = True
    if at < end and load8(at) == _DOT:
        integer = False
        begin = at + 1
        at = _digits(begin, end)
        if at == begin:
            return np.int64(-1), False
    if at < end and (load8(at) | 32) == 101:  # e
        integer = False
        at += 1
        if at < end and (load8(at) == _PLUS or load8(at) == _MINUS):
            at += 1
        begin = at
        at = _digits(begin, end)
        if at == begin:
            return np.int64(-1), False
    return at, integer


@compiled
def _word(at: Int, end: Int) -> Int:
    """Return the address after `true`, `false` or `null`, or -1."""
    if at + 4 <= end:
        a, b, c, d = load8(at), load8(at + 1), load8(at + 2), load8(at + 3)
        if a == 116 and b == 114 and c == 117 and d == 101:
            return at + 4
        if a == 110 and b == 117 and c == 108 and d == 108:
            return at + 4
        if a == 102 and b == 97 and c == 108 and d == 115 and at + 5 <= end:
            return at + 5 if load8(at + 4) == 101 else np.int64(-1)
    return np.int64(-1)


@compiled
def _scalar(at: Int, end: Int) -> Int:
    """Return the address after a string, number or word, or -1."""
    byte = load8(at)
    if byte == _QUOTE:
        at, _ = _string(at + 1, end)
        return at + 1 if at >= 0 else at
    if byte == _MINUS or 48 <= byte <= 57:
        at, _ = _number(at, end)
        return at
    return _word(at, end)


@compiled
def _key(at: Int, end: Int) -> Int:
    """Return the address after a key and its colon, or -1."""
    if at >= end or load8(at) != _QUOTE:
        return np.int64(-1)
    at, _ = _string(at + 1, end)
    if at < 0:
        return at
    at = _spaces(at + 1, end)
    if at >= end or load8(at) != _COLON:
        return np.int64(-1)
    return at + 1


@compiled
def _skip(at: Int, end: Int) -> Int:  # noqa: C901
    """Return the address after a value of any kind, or -1 if it is not valid or too deep."""
    depth = 0
    kinds = np.uint64(0)  # a bit for each level: 1 is an object
    while True:
        at = _spaces(at, end)
        if at >= end:
            return np.int64(-1)
        byte = load8(at)
        if byte in (_OPEN, _LIST):
            is_object = byte == _OPEN
            at = _spaces(at + 1, end)
            if at >= end:
                return np.int64(-1)
            if load8(at) == (_CLOSE if is_object else _LIST_END):
                at += 1
            else:
                depth += 1
                if depth > _DEEPEST:
                    return np.int64(-1)
                kinds = (kinds << np.uint64(1)) | np.uint64(is_object)
                if is_object:
                    at = _key(at, end)
                    if at < 0:
                        return at
                continue
        else:
            at = _scalar(at, end)
            if at < 0:
                return at
        # After a value: the end of levels, or the next value.
        while depth > 0:
            at = _spaces(at, end)
            if at >= end:
                return np.int64(-1)
            byte = load8(at)
            is_object = kinds & np.uint64(1) != np.uint64(0)
            if byte == _COMMA:
                at += 1
                if is_object:
                    at = _key(_spaces(at, end), end)
                    if at < 0:
                        return at
                break
            if byte != (_CLOSE if is_object else _LIST_END):
                return np.int64(-1)
            at += 1
            depth -= 1
            kinds >>= np.uint64(1)
        else:
            return at


@compiled
def _two(at: Int) -> Int:
    """Read two digits; a number above 99 if they are none."""
    tens, ones = load8(at) - 48, load8(at + 1) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return np.int64(10_000)
    return tens * 10 + ones


@compiled
def _day(at: Int) -> Int:
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
def _moment(at: Int, end: Int) -> tuple[Int, bool]:  # noqa: C901
    """Read an RFC 3339 time between two quotes: microseconds since 1970, and whether it is one."""
    if end - at < 19:
        return np.int64(0), False
    days = _day(at)
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
        at = _digits(begin, end)
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


@compiled
def _integer(at: Int, end: Int) -> tuple[Int, bool]:
    """Read the digits of a valid integer; False if there are more than 18."""
    negative = load8(at) == _MINUS
    if negative:
        at += 1
    if end - at > 18:
        return np.int64(0), False
    value = np.int64(0)
    while at < end:
        value = value * 10 + (load8(at) - 48)
        at += 1
    return (-value if negative else value), True


@compiled
def _float(at: Int, end: Int) -> tuple[float, bool]:
    """Read a valid number exactly (mantissa up to 2**53, power up to 22), or return False."""
    negative = load8(at) == _MINUS
    if negative:
        at += 1
    mantissa, power, digits = np.int64(0), np.int64(0), 0
    fraction = False
    while at < end:
        byte = load8(at)
        if byte == _DOT:
            fraction = True
        elif 48 <= byte <= 57:
            digits += 1
            if digits > 18:
                return 0.0, False
            mantissa = mantissa * 10 + (byte - 48)
            power -= fraction
        else:
            break
        at += 1
    if at < end:  # e
        at += 1
        sign = np.int64(1)
        if load8(at) == _MINUS or load8(at) == _PLUS:
            sign = np.int64(-1) if load8(at) == _MINUS else np.int64(1)
            at += 1
        if end - at > 3:
            return 0.0, False
        exponent = np.int64(0)
        while at < end:
            exponent = exponent * 10 + (load8(at) - 48)
            at += 1
        power += sign * exponent
    if negative and mantissa == 0:
        return 0.0, False  # -0 is 0, but -0.0 is not
    if mantissa > _LARGEST_MANTISSA or power < -_LARGEST_POWER or power > _LARGEST_POWER:
        return 0.0, False
    value = np.float64(mantissa)
    value = value / _POWERS[-power] if power < 0 else value * _POWERS[power]
    return (-value if negative else value), True


@compiled
def _same(one: Int, other: Int, size: Int) -> bool:
    """Compare two pieces of the data."""
    at = np.int64(0)
    while at + 8 <= size:
        if load64(one + at) != load64(other + at):
            return False
        at += 8
    while at < size:
        if load8(one + at) != load8(other + at):
            return False
        at += 1
    return True


@compiled
def _field(at: Int, size: Int, names: Int, name_ends: NDArray[np.int64]) -> Int:
    """Return which wanted field has the name at a position, or UNKNOWN."""
    begin = np.int64(0)
    for field in range(len(name_ends)):
        finish = name_ends[field]
        if finish - begin == size and _same(names + begin, at, size):
            return np.int64(field)
        begin = finish
    return np.int64(UNKNOWN)


@compiled
def _read(  # noqa: C901
    at: Int, end: Int, base: Int, code: Int, low: Int, high: Int, nullable: Int
) -> tuple[Int, Int, Int]:
    """Read the value of a wanted field: the address after it (-1: not valid), what it is, and its cell."""
    byte = load8(at)
    start = at
    if byte == _QUOTE:
        close, plain = _string(at + 1, end)
        if close < 0:
            return close, np.int64(ODD), np.int64(0)
        at = close + 1
        if code == TEXT and plain:
            return at, np.int64(VALUE), ((start + 1 - base) << 32) | (close - start - 1)
        if code == DATETIME:
            moment, is_one = _moment(start + 1, close)
            if is_one:
                return at, np.int64(VALUE), moment
        if code == DATE and close - start == 11:
            day = _day(start + 1)
            if day > -999_999:
                return at, np.int64(VALUE), day
    elif byte == _MINUS or 48 <= byte <= 57:
        at, integer = _number(at, end)
        if at < 0:
            return at, np.int64(ODD), np.int64(0)
        if code == INTEGER and integer:
            value, is_one = _integer(start, at)
            if is_one and low <= value <= high:
                return at, np.int64(VALUE), value
        elif code == FLOAT:
            number, is_one = _float(start, at)
            if is_one:
                return at, np.int64(VALUE), bits_of(number)
    elif byte in (_OPEN, _LIST):
        at = _skip(at, end)
        if at < 0:
            return at, np.int64(ODD), np.int64(0)
    else:
        at = _word(at, end)
        if at < 0:
            return at, np.int64(ODD), np.int64(0)
        if byte == 110:  # null
            if nullable:
                return at, np.int64(NULL), np.int64(0)
        elif code == BOOLEAN:
            return at, np.int64(VALUE), np.int64(byte == 116)
    return at, np.int64(ODD), ((start - base) << 32) | (at - start)


@compiled
def parse(  # noqa: C901
    data: Bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    names: Bytes,
    name_ends: NDArray[np.int64],
    fields: NDArray[np.int64],
    closed: bool,
) -> tuple[Any, ...]:
    """Read JSON objects into cells.

    Args:
        starts: where each text begins in the data; negative: there is none.
        ends: where it ends.
        names: the names of the wanted fields, one after the other; `name_ends` has their ends.
        fields: one row for each wanted field; the columns are CODE to HIGH.
        closed: a row with an unknown field is left to msgspec.

    Returns:
        The cells by field and row: integers and times as they are, floats as their bits, texts and ODD values
        as `start << 32 | size`; what each is (MISSING to ODD); the number of cells of each field that are not
        VALUE; which rows are left to msgspec.
    """
    rows, count = len(starts), len(name_ends)
    cells = np.zeros((count, rows), np.int64)
    kinds = np.zeros((count, rows), np.uint8)
    others = np.zeros(count, np.int64)
    left = np.zeros(rows, np.uint8)
    base, name_base = np.int64(data.ctypes.data), np.int64(names.ctypes.data)
    # Of the rows before: for each position in a row, the text before its value, and the field.
    text_start = np.zeros(_LEARNED, np.int64)
    text_size = np.zeros(_LEARNED, np.int64)
    text_field = np.zeros(_LEARNED, np.int64)
    for row in range(rows):
        if starts[row] < 0:
            others += 1
            continue
        at, end = base + starts[row], base + ends[row]
        at = _spaces(at, end)
        good = at < end and load8(at) == _OPEN
        at += 1
        found: Int = 0
        position: Int = 0
        while good:
            field: Int = np.int64(UNKNOWN)
            size = text_size[position] if position < _LEARNED else np.int64(0)
            if size > 0 and at + size < end and _same(text_start[position], at, size):
                at += size
                field = text_field[position]
            else:
                begin = at
                at = _spaces(at, end)
                if at < end and load8(at) == _CLOSE:
                    good = _spaces(at + 1, end) == end
                    break
                if position > 0:
                    if at >= end or load8(at) != _COMMA:
                        good = False
                        break
                    at = _spaces(at + 1, end)
                if at >= end or load8(at) != _QUOTE:
                    good = False
                    break
                close = _plain(at + 1, end)
                if close >= end or load8(close) != _QUOTE:
                    good = False
                    break
                field = _field(at + 1, close - at - 1, name_base, name_ends)
                at = _spaces(close + 1, end)
                if at >= end or load8(at) != _COLON:
                    good = False
                    break
                at = _spaces(at + 1, end)
                if at >= end:
                    good = False
                    break
                if position < _LEARNED:
                    text_start[position], text_size[position] = begin, at - begin
                    text_field[position] = field
            position += 1
            if field < 0:
                at = _skip(at, end)
                good = at >= 0 and not closed
                continue
            at, kind, cell = _read(
                at,
                end,
                base,
                fields[field, CODE],
                fields[field, LOW],
                fields[field, HIGH],
                fields[field, NULLABLE],
            )
            if at < 0 or kinds[field, row] != MISSING:  # not valid, or twice in the row
                good = False
                break
            others[field] += kind != VALUE
            kinds[field, row] = kind
            cells[field, row] = cell
            found += 1
        if found < count:
            for each in range(count):
                if kinds[each, row] == MISSING:
                    others[each] += 1
                    good = good and not fields[each, REQUIRED]
        left[row] = not good
    return cells, kinds, others, left
