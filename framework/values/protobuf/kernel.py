"""The compiled part of decoding Protobuf: one loop over tags for all message types, without the GIL.

`messages.py` makes tables of a descriptor. The loop writes into slots, which `..slots` turns into Arrow
columns. Every length is checked against the end of its message before it is used: with any input, `run` ends,
and reads and writes only inside its arrays.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...formats.machine_code import INT64_TABLE, INT64S, Int, Ints, compiled, inlined
from ..decoding.frame import (
    CHILD,
    LEVEL,
    SlotArrays,
    ValueBatch,
    frame,
    load_frame,
    read_little,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...formats.machine_code import Kernel

# Columns of the table of messages: its fields (sorted by number), and the defaults of their columns.
FIRST_FIELD, FIELDS, FIRST_DEFAULT, DEFAULTS = range(4)
MESSAGE_WIDTH = 4

# Columns of the table of fields. CLEAR and CLEARS: the columns of the other fields of a oneof.
# REPEATED: its items are a level. MESSAGE: the row of its type in the table of messages.
# ENUM and ENUMS: the numbers of an enum's values, and their names in the pool.
NUMBER, OP, TO, AT, REPEATED, MESSAGE, CLEAR, CLEARS, ENUM, ENUMS = range(10)
FIELD_WIDTH = 10

# Columns of the table of defaults.
COLUMN, VALUE, VALID, HOW = range(4)
DEFAULT_WIDTH = 4
AS_IS, CURSOR, PIECE = range(3)
"""HOW: VALUE is the slot; it is the level whose number of rows is the slot; it is a piece of the pool."""

# Operations. The first ones are varints, then those of 8 and of 4 bytes, then those with a length.
INT64, INT32, SINT64, SINT32, BOOLEAN, ENUMERATION, FIXED64, FIXED32, BYTES, WHOLE, SUBMESSAGE = (
    range(11)
)
"""`WHOLE` keeps the bytes of a message."""

_VARINT, _I64, _LEN, _START, _STOP, _I32 = range(6)  # wire types

(
    OK,
    BAD_TAG,
    BAD_VARINT,
    BAD_LENGTH,
    BAD_END,
    BAD_WIRE_TYPE,
    BAD_GROUP,
    BAD_ENUM,
    BAD_ONEOF,
    BAD_MERGE,
) = range(10)
REASONS = (
    "",
    "there is no field number where one should be",
    "the value ends inside it, or it is longer than 10 bytes",
    "its length ({}) is beyond the end of the message",
    "the value ends inside it",
    "wire type {} does not exist",
    "a group does not end",
    "the enum has no value {}",
    "the oneof is set more than once, with a message that has lists",
    "it is there more than once, to be merged",
)

DEPTH = 64
_RUNNING = -1


@compiled
def _varint(data: NDArray[np.uint8], position: Int, end: Int) -> tuple[Int, Int]:
    """Read a varint before `end`; return it and the position after it, -1 if there is none."""
    if position >= end:
        return np.uint64(0), np.int64(-1)
    byte = np.uint64(data[np.uint64(position)])
    position += 1
    if byte < np.uint64(0x80):  # most are of one byte
        return byte, position
    value: Int = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while position < end and shift < np.uint64(70):
        byte = np.uint64(data[np.uint64(position)])
        position += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, position
        shift += np.uint64(7)
    return np.uint64(0), np.int64(-1)


@compiled
def _wire_type(op: Int) -> Int:
    if op <= ENUMERATION:
        return _VARINT
    if op == FIXED64:
        return _I64
    return _I32 if op == FIXED32 else _LEN


@compiled
def _scalar(data: NDArray[np.uint8], position: Int, end: Int, op: Int) -> tuple[Int, Int]:
    """Read a number; the position after it is -1 if there is none."""
    if op <= ENUMERATION:
        value, position = _varint(data, position, end)
        if op == INT64:
            return np.int64(value), position
        if op == BOOLEAN:
            return np.int64(value != np.uint64(0)), position
        if op == SINT64:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        if op == SINT32:
            value = value & np.uint64(0xFFFFFFFF)
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        return np.int64(np.int32(np.uint32(value))), position
    size = 8 if op == FIXED64 else 4
    if end - position < size:
        return np.int64(0), np.int64(-1)
    if op == FIXED64:
        return np.int64(read_little(data, position, 8)), position + 8
    return np.int64(read_little(data, position, 4)), position + 4


@compiled
def _name(number: Int, table: Ints, first: Int, count: Int) -> Int:
    """Return the piece of an enum's name; -1 if it has no such value."""
    low = np.int64(first)
    high = first + count
    while low < high:
        middle = (low + high) >> 1
        found = table[np.uint64(middle), np.uint64(0)]
        if found == number:
            return table[np.uint64(middle), np.uint64(1)]
        if found < number:
            low = middle + 1
        else:
            high = middle
    return np.int64(-1)


@compiled
def _skip(  # noqa: C901  it is one loop too
    data: NDArray[np.uint8], position: Int, end: Int, wire: Int, number: Int, stack: Ints
) -> tuple[Int, int]:
    """Return the position after an unknown field (-1 if there is none), and the status."""
    top = 0
    while True:
        if wire == _VARINT:
            _, position = _varint(data, position, end)
            if position < 0:
                return position, BAD_VARINT
        elif wire in (_I64, _I32):
            position += 8 if wire == _I64 else 4
            if position > end:
                return np.int64(-1), BAD_END
        elif wire == _LEN:
            size, position = _varint(data, position, end)
            if position < 0:
                return position, BAD_VARINT
            if size > np.uint64(end - position):
                return np.int64(-1), BAD_LENGTH
            position += np.int64(size)
        elif wire == _START:
            if top == DEPTH:
                return np.int64(-1), BAD_GROUP
            stack[np.uint64(top)] = number
            top += 1
        elif wire == _STOP:
            if top == 0 or stack[np.uint64(top - 1)] != number:
                return np.int64(-1), BAD_GROUP
            top -= 1
        else:
            return np.int64(-1), BAD_WIRE_TYPE
        if top == 0:
            return position, OK
        tag, position = _varint(data, position, end)
        if position < 0:
            return position, BAD_GROUP
        wire = np.int64(tag & np.uint64(7))
        number = np.int64(tag >> np.uint64(3))


@compiled
def _write_defaults(message: Ints, defaults: Ints, pool: int, slots: SlotArrays) -> None:
    for i in range(message[FIRST_DEFAULT], message[FIRST_DEFAULT] + message[DEFAULTS]):
        at = np.uint64(i)
        column = defaults[at, COLUMN]
        slot = np.uint64(slots.bases[column] + slots.cursors[slots.columns[column, LEVEL]])
        value = defaults[at, VALUE]
        if defaults[at, HOW] == CURSOR:
            value = slots.cursors[value]
        elif defaults[at, HOW] == PIECE:
            value += np.int64(pool) << 32
        slots.values[slot] = value
        slots.valid[slot] = defaults[at, VALID]


class ProtobufProgram(NamedTuple):
    """The tables of a message type.

    Attributes:
        messages: the types; the first is that of the values.
        fields: their fields.
        defaults: the slots of a message before its fields are read.
        enums: numbers and names of values of enums.
        clears: the columns that become null when a field of a oneof is read.
    """

    messages: Any
    fields: Any
    defaults: Any
    enums: Any
    clears: Any


class ProtobufScratch(NamedTuple):
    """Memory of one call, for each message around the one that is read.

    Attributes:
        ends: where it ends.
        types: its row in the table of messages.
        items: the list level that contains the message inside it, or -1.
        groups: the groups around an unknown field.
    """

    ends: Any
    types: Any
    items: Any
    groups: Any


def scratch() -> ProtobufScratch:
    """Return the memory for one call."""
    return ProtobufScratch(*(np.empty(DEPTH, np.int64) for _ in range(4)))


@cache
def kernel() -> Kernel:
    """Load the compiled code."""
    program = ProtobufProgram(INT64_TABLE, INT64_TABLE, INT64_TABLE, INT64_TABLE, INT64S)
    return load_frame(__name__, program, ProtobufScratch(INT64S, INT64S, INT64S, INT64S))


@inlined
def _read(  # noqa: C901  one loop: a call for each field would cost more than the field
    batch: ValueBatch,
    slot_arrays: SlotArrays,
    program: ProtobufProgram,
    scratch: ProtobufScratch,
    row: int,
) -> Int:
    """Decode one value, whose entry is the size of its prefix; return the level that is full, or -1."""
    data, pool = batch.data, batch.pool
    messages, fields, enums, clears = (
        program.messages,
        program.fields,
        program.enums,
        program.clears,
    )
    columns, bases, capacities = slot_arrays.columns, slot_arrays.bases, slot_arrays.capacities
    slots, valid, cursors = slot_arrays.values, slot_arrays.valid, slot_arrays.cursors
    ends, types, items = scratch.ends, scratch.types, scratch.items
    top = 0
    status = _RUNNING
    position = np.int64(batch.offsets[row]) + batch.entries[row]
    end = np.int64(batch.offsets[row + 1])
    type_ = np.int64(0)
    at = np.int64(-1)
    found = np.int64(0)
    hint = messages[0, FIRST_FIELD]
    _write_defaults(messages[0], program.defaults, pool, slot_arrays)
    while status == _RUNNING:
        if position == end:
            if top == 0:
                status = OK
                continue
            top -= 1
            if items[np.uint64(top)] >= 0:
                cursors[items[np.uint64(top)]] += 1
            end = ends[np.uint64(top)]
            type_ = types[np.uint64(top)]
            hint = messages[type_, FIRST_FIELD]
            continue
        tag, position = _varint(data, position, end)
        number = np.int64(tag >> np.uint64(3))
        wire = np.int64(tag & np.uint64(7))
        if position < 0 or number == 0 or number > 0x1FFFFFFF:
            status = BAD_TAG
            at = np.int64(-1)
        else:
            low = messages[type_, FIRST_FIELD]
            stop = low + messages[type_, FIELDS]
            at = np.int64(-1)
            if hint < stop and fields[np.uint64(hint), NUMBER] == number:
                at = np.int64(hint)  # fields are mostly in order
            else:
                high = stop
                while low < high:
                    middle = (low + high) >> 1
                    if fields[np.uint64(middle), NUMBER] < number:
                        low = middle + 1
                    else:
                        high = middle
                if low < stop and fields[np.uint64(low), NUMBER] == number:
                    at = np.int64(low)
            op = np.int64(-1)
            repeated = np.int64(-1)
            if at >= 0:
                op = fields[np.uint64(at), OP]
                repeated = fields[np.uint64(at), REPEATED]
            packed = bool(repeated >= 0 and wire == _LEN and op < BYTES)
            if at < 0 or not (packed or wire == _wire_type(op)):
                position, skipped = _skip(data, position, end, wire, number, scratch.groups)
                if skipped != OK:
                    status = skipped
                    found = wire
            else:
                line = np.uint64(at)
                hint = at if repeated >= 0 else at + 1
                for i in range(fields[line, CLEAR], fields[line, CLEAR] + fields[line, CLEARS]):
                    column = clears[np.uint64(i)]
                    slot = np.uint64(bases[column] + cursors[columns[column, LEVEL]])
                    if columns[column, CHILD] >= 0:
                        if valid[slot]:
                            status = BAD_ONEOF
                    else:
                        slots[slot] = 0
                    valid[slot] = 0
                base = bases[fields[line, TO]]
                level = fields[line, AT]
                if status != _RUNNING:
                    pass
                elif op >= BYTES or packed:
                    length, position = _varint(data, position, end)
                    found = np.int64(length)
                    if position < 0:
                        status = BAD_VARINT
                    elif length > np.uint64(end - position):
                        status = BAD_LENGTH
                    elif packed:
                        last = position + found
                        while position < last and status == _RUNNING:
                            if cursors[level] >= capacities[level]:
                                return level
                            found, position = _scalar(data, position, last, op)
                            if position < 0:
                                status = BAD_VARINT
                                break
                            value = found
                            if op == ENUMERATION:
                                value = _name(found, enums, fields[line, ENUM], fields[line, ENUMS])
                                if value < 0:
                                    status = BAD_ENUM
                                value += np.int64(pool) << 32
                            slot = np.uint64(base + cursors[level])
                            slots[slot] = value
                            valid[slot] = 1
                            cursors[level] += 1
                    else:
                        if repeated >= 0 and cursors[level] >= capacities[level]:
                            return level
                        slot = np.uint64(base + cursors[level])
                        if op != SUBMESSAGE:
                            if (
                                op == WHOLE
                                and repeated < 0
                                and valid[slot]
                                and slots[slot] & 0xFFFFFFFF
                            ):
                                status = BAD_MERGE
                            slots[slot] = (position << 32) | found
                            valid[slot] = 1
                            position += found
                            if repeated >= 0:
                                cursors[level] += 1
                        else:
                            ends[np.uint64(top)] = end
                            types[np.uint64(top)] = type_
                            items[np.uint64(top)] = repeated
                            top += 1
                            end = position + found
                            type_ = np.int64(fields[line, MESSAGE])
                            hint = messages[type_, FIRST_FIELD]
                            # A message that occurs twice is merged.
                            if repeated >= 0 or not valid[slot]:
                                valid[slot] = 1
                                _write_defaults(
                                    program.messages[type_], program.defaults, pool, slot_arrays
                                )
                else:
                    if repeated >= 0 and cursors[level] >= capacities[level]:
                        return level
                    found, position = _scalar(data, position, end, op)
                    if position < 0:
                        status = BAD_VARINT
                    value = found
                    if op == ENUMERATION and status == _RUNNING:
                        value = _name(found, enums, fields[line, ENUM], fields[line, ENUMS])
                        if value < 0:
                            status = BAD_ENUM
                        value += np.int64(pool) << 32
                    slot = np.uint64(base + cursors[level])
                    slots[slot] = value
                    valid[slot] = 1
                    if repeated >= 0:
                        cursors[level] += 1
    if status > OK:
        batch.statuses[row] = status
        batch.details[row, 0] = at
        batch.details[row, 1] = found
    return np.int64(-1)


run = frame(_read)
