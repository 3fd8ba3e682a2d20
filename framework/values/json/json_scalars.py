"""Scalars of JSON that come one after the other, compiled: fields as expected, and items of a list.

Two loops here read most values of most rows. They get the addresses of nodes, followers and slots instead of
arrays, because arrays need more registers than there are. Anything else ends the loop, and `json_kernel.py`
reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...formats.machine_code import compiled, inlined
from ...formats.memory import load8, load64, store8, store64
from .json_numbers import as_float, as_integer, is_kept, scan_number, short_integer
from .json_texts import (
    COMMA,
    LIST,
    MINUS,
    OPEN,
    QUOTE,
    skip_scalar,
    skip_spaces,
    skip_value,
    text_end,
    word_end,
)
from .json_times import day_of, moment_of

if TYPE_CHECKING:
    from ...formats.machine_code import Int

# How a node of a type is read. RAW: only its place is noted.
RAW, TEXT, INTEGER, FLOAT, BOOLEAN, DATETIME, DATE, OBJECT, ITEMS, PAIRS = range(10)

# Columns of the table of nodes. TO and AT: the slot column and its level. ITEM and INNER: the node of the
# items or values, and their level; KEY: the slot column of keys. FIELDS and COUNT: the nodes of the fields;
# TABLE and MASK: their hash table; of a map, MASK is how many maps it is inside of. NULLS and NULL_COUNT: the
# slot columns to make null.
(
    CODE, TO, AT, NULLABLE, LOW, HIGH, NAME, NAME_SIZE, ITEM, INNER, KEY, FIELDS, COUNT, TABLE, MASK, CLOSED,
    NULLS, NULL_COUNT, REQUIRED, NODE_WIDTH,
) = range(20)  # fmt: skip

# Columns of the table of followers. WORD: the first 8 bytes of the text, of which WORD_MASK are in it.
START, SIZE, NEXT, WORD, WORD_MASK, FOLLOWER_WIDTH = range(6)

# What a slot holds; Arrow's bit "not null" is made of it. The walk does not read ODD, which is valid JSON,
# nor ESCAPED, a text with escapes: it notes their places as `start << 32 | size`.
NULL, VALUE, ODD, MISSING, ESCAPED = range(5)

NODE_SIZE, FOLLOWER_SIZE = 8 * NODE_WIDTH, 8 * FOLLOWER_WIDTH  # bytes of a line


@compiled
def same(one: Int, other: Int, size: Int) -> bool:
    """Compare two pieces of memory."""
    at = np.int64(0)
    while at + 8 <= size:
        if load64(one + at) != load64(other + at):
            return False
        at += 8
    if at < size and size >= 8:
        return bool(load64(one + size - 8) == load64(other + size - 8))
    while at < size:
        if load8(one + at) != load8(other + at):
            return False
        at += 1
    return True


@inlined
def _word(at: Int, number: Int) -> Int:
    """Read the word of a number in the array at an address."""
    return np.int64(load64(at + 8 * number))


@inlined
def follows(line: Int, at: Int, end: Int) -> Int:
    """Return the address after the expected text and before a value; -1: it is not there."""
    size = _word(line, SIZE)
    after = at + size
    if size == 0 or after >= end:
        return np.int64(-1)
    begin = _word(line, START)
    if at + 8 > end:
        return after if same(begin, at, size) else np.int64(-1)
    found = np.int64(load64(at)) ^ _word(line, WORD)
    if found & _word(line, WORD_MASK) != 0:
        return np.int64(-1)
    if size <= 8:
        return after
    if size <= 16:
        return after if load64(begin + size - 8) == load64(after - 8) else np.int64(-1)
    return after if same(begin, at, size) else np.int64(-1)


@inlined
def _scalar(  # noqa: C901
    at: Int, end: Int, limit: Int, base: Int, code: Int, low: Int, high: Int, nullable: Int
) -> tuple[Int, Int, Int]:
    """Read a value that has one slot: the address after it (-1: not valid), what it is, and its slot."""
    byte = load8(at)
    start = at
    if byte == QUOTE:
        close, plain = text_end(at + 1, end, limit)
        at = close + 1 if close >= 0 else close
        if code == TEXT:
            kind = np.int64(VALUE) if plain else np.int64(ESCAPED)
            return at, kind, ((start + 1 - base) << 32) | (close - start - 1)
        if at < 0:
            return at, np.int64(ODD), np.int64(0)
        if code == DATETIME:
            moment, is_one = moment_of(start + 1, close)
            if is_one:
                return at, np.int64(VALUE), moment
        if code == DATE and close - start == 11:
            day = day_of(start + 1)
            if day > -999_999:
                return at, np.int64(VALUE), day
    elif byte == MINUS or 48 <= byte <= 57:
        if code == INTEGER:
            after, value = short_integer(at + np.int64(byte == MINUS), end, limit)
            if byte == MINUS:
                value = -value
            if after > 0 and low <= value <= high:
                return after, np.int64(VALUE), value
        at, integer, mantissa, power = scan_number(at, end, limit)
        if at < 0:
            return at, np.int64(ODD), np.int64(0)
        if code == INTEGER and integer:
            value, is_one = as_integer(mantissa, power, byte == MINUS)
            if is_one and low <= value <= high:
                return at, np.int64(VALUE), value
        elif code == FLOAT:
            value, is_one = as_float(mantissa, power, byte == MINUS)
            has_exponent = not integer and power >= 0
            if is_one and (has_exponent or is_kept(mantissa, power, value, high)):
                return at, np.int64(VALUE), value
    elif byte in (OPEN, LIST):
        at = skip_value(at, end, limit)
        if at < 0:
            return at, np.int64(ODD), np.int64(0)
    else:
        at = word_end(at, end)
        if at < 0:
            return at, np.int64(ODD), np.int64(0)
        if byte == 110:  # null
            if nullable:
                return at, np.int64(NULL), np.int64(0)
        elif code == BOOLEAN:
            return at, np.int64(VALUE), np.int64(byte == 116)
    return at, np.int64(ODD), ((start - base) << 32) | (at - start)


class Addresses(NamedTuple):
    """Where the tables and the slots of a batch are; see `JsonProgram`, `JsonScratch` and `SlotArrays`."""

    nodes: Any
    followers: Any
    others: Any
    bases: Any
    cursors: Any
    values: Any
    valid: Any


@compiled
def read_members(
    at: Int, end: Int, limit: Int, base: Int, place: Int, count: Int, tables: Addresses
) -> tuple[Int, Int, Int]:
    """Read the scalar of a field, and of the fields that follow it as expected.

    Args:
        base: where the data begins, which slots note places in.
        place: the field: a node, or from `count` on one that the type does not have.

    Returns:
        The address after the last value (-1: the row is left), its field, and how many nodes were read.
    """
    found = np.int64(0)
    while True:
        if place < count:
            line = tables.nodes + place * NODE_SIZE
            to = _word(line, TO)
            slot = _word(tables.bases, to) + _word(tables.cursors, _word(line, AT))
            if load8(tables.valid + slot) != MISSING:  # twice
                return np.int64(-1), place, found
            found += 1
            at, kind, cell = _scalar(
                at, end, limit, base, _word(line, CODE), _word(line, LOW), _word(line, HIGH),
                _word(line, NULLABLE),
            )  # fmt: skip
            store64(tables.values + 8 * slot, np.uint64(cell))
            store8(tables.valid + slot, kind)
            if kind != VALUE:
                store8(tables.others + to, load8(tables.others + to) | (1 << kind))
        else:
            at = skip_scalar(at, end, limit)
        if at < 0:
            return at, place, found
        line = tables.followers + place * FOLLOWER_SIZE
        after = follows(line, at, end)
        if after < 0:
            return at, place, found
        following = _word(line, NEXT)
        if following < 0 or load8(after) in (OPEN, LIST):
            return at, place, found
        if following < count and _word(tables.nodes + following * NODE_SIZE, CODE) >= OBJECT:
            return at, place, found
        at = after
        place = following


@compiled
def read_items(
    at: Int, end: Int, limit: Int, base: Int, line: Int, values: Int, valid: Int, room: Int
) -> tuple[Int, Int, Int]:
    """Read a scalar and those after it in a list, for at most `room` slots.

    Args:
        line: the address of the node of the items.
        values: that of the slot of the first one.

    Returns:
        The address of what follows (-1: the row is left), how many were read, and `1 << kind` of each.
    """
    count = np.int64(0)
    kinds = np.int64(0)
    code, low, high = _word(line, CODE), _word(line, LOW), _word(line, HIGH)
    nullable = _word(line, NULLABLE)
    while True:
        at, kind, cell = _scalar(at, end, limit, base, code, low, high, nullable)
        if at < 0:
            return at, count, kinds
        store64(values + 8 * count, np.uint64(cell))
        store8(valid + count, kind)
        kinds |= 1 << kind
        count += 1
        if count == room or at >= end or load8(at) != COMMA:
            return at, count, kinds
        after = skip_spaces(at + 1, end)
        if after == end:
            return at, count, kinds
        at = after
