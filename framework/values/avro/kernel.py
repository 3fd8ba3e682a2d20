"""The compiled part of decoding Avro: one interpreter of small programs, for all schemas, without the GIL.

`program.py` makes a program of (writer's schema, reader's schema). The interpreter runs it once for each
value, and writes into slots, which `..slots` turns into Arrow columns. Every length is checked against the
end of the value before it is used: with any input, `run` ends, and reads and writes only inside its arrays.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...formats.machine_code import INT64_TABLE, INT64S, Int, Ints, compiled, inlined
from ...formats.memory import load8
from ..decoding.frame import (
    SlotArrays,
    ValueBatch,
    frame,
    load_frame,
    read_little,
    write_null,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...formats.machine_code import Kernel

# Columns of an instruction. TO is the column that it writes, AT the level of that column.
OP, TO, AT, A, B, FIELD, WIDTH = range(7)

# Operations. Those that skip read a field that the reader does not have.
(
    END,  # the end of the value
    INTEGER,  # an integer from A to B
    SCALED,  # a time in another unit: A in `tables` is what it is times, divided by, at least, at most
    INTEGER_TO_FLOAT,
    INTEGER_TO_DOUBLE,
    FLOAT,
    FLOAT_TO_DOUBLE,
    DOUBLE,
    BOOLEAN,
    BYTES,
    FIXED,  # A bytes
    DECIMAL,  # A & 255 words of 64 bits, times 10 ** (A >> 8); B bytes, or -1: their number comes first
    ENUM,  # A symbols, each a piece of the pool in `tables` from B, or -1
    UNION,  # A branches, each an address in `tables` from B
    JUMP,  # to A
    VALID,  # a struct is not null
    NULLS,  # B columns in `tables` from TO are null; to A
    LIST,  # a list begins, with its items in level A
    BLOCK,  # the next item, or to A if there is none
    NEXT,  # the end of an item; to A
    DEFAULT,  # read B bytes of the pool from A
    DEFAULT_END,
    SKIP_INTEGER,
    SKIP_BYTES,
    SKIP_FIXED,  # A bytes
    CALL,  # A
    RETURN,
    MISFIT,  # the branch of a union that the reader's schema does not have
) = range(28)

# Statuses of a row.
(
    OK,
    BAD_END,
    BAD_VARINT,
    BAD_RANGE,
    BAD_LENGTH,
    BAD_BOOLEAN,
    BAD_SYMBOL,
    BAD_BRANCH,
    BAD_COUNT,
    BAD_DECIMAL,
    BAD_DEPTH,
    BAD_FLOAT,
    BAD_UNIT,
    UNREADABLE_SYMBOL,
    UNREADABLE_BRANCH,
    TRAILING,
) = range(16)
REASONS = (
    "",
    "the value ends inside it",
    "the value ends inside it, or it is longer than 64 bits",
    "{} is out of the range of its type",
    "its length ({}) is negative, or beyond the end of the value",
    "a boolean is 0 or 1, found {}",
    "the schema has no symbol {}",
    "the union has no branch {}",
    "its number of items ({}) is impossible",
    "the decimal has too many digits",
    "it is nested too deep",
    "the reader's float or double has not all digits of {}",
    "the time {} has more digits than the reader's unit",
    "the reader's schema has no symbol {} of the writer's, and no default",
    "branch {} of the writer's union is not in the reader's schema",
    "{} bytes are left after the last field",
)

_DEPTH = 4096
_LARGEST = 2**63 - 1
_SMALLEST = -(2**63)
_BEYOND = 2.0**63
_RUNNING = -1


@compiled
def _long(base: Int, position: Int, end: Int) -> tuple[Int, Int]:
    """Read a zigzag varint before `end`; return it and the position after it, -1 if there is none.

    `base`: the address of position 0. An array as argument would be counted as one more reference.
    """
    if position >= end:
        return np.int64(0), np.int64(-1)
    byte = np.uint64(load8(base + position))
    position += 1
    if byte < np.uint64(0x80):  # most are of one byte
        return np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1)), position
    value: Int = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while position < end:
        byte = np.uint64(load8(base + position))
        position += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            break
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@compiled
def _decimal(
    data: NDArray[np.uint8], position: Int, size: Int, words: Int, slots: Ints, at: Ints
) -> bool:
    """Write a big-endian two's complement into `words` columns, the lowest first; False if it is too long."""
    sign = np.uint64(0)
    if size > 0 and data[np.uint64(position)] >= 0x80:
        sign = np.uint64(0xFFFFFFFFFFFFFFFF)
    for word in range(words):
        slots[np.uint64(at[word])] = np.int64(sign)
    for i in range(size):
        byte = np.uint64(data[np.uint64(position + size - 1 - i)])
        word = i >> 3
        if word >= words:
            if byte != sign & np.uint64(0xFF):
                return False
            continue
        shift = np.uint64(8 * (i & 7))
        slot = np.uint64(slots[np.uint64(at[word])])
        slots[np.uint64(at[word])] = np.int64(
            (slot & ~(np.uint64(0xFF) << shift)) | (byte << shift)
        )
    top = np.uint64(slots[np.uint64(at[words - 1])])
    return bool(top >> np.uint64(63) == sign & np.uint64(1))


@compiled
def _scale_up(words: Int, power: Int, slots: Ints, at: Ints) -> bool:
    """Multiply a number of several words by 10, `power` times; False if it does not fit."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for _ in range(power):
        # The product with 10 fits if the five highest bits are equal.
        top = slots[np.uint64(at[words - 1])] >> 59
        if top != 0 and top != -1:
            return False
        carry = np.uint64(0)
        for word in range(words):
            slot = np.uint64(slots[np.uint64(at[word])])
            first = (slot & low) * np.uint64(10) + carry
            second = (slot >> half) * np.uint64(10) + (first >> half)
            slots[np.uint64(at[word])] = np.int64((second << half) | (first & low))
            carry = second >> half
    return True


class AvroProgram(NamedTuple):
    """The programs of all writers' schemas.

    Attributes:
        code: the instructions.
        tables: the operands of instructions that have many.
        prefix: one number: the bytes to leave out before each value.
    """

    code: Any
    tables: Any
    prefix: Any


class AvroScratch(NamedTuple):
    """Memory of one call: return addresses and counts of items, and the slots of a decimal's words."""

    stack: Any
    words: Any


def scratch() -> AvroScratch:
    """Return the memory for one call."""
    return AvroScratch(np.empty(_DEPTH, np.int64), np.empty(4, np.int64))


@cache
def kernel() -> Kernel:
    """Load the compiled code."""
    return load_frame(
        __name__, AvroProgram(INT64_TABLE, INT64S, INT64S), AvroScratch(INT64S, INT64S)
    )


@inlined
def _read(  # noqa: C901  one loop: a call for each instruction would cost more than the instruction
    batch: ValueBatch, slot_arrays: SlotArrays, program: AvroProgram, scratch: AvroScratch, row: int
) -> Int:
    """Decode one value, whose entry is the address of its program; return the level that is full, or -1."""
    data, base, pool = batch.data, np.int64(batch.data.ctypes.data), batch.pool
    code, tables = program.code, program.tables
    bases, capacities = slot_arrays.bases, slot_arrays.capacities
    slots, valid, cursors = slot_arrays.values, slot_arrays.valid, slot_arrays.cursors
    stack, words = scratch.stack, scratch.words
    zero = np.int64(0)
    pc = np.int64(batch.entries[row])
    position = np.int64(batch.offsets[row]) + program.prefix[0]
    end = np.int64(batch.offsets[row + 1])
    outer_position = outer_end = zero
    size_of_value = end - position
    items = zero
    top = -1
    status = _RUNNING
    found = zero
    at = np.uint64(pc)
    while status == _RUNNING:
        at = np.uint64(pc)
        op = code[at, OP]
        pc += 1
        if op == INTEGER:
            found, position = _long(base, position, end)
            slot = np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])
            slots[slot] = found
            valid[slot] = 1
            if position < 0:
                status = BAD_VARINT
            elif found < code[at, A] or found > code[at, B]:
                status = BAD_RANGE
        elif op == BYTES:
            found, position = _long(base, position, end)
            if position < 0:
                status = BAD_VARINT
            elif found < 0 or found > end - position:
                status = BAD_LENGTH
            else:
                slot = np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])
                slots[slot] = (position << 32) | found
                valid[slot] = 1
                position += found
        elif op == UNION:
            found, position = _long(base, position, end)
            if position < 0:
                status = BAD_VARINT
            elif found < 0 or found >= code[at, A]:
                status = BAD_BRANCH
            else:
                pc = np.int64(tables[np.uint64(code[at, B] + found)])
        elif op == JUMP:
            pc = np.int64(code[at, A])
        elif op == NULLS:
            pc = np.int64(code[at, A])
            for i in range(code[at, TO], code[at, TO] + code[at, B]):
                write_null(slot_arrays, tables[np.uint64(i)])
        elif op == DOUBLE:
            if end - position < 8:
                status = BAD_END
            else:
                slot = np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])
                slots[slot] = np.int64(read_little(data, position, 8))
                valid[slot] = 1
                position += 8
        elif op == BOOLEAN:
            if position >= end:
                status = BAD_END
            else:
                found = np.int64(data[np.uint64(position)])
                if found > 1:
                    status = BAD_BOOLEAN
                slot = np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])
                slots[slot] = found
                valid[slot] = 1
                position += 1
        elif op == ENUM:
            found, position = _long(base, position, end)
            if position < 0:
                status = BAD_VARINT
            elif found < 0 or found >= code[at, A]:
                status = BAD_SYMBOL
            else:
                piece = tables[np.uint64(code[at, B] + found)]
                if piece < 0:
                    status = UNREADABLE_SYMBOL
                slot = np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])
                slots[slot] = piece + (np.int64(pool) << 32)
                valid[slot] = 1
        elif op == END:
            status = OK
            if position != end:
                found = end - position
                status = TRAILING
        elif op in (FLOAT, FLOAT_TO_DOUBLE):
            if end - position < 4:
                status = BAD_END
            else:
                bits = np.uint32(read_little(data, position, 4))
                slot = np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])
                slots[slot] = np.int64(bits)
                if op == FLOAT_TO_DOUBLE:
                    slots[slot] = np.float64(bits.view(np.float32)).view(np.int64)
                valid[slot] = 1
                position += 4
        elif op in (SCALED, INTEGER_TO_FLOAT, INTEGER_TO_DOUBLE):
            found, position = _long(base, position, end)
            slot = np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])
            valid[slot] = 1
            if position < 0:
                status = BAD_VARINT
            elif op != SCALED:
                nearest = np.float64(found)
                if op == INTEGER_TO_FLOAT:
                    nearest = np.float64(np.float32(found))
                    slots[slot] = np.int64(np.float32(found).view(np.uint32))
                else:
                    slots[slot] = nearest.view(np.int64)
                if nearest >= _BEYOND or np.int64(nearest) != found:
                    status = BAD_FLOAT
            else:
                line = np.uint64(code[at, A])
                times, parts = tables[line], tables[line + np.uint64(1)]
                # Checked before: the compiler takes overflows for impossible.
                if found > _LARGEST // times or found < -(_LARGEST // times):
                    status = BAD_RANGE
                else:
                    number = found * times // parts
                    slots[slot] = number
                    if number * parts != found * times:
                        status = BAD_UNIT
                    elif (
                        number < tables[line + np.uint64(2)] or number > tables[line + np.uint64(3)]
                    ):
                        status = BAD_RANGE
        elif op == FIXED:
            if code[at, A] > end - position:
                status = BAD_END
            else:
                slot = np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])
                slots[slot] = (position << 32) | code[at, A]
                valid[slot] = 1
                position += code[at, A]
        elif op == DECIMAL:
            size = np.int64(code[at, B])
            if size < 0:
                size, position = _long(base, position, end)
                found = size
            if position < 0:
                status = BAD_VARINT
            elif size < 0 or size > end - position:
                status = BAD_LENGTH
                found = size
            else:
                count = code[at, A] & 0xFF
                for word in range(count):
                    words[word] = bases[code[at, TO] + word] + cursors[code[at, AT]]
                    valid[np.uint64(words[word])] = 1
                if not _decimal(data, position, size, count, slots, words) or not _scale_up(
                    count, code[at, A] >> 8, slots, words
                ):
                    status = BAD_DECIMAL
                position += size
        elif op == VALID:
            valid[np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])] = 1
        elif op == LIST:
            if code[at, TO] >= 0:
                slot = np.uint64(bases[code[at, TO]] + cursors[code[at, AT]])
                slots[slot] = cursors[code[at, A]]
                valid[slot] = 1
            top += 1
            if top >= _DEPTH:
                status = BAD_DEPTH
            else:
                stack[np.uint64(top)] = 0
        elif op == BLOCK:
            if stack[np.uint64(top)] == 0:
                found, position = _long(base, position, end)
                size = np.int64(0)
                if found < 0 and position >= 0:
                    size, position = _long(base, position, end)  # the bytes of the block
                if position < 0:
                    status = BAD_VARINT
                elif found == _SMALLEST or abs(found) > end - position or size < 0:
                    status = BAD_COUNT  # an item has one byte or more
                elif position <= pool and abs(found) > size_of_value - items:
                    status = BAD_COUNT  # so all items of a value have as many as it, at least
                else:
                    items += abs(found) if position <= pool else zero
                    stack[np.uint64(top)] = abs(found)
                    if found == 0:
                        top -= 1
                        pc = np.int64(code[at, A])
                        continue
            if status == _RUNNING:
                level = code[at, AT]
                if level >= 0 and cursors[level] >= capacities[level]:
                    return level
                stack[np.uint64(top)] -= 1
        elif op == NEXT:
            if code[at, AT] >= 0:
                cursors[code[at, AT]] += 1
            pc = np.int64(code[at, A])
        elif op == DEFAULT:
            outer_position = position
            outer_end = end
            position = pool + np.int64(code[at, A])
            end = position + code[at, B]
        elif op == DEFAULT_END:
            position = outer_position
            end = outer_end
        elif op == SKIP_INTEGER:
            _, position = _long(base, position, end)
            if position < 0:
                status = BAD_VARINT
        elif op == SKIP_BYTES:
            found, position = _long(base, position, end)
            if position < 0:
                status = BAD_VARINT
            elif found < 0 or found > end - position:
                status = BAD_LENGTH
            else:
                position += found
        elif op == SKIP_FIXED:
            if code[at, A] > end - position:
                status = BAD_END
            else:
                position += code[at, A]
        elif op == CALL:
            top += 1
            if top >= _DEPTH:
                status = BAD_DEPTH
            else:
                stack[np.uint64(top)] = pc
                pc = np.int64(code[at, A])
        elif op == RETURN:
            pc = stack[np.uint64(top)]
            top -= 1
        else:
            status = UNREADABLE_BRANCH
            found = code[at, A]
    if status > OK:
        batch.statuses[row] = status
        batch.details[row, 0] = code[at, FIELD]
        batch.details[row, 1] = found
    return np.int64(-1)


run = frame(_read)
