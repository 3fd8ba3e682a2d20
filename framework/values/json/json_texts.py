"""Texts and values of JSON, compiled: where they end, and whether they are valid.

`at` and `end` are addresses: an array as an argument would cost a counted reference in each call, which takes
longer than the work. Every address is checked before it is read: a byte against the end of its row, `BLOCK`
bytes together against `limit`, the end of the memory of all rows.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ...formats.machine_code import BYTES, INT32S, INT64S, NUMBER, compiled, inlined, load
from ...formats.memory import bytes_below, copy32, equal_bytes, load8, trailing_zeros
from .json_numbers import scan_number, short_integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...formats.machine_code import Int, Ints, Kernel

_DEEPEST = 60  # levels of a value that is skipped
_LARGEST = 2**31 - 1  # bytes of a column of text

BLOCK = 32  # bytes that are looked at together
_EVEN = np.uint64(0x55555555)
_ONE = np.uint64(1)

_SPACE, QUOTE, _BACKSLASH, COMMA, COLON, MINUS = 32, 34, 92, 44, 58, 45
OPEN, CLOSE, LIST, LIST_END = 123, 125, 91, 93
# The character of an escape of two bytes, by the second of them; 0: it is no such escape.
_SIMPLE = np.zeros(256, np.uint8)
for _letter, _character in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _SIMPLE[_letter] = _character


@compiled
def skip_spaces(at: Int, end: Int) -> Int:
    """Return the address of the first byte that is not white space."""
    while at < end:
        byte = load8(at)
        if byte > 32 or (byte != 32 and byte != 10 and byte != 13 and byte != 9):
            break
        at += 1
    return at


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
    simple = np.int64(_SIMPLE[load8(at + 1)])
    if simple > 0:
        return at + 2, simple
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
def text_end(at: Int, end: Int, limit: Int) -> tuple[Int, bool]:
    """Return the address of the quote that ends a string (-1: none), and whether it has no escapes.

    Neither escapes nor UTF-8 are checked: `copy_texts` and `valid_texts` check those of a column together.
    """
    plain = True
    escaped = np.uint64(0)  # 1: the byte at `at` follows a backslash that is not escaped itself
    while at < end and at + BLOCK <= limit:
        slashes = equal_bytes(at, _BACKSLASH)
        stops = equal_bytes(at, QUOTE) | bytes_below(at, _SPACE)
        if slashes | escaped != np.uint64(0):
            plain = plain and trailing_zeros(stops) < trailing_zeros(slashes)
            # A run of backslashes escapes the byte behind it if its length is odd.
            slashes &= ~escaped
            behind = (slashes << _ONE) | escaped
            ends = slashes + (slashes & ~_EVEN & ~behind)
            stops &= ~((_EVEN ^ (ends << _ONE)) & behind)
            escaped = (ends >> np.uint64(BLOCK)) & _ONE
        if stops != np.uint64(0):
            at += trailing_zeros(stops)
            return (at if at < end and load8(at) == QUOTE else np.int64(-1)), plain
        at += BLOCK
    while at < end:
        byte = load8(at)
        if escaped != np.uint64(0):
            escaped = np.uint64(0)
        elif byte == _BACKSLASH:
            plain = False
            escaped = _ONE
        elif byte == QUOTE:
            return at, plain
        elif byte < _SPACE:
            break
        at += 1
    return np.int64(-1), plain


@compiled
def _next_escape(at: Int, end: Int, limit: Int) -> Int:
    """Return the address of the next backslash, or `end`."""
    while at < end and load8(at) != _BACKSLASH:
        if at + BLOCK <= limit:
            at += min(trailing_zeros(equal_bytes(at, _BACKSLASH)), BLOCK)
        else:
            at += 1
    return min(at, end)


@compiled
def skip_string(at: Int, end: Int, limit: Int) -> Int:
    """Return the address after a string, or -1 if it is not valid; UTF-8 is not checked.

    `at`: the address after the first quote.
    """
    close, plain = text_end(at, end, limit)
    if close < 0:
        return close
    if not plain:
        at = _next_escape(at, close, limit)
        while at < close:
            at, _ = _escape(at, close)
            if at < 0:
                return at
            at = _next_escape(at, close, limit)
    return close + 1


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


@inlined
def skip_scalar(at: Int, end: Int, limit: Int) -> Int:
    """Return the address after a string, number or word, or -1."""
    byte = load8(at)
    if byte == QUOTE:
        return skip_string(at + 1, end, limit)
    if byte == MINUS or 48 <= byte <= 57:
        after, _ = short_integer(at + np.int64(byte == MINUS), end, limit)
        if after < 0:
            after, _, _, _ = scan_number(at, end, limit)
        return after
    return word_end(at, end)


@compiled
def _key_end(at: Int, end: Int, limit: Int) -> Int:
    """Return the address after a key and its colon, or -1."""
    if at >= end or load8(at) != QUOTE:
        return np.int64(-1)
    at = skip_string(at + 1, end, limit)
    if at < 0:
        return at
    at = skip_spaces(at, end)
    if at >= end or load8(at) != COLON:
        return np.int64(-1)
    return at + 1


@compiled
def skip_value(at: Int, end: Int, limit: Int) -> Int:  # noqa: C901
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
                    at = _key_end(at, end, limit)
                    if at < 0:
                        return at
                continue
        else:
            at = skip_scalar(at, end, limit)
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
                    at = _key_end(skip_spaces(at, end), end, limit)
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


def copy_texts(
    data: NDArray[np.uint8], pieces: NDArray[np.int64], valid: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int64]]:
    """Concatenate texts without their escapes; a null has none.

    Returns:
        Arrow offsets (none where they would not fit into 32 bits), bytes, and the rows whose escapes are not
        valid, which have no text.
    """
    offsets = np.zeros(len(pieces) + 1, np.int32)
    wrong = np.zeros(len(pieces), np.uint8)
    size = int((pieces & 0xFFFFFFFF).sum(where=valid))
    if size > _LARGEST:
        return offsets[:0], np.empty(0, np.uint8), np.flatnonzero(wrong)
    out = np.empty(size + BLOCK, np.uint8)
    addresses = np.array([data.ctypes.data, out.ctypes.data], np.int64)
    there = valid.view(np.uint8)
    _kernels()["_copy_texts"](addresses, len(data), pieces, there, offsets, out, wrong)
    return offsets, out[: offsets[-1]], np.flatnonzero(wrong)


@cache
def _kernels() -> dict[str, Kernel]:
    signature = (INT64S, NUMBER, INT64S, BYTES, INT32S, BYTES, BYTES)
    return load(__name__, {"_copy_texts": signature}, depends_on=(scan_number.__module__,))


def _copy_texts(
    addresses: Ints, size: int, pieces: Ints, valid: Ints, offsets: Ints, out: Ints, wrong: Ints
) -> None:
    base, out_base = addresses[0], addresses[1]
    limit = base + size
    to = np.int64(0)
    for row in range(len(pieces)):
        offsets[row] = to
        at = base + (pieces[row] >> 32)
        end = at + (pieces[row] & 0xFFFFFFFF)
        while valid[row] and at < end:
            block = at
            stop = min(block + BLOCK, end)
            slashes = _slashes(at, limit)
            while at < stop:
                part = min(block + trailing_zeros(slashes), stop) - at
                if at + BLOCK <= limit:
                    copy32(out_base + to, at)  # the next part overwrites the bytes after this one
                else:
                    for i in range(part):
                        out[to + i] = load8(at + i)
                at += part
                to += part
                if at < stop:
                    at, code = _escape(at, end)
                    if at < 0:
                        wrong[row] = 1
                        to = np.int64(offsets[row])
                        break
                    to += _write_utf8(out, to, code)
                    slashes &= ~np.uint64(0) << np.uint64(min(at - block, BLOCK))
            if at < 0:
                break
    offsets[len(pieces)] = to


@inlined
def _slashes(at: Int, limit: Int) -> Int:
    """Return a bit for each of the next `BLOCK` bytes: whether it is a backslash."""
    if at + BLOCK <= limit:
        return equal_bytes(at, _BACKSLASH)
    found = np.uint64(0)
    for i in range(limit - at):
        found |= np.uint64(load8(at + i) == _BACKSLASH) << np.uint64(i)
    return found


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
