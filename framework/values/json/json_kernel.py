"""The compiled part of decoding JSON: one walk through objects, lists and maps of a type, without the GIL.

`json_columns.py` makes tables of a type. The walk writes into slots, which `..slots` turns into Arrow
columns. It accepts only what msgspec accepts, with the same result, and leaves everything else to msgspec: a
cell (a number with many digits, a type that it does not know) or a whole row.

The next field of an object is guessed: the first in the order of the type of those that came after the same
field, with the same text before its value. Else its name is looked for in a hash table.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...formats.machine_code import BYTES, INT64_TABLE, INT64S, Int, Ints, compiled, inlined
from ...formats.memory import load8, load64
from ..decoding.frame import SlotArrays, ValueBatch, frame, load_frame, write_null
from .json_numbers import as_float
from .json_scalars import (
    AT,
    CLOSED,
    CODE,
    COUNT,
    FIELDS,
    FOLLOWER_SIZE,
    FOLLOWER_WIDTH,
    INNER,
    ITEM,
    ITEMS,
    KEY,
    MASK,
    MISSING,
    NAME,
    NAME_SIZE,
    NEXT,
    NODE_SIZE,
    NULL,
    NULL_COUNT,
    NULLABLE,
    NULLS,
    OBJECT,
    PAIRS,
    REQUIRED,
    SIZE,
    START,
    TABLE,
    TO,
    VALUE,
    WORD,
    WORD_MASK,
    Addresses,
    follows,
    read_items,
    read_members,
    same,
)
from .json_texts import (
    CLOSE,
    COLON,
    COMMA,
    LIST,
    LIST_END,
    OPEN,
    QUOTE,
    skip_spaces,
    skip_value,
    text_end,
    word_end,
)
from .json_times import day_of

if TYPE_CHECKING:
    from ...formats.machine_code import Kernel

DEPTH = 60
_NEW = 512  # fields that the type does not have, whose place is predicted
_KEYS = 256  # of a map; more are left to msgspec
_KEY_SLOTS = 1024
_UNKNOWN = -1
FACTOR, OTHER_FACTOR = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F  # of the hash of names
_MEMBER, _VALUE, _AFTER, _END, _ITEM, _PAIR, _LEFT, _DONE = range(8)  # states of the walk


@compiled
def _expect(followers: Ints, place: Int, begin: Int, size: Int, field: Int) -> None:
    """Note the text between two values, and the field of the second one."""
    word, mask = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
    if size >= 8:
        word = load64(begin)
    else:
        for i in range(size):
            word |= np.uint64(load8(begin + i)) << np.uint64(8 * i)
        mask = (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    followers[place, START] = begin
    followers[place, SIZE] = size
    followers[place, NEXT] = field
    followers[place, WORD] = np.int64(word)
    followers[place, WORD_MASK] = np.int64(mask)


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
        if nodes[node, NAME_SIZE] == size and same(names + nodes[node, NAME], at, size):
            return np.int64(node)
        place = (place + 1) & mask


@compiled
def _make_null(node: Int, program: JsonProgram, slots: SlotArrays, others: Ints) -> None:
    first = program.nodes[node, NULLS]
    for i in range(first, first + program.nodes[node, NULL_COUNT]):
        column = program.nulls[np.uint64(i)]
        write_null(slots, column)
        others[np.uint64(column)] |= 1 << NULL


@compiled
def _make_missing(object_: Int, nodes: Ints, slots: SlotArrays) -> None:
    low = nodes[object_, FIELDS]
    for each in range(low, low + nodes[object_, COUNT]):
        line = np.uint64(each)
        slot = np.uint64(slots.bases[nodes[line, TO]] + slots.cursors[nodes[line, AT]])
        slots.valid[slot] = MISSING


@compiled
def _is_new_key(at: Int, size: Int, keys: Ints, depth: Int, stamp: Int, count: Int) -> bool:
    """Enter the key of a map, which is inside of `depth` others; False if it has the key, or too many."""
    if count >= _KEYS:
        return False
    base = np.uint64(depth * _KEY_SLOTS)
    mask = np.uint64(_KEY_SLOTS - 1)
    place = base + (np.uint64(_hash(at, size)) & mask)
    while keys[place, 0] == stamp:
        if keys[place, 2] == size and same(keys[place, 1], at, size):
            return False
        place = base + ((place - base + np.uint64(1)) & mask)
    keys[place, 0] = stamp
    keys[place, 1] = at
    keys[place, 2] = size
    return True


class JsonProgram(NamedTuple):
    """The tables of a type.

    Attributes:
        nodes: its values; the first node is the object of a row.
        table: the hash tables of objects: nodes, or -1.
        nulls: see the columns NULLS and NULL_COUNT of nodes.
        names: the bytes of the names of fields.
        names_at: their address.
    """

    nodes: Any
    table: Any
    nulls: Any
    names: Any
    names_at: Any


class JsonScratch(NamedTuple):
    """What is known of a batch, and the memory of one row.

    Attributes:
        followers: for each field, each beginning of an object, and each field that the type does not have:
            the address and the size of the text between it and the value of the field that is guessed to
            come next, and that field.
        new: one number: how many of them are known.
        outer: for each object, list or map around a value: its node, the field in it, and how many it has.
        keys: for maps in maps: those of the map that is read, in a hash table.
        stamps: which entries of that are of the map; the last number is that of the newest map.
        others: for each slot column, `1 << kind` of what is in it beside values.
    """

    followers: Any
    new: Any
    outer: Any
    keys: Any
    stamps: Any
    others: Any


def scratch(nodes: int, columns: int, maps: int) -> JsonScratch:
    """Return the memory for one batch; `maps`: how many are inside of each other."""
    return JsonScratch(
        np.zeros((2 * nodes + _NEW, FOLLOWER_WIDTH), np.int64),
        np.array([2 * nodes], np.int64),
        np.empty((DEPTH + 1, 3), np.int64),
        np.zeros((maps * _KEY_SLOTS, 3), np.int64),
        np.zeros(maps + 1, np.int64),
        np.zeros(columns, np.uint8),
    )


@cache
def kernel() -> Kernel:
    """Load the compiled code."""
    return load_frame(
        __name__,
        JsonProgram(INT64_TABLE, INT64S, INT64S, BYTES, INT64S),
        JsonScratch(INT64_TABLE, INT64S, INT64_TABLE, INT64_TABLE, INT64S, BYTES),
        tuple(each.__module__ for each in (read_items, as_float, text_end, day_of)),
    )


@inlined
def _read(  # noqa: C901  one loop: a call for each field would cost more than the field
    batch: ValueBatch, slot_arrays: SlotArrays, program: JsonProgram, scratch: JsonScratch, row: int
) -> Int:
    """Decode one value; return the level that is full, or -1. Status 1: the row is left to msgspec.

    The slots of the row are MISSING before.
    """
    base, names = np.int64(batch.data.ctypes.data), program.names_at[0]
    limit = base + len(batch.data)
    nodes, table = program.nodes, program.table
    bases, capacities = slot_arrays.bases, slot_arrays.capacities
    slots, valid, cursors = slot_arrays.values, slot_arrays.valid, slot_arrays.cursors
    followers, outer, others = scratch.followers, scratch.outer, scratch.others
    tables = Addresses(
        np.int64(nodes.ctypes.data),
        np.int64(followers.ctypes.data),
        np.int64(others.ctypes.data),
        np.int64(bases.ctypes.data),
        np.int64(cursors.ctypes.data),
        np.int64(slots.ctypes.data),
        np.int64(valid.ctypes.data),
    )
    count = len(nodes)
    at, end = base + batch.offsets[row], base + batch.offsets[row + 1]
    at = skip_spaces(at, end)
    node = np.int64(0)
    container = np.int64(-1)
    place = np.int64(0)
    found = np.int64(0)
    top = 0
    slot = np.uint64(0)
    state = _VALUE if at < end and load8(at) == OPEN else _LEFT
    while state < _LEFT:
        if state == _MEMBER:
            after = np.int64(-1)
            if place >= 0:
                after = follows(tables.followers + place * FOLLOWER_SIZE, at, end)
            if after >= 0:
                at = after
                place = followers[np.uint64(place), NEXT]
            else:
                begin = at
                at = skip_spaces(at, end)
                if at < end and load8(at) == CLOSE:
                    at += 1
                    state = _END
                    if found < nodes[container, COUNT]:
                        low = nodes[container, FIELDS]
                        for each in range(low, low + nodes[container, COUNT]):
                            line = np.uint64(each)
                            to = np.uint64(nodes[line, TO])
                            slot = np.uint64(bases[to] + cursors[nodes[line, AT]])
                            missing = np.int64(valid[slot] == MISSING)
                            others[to] |= np.uint8(missing << MISSING)
                            if nodes[line, CODE] < OBJECT:
                                slots[slot] &= missing - 1
                            elif missing:
                                _make_null(np.int64(each), program, slot_arrays, others)
                                valid[slot] = MISSING
                            if missing & nodes[line, REQUIRED]:
                                state = _LEFT
                    continue
                if place < count or place >= 2 * count:  # not the first
                    if at >= end or load8(at) != COMMA:
                        state = _LEFT
                        continue
                    at = skip_spaces(at + 1, end)
                if at >= end or load8(at) != QUOTE:
                    state = _LEFT
                    continue
                close, plain = text_end(at + 1, end, limit)
                if close < 0 or not plain:
                    state = _LEFT
                    continue
                field = _lookup(at + 1, close - at - 1, nodes, container, table, names)
                if field < 0 and nodes[container, CLOSED]:
                    state = _LEFT
                    continue
                at = skip_spaces(close + 1, end)
                if at >= end or load8(at) != COLON:
                    state = _LEFT
                    continue
                at = skip_spaces(at + 1, end)
                if at >= end:
                    state = _LEFT
                    continue
                if field < 0 and scratch.new[0] < len(followers):
                    field = scratch.new[0]
                    scratch.new[0] += 1
                if place >= 0 and field >= 0:
                    line = np.uint64(place)
                    if followers[line, SIZE] == 0 or field <= followers[line, NEXT]:
                        _expect(followers, line, begin, at - begin, field)
                place = field
            is_known = 0 <= place < count
            if is_known:
                is_scalar = nodes[np.uint64(place), CODE] < OBJECT
            else:
                is_scalar = place >= 0 and load8(at) not in (OPEN, LIST)
            if is_scalar:
                at, place, read = read_members(at, end, limit, base, place, count, tables)
                found += read
                if at < 0:
                    state = _LEFT
                continue
            if not is_known:
                at = skip_value(at, end, limit)
                if at < 0:
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
            byte = load8(at)
            opening = LIST if code == ITEMS else OPEN
            if byte == opening:
                if container >= 0:
                    valid[slot] = VALUE
                    if code != OBJECT:
                        slots[slot] = cursors[nodes[line, INNER]]
                outer[np.uint64(top), 0] = container
                outer[np.uint64(top), 1] = place
                outer[np.uint64(top), 2] = found
                top += 1
                container = node
                found = np.int64(0)
                at += 1
                if code == OBJECT:
                    place = node + count
                    if top > 1:  # the fields of a row are missing from the start
                        _make_missing(node, nodes, slot_arrays)
                    state = _MEMBER
                else:
                    at = skip_spaces(at, end)
                    state = _ITEM if code == ITEMS else _PAIR
                    if code == PAIRS:
                        last = len(scratch.stamps) - 1
                        scratch.stamps[last] += 1
                        scratch.stamps[nodes[line, MASK]] = scratch.stamps[last]
                    if at < end and load8(at) == (LIST_END if code == ITEMS else CLOSE):
                        at += 1
                        state = _END
            elif byte == 110 and nodes[line, NULLABLE] and word_end(at, end) > 0:
                at += 4
                _make_null(node, program, slot_arrays, others)
                state = _AFTER
            else:
                state = _LEFT
        if state == _END:  # of an object, list or map
            top -= 1
            container = outer[np.uint64(top), 0]
            place = outer[np.uint64(top), 1]
            found = outer[np.uint64(top), 2]
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
                _make_missing(np.int64(0), nodes, slot_arrays)
                return level
            node = nodes[container, ITEM]
            slot = np.uint64(bases[nodes[node, TO]] + cursors[level])
            if state == _PAIR:
                if at >= end or load8(at) != QUOTE:
                    state = _LEFT
                    continue
                close, plain = text_end(at + 1, end, limit)
                depth = nodes[container, MASK]
                # Of keys with escapes two may be equal.
                if (
                    close < 0
                    or not plain
                    or not _is_new_key(
                        at + 1, close - at - 1, scratch.keys, depth, scratch.stamps[depth], found
                    )
                ):
                    state = _LEFT
                    continue
                key = np.uint64(bases[nodes[container, KEY]] + cursors[level])
                slots[key] = ((at + 1 - base) << 32) | (close - at - 1)
                valid[key] = VALUE
                at = skip_spaces(close + 1, end)
                if at >= end or load8(at) != COLON:
                    state = _LEFT
                    continue
                at = skip_spaces(at + 1, end)
            state = _VALUE if at < end else _LEFT
            if nodes[node, CODE] < OBJECT and state == _VALUE:
                room = capacities[level] - cursors[level] if code == ITEMS else 1
                at, read, kinds = read_items(
                    at, end, limit, base, tables.nodes + node * NODE_SIZE,
                    tables.values + 8 * np.int64(slot), tables.valid + np.int64(slot), room,
                )  # fmt: skip
                others[np.uint64(nodes[node, TO])] |= np.uint8(kinds)
                cursors[level] += read - 1
                found += read - 1
                state = _AFTER if at >= 0 else _LEFT
    if state == _LEFT:
        batch.statuses[row] = 1
    return np.int64(-1)


run = frame(_read)
