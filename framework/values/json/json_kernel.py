"""The compiled part of decoding JSON: one walk through objects, lists and maps of a type, without the GIL.

`json_columns.py` makes tables of a type. The walk writes into slots, which `..slots` turns into Arrow
columns. It accepts only what msgspec accepts, with the same result, and leaves everything else to msgspec: a
cell (a number with many digits, a type that it does not know) or a whole row.

The next field of an object is guessed: the one that came after the same field the last time, with the same
text before its value. Else its name is looked for in a hash table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...formats.kernels import Int, Ints, compiled
from ..decoding.memory import load8, load64
from ..decoding.slots import CHILD, LEVEL, null_row
from .json_numbers import as_float, as_integer, scan_number
from .json_texts import (
    CLOSE,
    COLON,
    COMMA,
    LIST,
    LIST_END,
    MINUS,
    OPEN,
    QUOTE,
    skip_spaces,
    skip_value,
    string_end,
    text_end,
    word_end,
)
from .json_times import day_of, moment_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

# What is in a slot, instead of "not null". ODD: valid JSON, which the walk does not read, and ESCAPED: a text
# with escapes; both are noted as `start << 32 | size`.
NULL, VALUE, ODD, MISSING, ESCAPED = range(5)

DEPTH = 60
_NEW = 512  # fields that the type does not have, whose place is predicted
_KEYS = 256  # of a map; more are left to msgspec
_KEY_SLOTS = 1024
_UNKNOWN = -1
_GUESSES = 2  # fields that may be missing before the next one
FACTOR, OTHER_FACTOR = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F  # of the hash of names
_MEMBER, _VALUE, _AFTER, _END, _ITEM, _PAIR, _LEFT, _DONE = range(8)  # states of the walk


@compiled
def _same(one: Int, other: Int, size: Int) -> bool:
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


@compiled
def _hash(at: Int, size: Int) -> Int:
    """Return the hash of a name: of its size, its first and its last 8 bytes, as `json_columns.hash_of`."""
    first, last = np.uint64(0), np.uint64(0)
    if size >= 8:
        first, last = load64(at), load64(at + size - 8)
    else:
        for position in range(at, at + size):
            first = (first << np.uint64(8)) | np.uint64(load8(position))
    half = np.uint64(32)
    first, last = first ^ (first >> half), last ^ (last >> half)
    found = first * np.uint64(FACTOR) + last * np.uint64(OTHER_FACTOR) + np.uint64(size)
    return np.int64(found >> np.uint64(40))


@compiled
def _lookup(at: Int, size: Int, nodes: Ints, object_: Int, table: Ints, names: Int) -> Int:
    """Return the node of a field, or _UNKNOWN."""
    mask = nodes[object_, MASK]
    place = _hash(at, size) & mask
    while True:
        node = table[np.uint64(nodes[object_, TABLE] + place)]
        if node < 0:
            return np.int64(_UNKNOWN)
        if nodes[node, NAME_SIZE] == size and _same(names + nodes[node, NAME], at, size):
            return np.int64(node)
        place = (place + 1) & mask


@compiled
def _guess(at: Int, end: Int, nodes: Ints, container: Int, place: Int, names: Int) -> Int:
    """Return the node of a field if it is one of the next in the order of the type, or _UNKNOWN."""
    low = nodes[container, FIELDS]
    stop = low + nodes[container, COUNT]
    begin = place + 1 if low <= place < stop else low
    for node in range(begin, min(begin + _GUESSES, stop)):
        size = nodes[np.uint64(node), NAME_SIZE]
        close = at + size
        if (
            close < end
            and load8(close) == QUOTE
            and _same(names + nodes[np.uint64(node), NAME], at, size)
        ):
            return np.int64(node)
    return np.int64(_UNKNOWN)


@compiled
def _scalar(  # noqa: C901
    at: Int, end: Int, base: Int, code: Int, low: Int, high: Int, nullable: Int
) -> tuple[Int, Int, Int]:
    """Read a value that has one slot: the address after it (-1: not valid), what it is, and its slot."""
    byte = load8(at)
    start = at
    if byte == QUOTE:
        if code == TEXT:
            close, plain = text_end(at + 1, end)
            kind = np.int64(VALUE) if plain else np.int64(ESCAPED)
            at = close + 1 if close >= 0 else close
            return at, kind, ((start + 1 - base) << 32) | (close - start - 1)
        close, plain = string_end(at + 1, end)
        if close < 0:
            return close, np.int64(ODD), np.int64(0)
        at = close + 1
        if code == DATETIME:
            moment, is_one = moment_of(start + 1, close)
            if is_one:
                return at, np.int64(VALUE), moment
        if code == DATE and close - start == 11:
            day = day_of(start + 1)
            if day > -999_999:
                return at, np.int64(VALUE), day
    elif byte == MINUS or 48 <= byte <= 57:
        at, integer, mantissa, power = scan_number(at, end)
        if at < 0:
            return at, np.int64(ODD), np.int64(0)
        if code == INTEGER and integer:
            value, is_one = as_integer(mantissa, power, byte == MINUS)
            if is_one and low <= value <= high:
                return at, np.int64(VALUE), value
        elif code == FLOAT:
            value, is_one = as_float(mantissa, power, byte == MINUS)
            if is_one:
                return at, np.int64(VALUE), value
    elif byte in (OPEN, LIST):
        at = skip_value(at, end)
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


@compiled
def _make_null(
    node: Int, nodes: Ints, nulls: Ints, columns: Ints, bases: Ints, slots: Ints,
    valid: NDArray[np.uint8], cursors: Ints, others: NDArray[np.uint8],
) -> None:  # fmt: skip
    for i in range(nodes[node, NULLS], nodes[node, NULLS] + nodes[node, NULL_COUNT]):
        column = nulls[np.uint64(i)]
        slot = np.uint64(bases[column] + cursors[columns[column, LEVEL]])
        child = columns[column, CHILD]
        slots[slot] = cursors[child] if child >= 0 else 0
        valid[slot] = NULL
        others[np.uint64(column)] |= 1 << NULL


@compiled
def _is_new_key(at: Int, size: Int, keys: Ints, stamp: Int, count: Int) -> bool:
    """Enter the key of a map; False if the map has it, or has too many."""
    if count >= _KEYS:
        return False
    place = np.uint64(_hash(at, size) & (_KEY_SLOTS - 1))
    while keys[place, 0] == stamp:
        if keys[place, 2] == size and _same(keys[place, 1], at, size):
            return False
        place = (place + np.uint64(1)) & np.uint64(_KEY_SLOTS - 1)
    keys[place, 0] = stamp
    keys[place, 1] = at
    keys[place, 2] = size
    return True


@compiled
def run(  # noqa: C901  one loop: a call for each field would cost more than the field
    data: NDArray[np.uint8],
    starts: Ints,
    ends: Ints,
    nodes: Ints,
    table: Ints,
    nulls: Ints,
    names_of: NDArray[np.uint8],
    columns: Ints,
    bases: Ints,
    capacities: Ints,
    slots: Ints,
    valid: NDArray[np.uint8],
    cursors: Ints,
    others: NDArray[np.uint8],
    statuses: NDArray[np.uint8],
    first: int,
) -> tuple[int, int]:
    """Decode the values from row `first` on.

    Args:
        starts: where each text begins in the data; negative: there is none.
        ends: where it ends.
        nodes: the type; the first node is the object of a row.
        table: the hash tables of objects: nodes, or -1.
        nulls: see the columns NULLS and NULL_COUNT of nodes.
        names_of: the bytes of the names of fields.
        columns: the level of each slot column, and the level of its items.
        bases: the first slot of each column.
        capacities: the number of rows that fit, for each level.
        slots: written: a slot for each row of each column.
        valid: written: what is in the slot, NULL to ESCAPED.
        cursors: the number of rows of each level so far.
        others: written: for each column, `1 << kind` of what is in it beside values.
        statuses: written: 1 for a row that is left to msgspec; its slots are null.

    Returns:
        The row at which it stopped, and the level whose capacity is used up (-1: all rows are done).
    """
    base, names = np.int64(data.ctypes.data), np.int64(names_of.ctypes.data)
    count = len(nodes)
    # For each field, each beginning of an object, and each field that the type does not have: the text
    # between it and the value of the field that came next the last time, and that field.
    text_start = np.zeros(2 * count + _NEW, np.int64)
    text_size = np.zeros(2 * count + _NEW, np.int64)
    follower = np.zeros(2 * count + _NEW, np.int64)
    new = 2 * count
    outer_node = np.empty(DEPTH + 1, np.int64)
    outer_place = np.empty(DEPTH + 1, np.int64)
    outer_found = np.empty(DEPTH + 1, np.int64)
    maps = 0
    for each in range(count):
        if nodes[each, CODE] == PAIRS:
            maps = max(maps, nodes[each, MASK] + 1)
    keys = np.zeros((maps, _KEY_SLOTS, 3), np.int64)
    stamps = np.zeros(maps + 1, np.int64)
    stamp = np.int64(0)
    saved = np.empty_like(cursors)
    for row in range(first, len(starts)):
        for level in range(len(cursors)):
            saved[level] = cursors[level]
        cursors[0] = row
        if starts[row] < 0:
            null_row(row, columns, bases, slots, valid, cursors)
            others |= np.uint8(1 << NULL)
            continue
        at, end = base + starts[row], base + ends[row]
        at = skip_spaces(at, end)
        node = np.int64(0)
        container = np.int64(-1)
        place = np.int64(0)
        found = np.int64(0)
        top = 0
        state = _VALUE if at < end and load8(at) == OPEN else _LEFT
        while state < _LEFT:
            if state == _MEMBER:
                size = text_size[np.uint64(place)] if place >= 0 else np.int64(0)
                if size > 0 and at + size < end and _same(text_start[np.uint64(place)], at, size):
                    at += size
                    place = follower[np.uint64(place)]
                else:
                    begin = at
                    at = skip_spaces(at, end)
                    if at < end and load8(at) == CLOSE:
                        at += 1
                        state = _END
                        if found < nodes[container, COUNT]:
                            low = nodes[container, FIELDS]
                            for each in range(low, low + nodes[container, COUNT]):
                                slot = np.uint64(bases[nodes[each, TO]] + cursors[nodes[each, AT]])
                                if valid[slot] == MISSING:
                                    if nodes[each, REQUIRED]:
                                        state = _LEFT
                                    _make_null(
                                        np.int64(each), nodes, nulls, columns, bases, slots, valid,
                                        cursors, others,
                                    )  # fmt: skip
                                    valid[slot] = MISSING
                                    others[nodes[each, TO]] |= 1 << MISSING
                        continue
                    if place < count or place >= 2 * count:  # not the first
                        if at >= end or load8(at) != COMMA:
                            state = _LEFT
                            continue
                        at = skip_spaces(at + 1, end)
                    if at >= end or load8(at) != QUOTE:
                        state = _LEFT
                        continue
                    field = _guess(at + 1, end, nodes, container, place, names)
                    if field >= 0:
                        close = at + 1 + nodes[np.uint64(field), NAME_SIZE]
                    else:
                        close, plain = string_end(at + 1, end)
                        if close < 0 or not plain:
                            state = _LEFT
                            continue
                        field = _lookup(at + 1, close - at - 1, nodes, container, table, names)
                    at = skip_spaces(close + 1, end)
                    if at >= end or load8(at) != COLON:
                        state = _LEFT
                        continue
                    at = skip_spaces(at + 1, end)
                    if at >= end:
                        state = _LEFT
                        continue
                    if field < 0 and new < len(follower):
                        field = np.int64(new)
                        new += 1
                    if place >= 0 and field >= 0:
                        text_start[np.uint64(place)] = begin
                        text_size[np.uint64(place)] = at - begin
                        follower[np.uint64(place)] = field
                    place = field
                if place < 0 or place >= count:
                    if load8(at) == QUOTE:
                        at, _ = string_end(at + 1, end)
                        at = at + 1 if at >= 0 else at
                    else:
                        at = skip_value(at, end)
                    if at < 0 or nodes[container, CLOSED]:
                        state = _LEFT
                    continue
                node = place
                slot = np.uint64(bases[nodes[node, TO]] + cursors[nodes[node, AT]])
                if valid[slot] != MISSING:  # twice
                    state = _LEFT
                    continue
                found += 1
                state = _VALUE
            if state == _VALUE:
                line = np.uint64(node)
                code = nodes[line, CODE]
                if code < OBJECT:
                    at, kind, cell = _scalar(
                        at, end, base, code, nodes[line, LOW], nodes[line, HIGH],
                        nodes[line, NULLABLE],
                    )  # fmt: skip
                    slot = np.uint64(bases[nodes[line, TO]] + cursors[nodes[line, AT]])
                    slots[slot] = cell
                    valid[slot] = kind
                    if kind != VALUE:
                        others[np.uint64(nodes[line, TO])] |= np.uint8(1 << kind)
                    state = _AFTER if at >= 0 else _LEFT
                else:
                    byte = load8(at)
                    opening = LIST if code == ITEMS else OPEN
                    if byte == opening:
                        if container >= 0:
                            slot = np.uint64(bases[nodes[line, TO]] + cursors[nodes[line, AT]])
                            valid[slot] = VALUE
                            if code != OBJECT:
                                slots[slot] = cursors[nodes[line, INNER]]
                        outer_node[np.uint64(top)] = container
                        outer_place[np.uint64(top)] = place
                        outer_found[np.uint64(top)] = found
                        top += 1
                        container = node
                        found = np.int64(0)
                        at += 1
                        if code == OBJECT:
                            place = node + count
                            low = nodes[line, FIELDS]
                            for each in range(low, low + nodes[line, COUNT]):
                                field_line = np.uint64(each)
                                slot = np.uint64(
                                    bases[nodes[field_line, TO]] + cursors[nodes[field_line, AT]]
                                )
                                valid[slot] = MISSING
                            state = _MEMBER
                        else:
                            at = skip_spaces(at, end)
                            state = _ITEM if code == ITEMS else _PAIR
                            if code == PAIRS:
                                stamp += 1
                                stamps[nodes[line, MASK]] = stamp
                            if at < end and load8(at) == (LIST_END if code == ITEMS else CLOSE):
                                at += 1
                                state = _END
                    elif byte == 110 and nodes[line, NULLABLE] and word_end(at, end) > 0:
                        at += 4
                        _make_null(
                            node, nodes, nulls, columns, bases, slots, valid, cursors, others
                        )
                        state = _AFTER
                    else:
                        state = _LEFT
            if state == _END:  # of an object, list or map
                top -= 1
                container = outer_node[np.uint64(top)]
                place = outer_place[np.uint64(top)]
                found = outer_found[np.uint64(top)]
                state = _AFTER
            if state == _AFTER:
                if container < 0:
                    state = _DONE if skip_spaces(at, end) == end else _LEFT
                    continue
                code = nodes[container, CODE]
                if code == OBJECT:
                    state = _MEMBER
                    continue
                cursors[nodes[container, INNER]] += 1
                found += 1
                at = skip_spaces(at, end)
                byte = load8(at) if at < end else np.int64(0)
                if byte == COMMA:
                    at = skip_spaces(at + 1, end)
                    state = _ITEM if code == ITEMS else _PAIR
                elif byte == (LIST_END if code == ITEMS else CLOSE):
                    at += 1
                    state = _END
                    continue
                else:
                    state = _LEFT
            if state in (_ITEM, _PAIR):
                level = nodes[container, INNER]
                if cursors[level] >= capacities[level]:
                    for each in range(len(cursors)):
                        cursors[each] = saved[each]
                    return row, level
                node = nodes[container, ITEM]
                if state == _PAIR:
                    if at >= end or load8(at) != QUOTE:
                        state = _LEFT
                        continue
                    close, plain = string_end(at + 1, end)
                    depth = nodes[container, MASK]
                    # Of keys with escapes two may be equal.
                    if (
                        close < 0
                        or not plain
                        or not _is_new_key(
                            at + 1, close - at - 1, keys[depth], stamps[depth], found
                        )
                    ):
                        state = _LEFT
                        continue
                    slot = np.uint64(bases[nodes[container, KEY]] + cursors[level])
                    slots[slot] = ((at + 1 - base) << 32) | (close - at - 1)
                    valid[slot] = VALUE
                    at = skip_spaces(close + 1, end)
                    if at >= end or load8(at) != COLON:
                        state = _LEFT
                        continue
                    at = skip_spaces(at + 1, end)
                state = _VALUE if at < end else _LEFT
        if state == _LEFT:
            statuses[row] = 1
            for level in range(1, len(cursors)):
                cursors[level] = saved[level]
            null_row(row, columns, bases, slots, valid, cursors)
            others |= np.uint8(1 << NULL)
    cursors[0] = len(starts)
    return len(starts), -1
