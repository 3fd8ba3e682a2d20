"""Texts and values of JSON, compiled: where they end, and whether they are valid.

`at` and `end` are addresses: an array as an argument would cost a counted reference in each call, which takes
longer than the work. Every address is checked against the end of its row before it is read.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ...formats.machine_code import BYTES, INT32S, INT64S, NUMBER, compiled, inlined, load
from ...formats.memory import load8, load64, store64, zero_bytes
from .json_numbers import scan_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...formats.machine_code import Int, Ints, Kernel

_DEEPEST = 60  # levels of a value that is skipped
_LARGEST = 2**31 - 1  # bytes of a column of text

_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _SLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)

QUOTE, _BACKSLASH, COMMA, COLON, MINUS = 34, 92, 44, 58, 45
OPEN, CLOSE, LIST, LIST_END = 123, 125, 91, 93


@compiled
def skip_spaces(at: Int, end: Int) -> Int:
    """Return the address of the first byte that is not white space."""
    while at < end:
        byte = load8(at)
        if byte > 32 or (byte != 32 and byte != 10 and byte != 13 and byte != 9):
            break
        at += 1
    return at


@inlined
def _stops(word: Int) -> Int:
    """Mark bytes that are `"`, `\\` or a control by their highest bit; only the first mark is certain."""
    quotes = word ^ _QUOTES
    slashes = word ^ _SLASHES
    return (
        ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes) | ((word - _SPACES) & ~word)
    ) & _HIGHS


@compiled
def _plain(at: Int, end: Int) -> Int:
    """Return the address of the next byte of a string that is `"`, `\\`, a control or not ASCII."""
    while at + 8 <= end:
        word = load64(at)
        found = _stops(word) | (word & _HIGHS)
        if found != np.uint64(0):
            return at + zero_bytes(found)
        at += 8
    while at < end:
        byte = load8(at)
        if byte in (QUOTE, _BACKSLASH) or byte < 32 or byte >= 128:
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
def _unit(at: Int, end: Int) -> Int:
    """Read `\\uXXXX`: one unit of UTF-16, or -1."""
    if at + 6 > end or load8(at) != _BACKSLASH or load8(at + 1) != 117:  # u
        return np.int64(-1)
    code = np.int64(0)
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
    return code


@compiled
def _escape(at: Int, end: Int) -> tuple[Int, Int]:
    """Read an escape: the address after it, or -1 if it is not valid, and the character."""
    if at + 1 >= end:
        return np.int64(-1), np.int64(0)
    byte = load8(at + 1)
    if byte in (34, 92, 47):  # " \\ /
        return at + 2, byte
    if byte in (98, 102, 110, 114, 116):  # b f n r t
        if byte == 98:
            return at + 2, np.int64(8)
        if byte == 102:
            return at + 2, np.int64(12)
        if byte == 110:
            return at + 2, np.int64(10)
        return at + 2, np.int64(13 if byte == 114 else 9)
    code = _unit(at, end)
    if 0xDC00 <= code <= 0xDFFF:  # a lone surrogate
        return np.int64(-1), code
    if 0xD800 <= code <= 0xDBFF:
        low = _unit(at + 6, end)
        if low < 0xDC00 or low > 0xDFFF:
            return np.int64(-1), code
        return at + 12, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
    return (at + 6 if code >= 0 else code), code


@compiled
def string_end(at: Int, end: Int) -> tuple[Int, bool]:
    """Return the address of the quote that ends a string (-1: none), and whether it has no escapes."""
    plain = True
    while True:
        at = _plain(at, end)
        if at >= end:
            return np.int64(-1), plain
        byte = load8(at)
        if byte == QUOTE:
            return at, plain
        if byte >= 128:
            at = _utf8(at, end)
        elif byte == _BACKSLASH:
            plain = False
            at, _ = _escape(at, end)
        else:
            return np.int64(-1), plain
        if at < 0:
            return at, plain


@compiled
def text_end(at: Int, end: Int) -> tuple[Int, bool]:
    """Do as `string_end`, but let invalid UTF-8 pass: `Slots.array` checks the texts of a column together."""
    plain = True
    while True:
        while at + 8 <= end:
            word = load64(at)
            found = _stops(word)
            if found != np.uint64(0):
                at += zero_bytes(found)
                break
            at += 8
        while at < end:
            byte = load8(at)
            if byte in (QUOTE, _BACKSLASH) or byte < 32:
                break
            at += 1
        if at >= end:
            return np.int64(-1), plain
        byte = load8(at)
        if byte == QUOTE:
            return at, plain
        if byte != _BACKSLASH:
            return np.int64(-1), plain
        plain = False
        at, _ = _escape(at, end)
        if at < 0:
            return at, plain


@compiled
def word_end(at: Int, end: Int) -> Int:
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
    if byte == QUOTE:
        at, _ = string_end(at + 1, end)
        return at + 1 if at >= 0 else at
    if byte == MINUS or 48 <= byte <= 57:
        at, _, _, _ = scan_number(at, end)
        return at
    return word_end(at, end)


@compiled
def _key_end(at: Int, end: Int) -> Int:
    """Return the address after a key and its colon, or -1."""
    if at >= end or load8(at) != QUOTE:
        return np.int64(-1)
    at, _ = string_end(at + 1, end)
    if at < 0:
        return at
    at = skip_spaces(at + 1, end)
    if at >= end or load8(at) != COLON:
        return np.int64(-1)
    return at + 1


@compiled
def skip_value(at: Int, end: Int) -> Int:  # noqa: C901
    """Return the address after a value of any kind, or -1 if it is not valid or too deep."""
    depth = 0
    kinds = np.uint64(0)  # a bit for each level: 1 is an object
    while True:
        at = skip_spaces(at, end)
        if at >= end:
            return np.int64(-1)
        byte = load8(at)
        if byte in (OPEN, LIST):
            is_object = byte == OPEN
            at = skip_spaces(at + 1, end)
            if at >= end:
                return np.int64(-1)
            if load8(at) == (CLOSE if is_object else LIST_END):
                at += 1
            else:
                depth += 1
                if depth > _DEEPEST:
                    return np.int64(-1)
                kinds = (kinds << np.uint64(1)) | np.uint64(is_object)
                if is_object:
                    at = _key_end(at, end)
                    if at < 0:
                        return at
                continue
        else:
            at = _scalar(at, end)
            if at < 0:
                return at
        # After a value: the end of levels, or the next value.
        while depth > 0:
            at = skip_spaces(at, end)
            if at >= end:
                return np.int64(-1)
            byte = load8(at)
            is_object = kinds & np.uint64(1) != np.uint64(0)
            if byte == COMMA:
                at += 1
                if is_object:
                    at = _key_end(skip_spaces(at, end), end)
                    if at < 0:
                        return at
                break
            if byte != (CLOSE if is_object else LIST_END):
                return np.int64(-1)
            at += 1
            depth -= 1
            kinds >>= np.uint64(1)
        else:
            return at


def unescape(
    data: NDArray[np.uint8], pieces: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Concatenate texts that have escapes, without these. Returns Arrow offsets and bytes.

    Returns no offsets where they would not fit into 32 bits.
    """
    offsets = np.zeros(len(pieces) + 1, np.int32)
    size = int((pieces & 0xFFFFFFFF).sum())
    if size > _LARGEST:
        return offsets[:0], np.empty(0, np.uint8)
    out = np.empty(size + 8, np.uint8)
    addresses = np.array([data.ctypes.data, out.ctypes.data], np.int64)
    _kernels()["_unescape"](addresses, len(data), pieces, offsets, out)
    return offsets, out[: offsets[-1]]


@cache
def _kernels() -> dict[str, Kernel]:
    signature = (INT64S, NUMBER, INT64S, INT32S, BYTES)
    return load(__name__, {"_unescape": signature}, depends_on=(scan_number.__module__,))


def _unescape(addresses: Ints, size: int, pieces: Ints, offsets: Ints, out: Ints) -> None:
    base, begin = addresses[0], addresses[1]
    last = base + size
    to = begin
    for row in range(len(pieces)):
        offsets[row] = to - begin
        at = base + (pieces[row] >> 32)
        end = at + (pieces[row] & 0xFFFFFFFF)
        while at < end:
            # 8 bytes at a time: those behind a backslash are overwritten.
            if at + 8 <= last:
                word = load64(at)
                slashes = word ^ _SLASHES
                found = (slashes - _ONES) & ~slashes & _HIGHS
                count = np.int64(8) if found == np.uint64(0) else zero_bytes(found)
                count = min(count, end - at)
                store64(to, word)
            else:
                count = np.int64(load8(at) != _BACKSLASH)
                if count > 0:
                    out[to - begin] = load8(at)
            at += count
            to += count
            if count < 8 and at < end and load8(at) == _BACKSLASH:
                at, code = _escape(at, end)
                to += _write_utf8(out, to - begin, code)
    offsets[len(pieces)] = to - begin


@compiled
def _write_utf8(out: Ints, at: Int, code: Int) -> int:
    """Write a character; return its number of bytes."""
    if code < 0x80:
        out[at] = code
        return 1
    if code < 0x800:
        out[at] = 0xC0 | (code >> 6)
        out[at + 1] = 0x80 | (code & 0x3F)
        return 2
    if code < 0x10000:
        out[at] = 0xE0 | (code >> 12)
        out[at + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[at + 2] = 0x80 | (code & 0x3F)
        return 3
    out[at] = 0xF0 | (code >> 18)
    out[at + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[at + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[at + 3] = 0x80 | (code & 0x3F)
    return 4
