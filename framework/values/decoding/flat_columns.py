"""Plain numbers and texts of few rows as one batch: compiled code writes an Arrow IPC message of them.

An Arrow array takes microseconds to make from Python, for each column of each batch. Arrow's own reader makes
those of a message in one call, without a copy.
Source of the message's layout: https://arrow.apache.org/docs/format/Columnar.html, and Message.fbs there.
"""

from __future__ import annotations

import struct
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ...formats.machine_code import BYTES, INT32S, INT64_TABLE, INT64S, NUMBER, compiled, load
from ...formats.memory import store64
from .pieces import BLOCK, LARGEST, copy_piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ...formats.machine_code import Int, Ints, Kernel
    from .slots import SlotColumn, Slots

_pa: Any = pa

# Columns of the table of columns. WIDTH: the bytes of a value, or BITS or TEXT. PLAIN: 0 makes all rows null.
# NULLS and SIZE: how many there are, and the bytes of all texts. The rest: where in the message its buffers
# begin; PIECES are the texts, whose ends are the VALUES.
SLOT, WIDTH, PLAIN, NULLS, SIZE, BITMAP, VALUES, PIECES, _END, _LINE = range(10)
BITS, TEXT = 0, -1
_DATA, _DATA_SIZE, _MESSAGE, _HIGH = range(4)
"""What compiled code gets of memory: data and message, and whether it wrote a byte that is not ASCII."""

_HEADER: Final = 8  # bytes of a message before its metadata


class FlatColumns:
    """Simple columns of level 0, and the metadata of their messages; made once for each schema."""

    def __init__(self, columns: Sequence[SlotColumn]) -> None:
        self.columns = list(columns)
        self.slots = np.array([each.first for each in columns], np.int64)
        self._schema = pa.schema([(str(at), each.type) for at, each in enumerate(columns)])
        self._lines = np.zeros((len(columns), _LINE), np.int64)
        self._lines[:, WIDTH] = [_width(each) for each in columns]
        self._has_texts = any(each.kind == "text" for each in columns)
        self._nodes = np.empty((len(columns), 2), np.int64)
        texts = np.count_nonzero(self._lines[:, WIDTH] == TEXT)
        self._buffers = np.empty((2 * len(columns) + texts, 2), np.int64)

    @cached_property
    def _template(self) -> _Template:
        return _Template(self._schema)

    def batch(
        self,
        slots: Slots,
        plain: NDArray[np.bool_],
        data: NDArray[np.uint8],
        schema: pa.Schema | None = None,
    ) -> pa.RecordBatch | None:
        """Return the columns; None if they are too large, or a text is not UTF-8.

        Args:
            plain: for each slot column, whether its slots hold values; all rows of others are null.
            schema: with the columns' names; without it they have numbers.
        """
        rows = int(slots.cursors[0])
        lines = self._lines.copy()
        lines[:, SLOT], lines[:, PLAIN] = slots.bases[self.slots], plain[self.slots]
        lines[:, BITMAP] = self._template.size
        nodes, buffers = self._nodes.copy(), self._buffers.copy()
        _kernels()["_lay_out"](slots.values, slots.valid, lines, rows, nodes, buffers)
        if lines[:, SIZE].max() > LARGEST:
            return None
        message = self._template.message(rows, nodes, buffers, int(lines[-1, _END]))
        memory = np.array([data.ctypes.data, len(data), message.ctypes.data, 0], np.int64)
        _kernels()["_write"](
            memory, slots.values, slots.valid, lines, rows, message, message.view(np.int32)
        )
        batch = _pa.ipc.read_record_batch(_pa.py_buffer(message), schema or self._schema)
        if memory[_HIGH] and self._has_texts:
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid:
                return None
        return batch  # type: ignore[no-any-return]


def _width(column: SlotColumn) -> int:
    kind: Any = column.type
    if column.kind in {"text", "bytes"}:
        return TEXT
    return BITS if column.kind == "boolean" else int(kind.bit_width) // 8


class _Template:
    """The message of one row of nulls, and where it has the numbers of a batch.

    Attributes:
        size: the bytes before the body.
    """

    def __init__(self, schema: pa.Schema) -> None:
        one = _pa.RecordBatch.from_arrays(
            [pa.nulls(1, each.type) for each in schema], schema=schema
        )
        raw = one.serialize().to_pybytes()
        (metadata,) = struct.unpack_from("<i", raw, 4)
        self.size = _HEADER + metadata
        self._raw = np.frombuffer(raw[: self.size], np.uint8)
        root = _follow(raw, _HEADER)
        header = _follow(raw, _field(raw, root, 2))
        self._length_of_body = _field(raw, root, 3)
        self._rows = _field(raw, header, 0)
        self._nodes, self._buffers = (
            _follow(raw, _field(raw, header, number)) + 4 for number in (1, 2)
        )

    def message(
        self, rows: int, nodes: NDArray[np.int64], buffers: NDArray[np.int64], end: int
    ) -> NDArray[np.uint8]:
        """Return a message that ends at `end`, without its body, and with room for a block behind it."""
        message = np.empty(end + BLOCK, np.uint8)
        message[: self.size] = self._raw
        buffers[:, 0] -= self.size
        for at, numbers in (
            (self._length_of_body, np.array([end - self.size])),
            (self._rows, np.array([rows])),
            (self._nodes, nodes.ravel()),
            (self._buffers, buffers.ravel()),
        ):
            message[at : at + 8 * len(numbers)] = numbers.view(np.uint8)
        return message


def _follow(raw: bytes, at: int) -> int:
    """Return the place that an offset of a flatbuffer points to."""
    return at + int(struct.unpack_from("<I", raw, at)[0])


def _field(raw: bytes, table: int, number: int) -> int:
    """Return the place of a field of a flatbuffer's table."""
    (back,) = struct.unpack_from("<i", raw, table)
    (offset,) = struct.unpack_from("<H", raw, table - back + 4 + 2 * number)
    return table + int(offset)


@cache
def _kernels() -> dict[str, Kernel]:
    slots = (INT64S, BYTES, INT64_TABLE, NUMBER)
    return load(
        __name__,
        {
            "_lay_out": (*slots, INT64_TABLE, INT64_TABLE),
            "_write": (INT64S, *slots, BYTES, INT32S),
        },
        depends_on=(copy_piece.__module__,),
    )


def _lay_out(values: Ints, valid: Ints, lines: Ints, rows: int, nodes: Ints, buffers: Ints) -> None:
    """Count nulls and bytes; choose the places of all buffers from the BITMAP of the first on."""
    number = 0
    at = lines[0, BITMAP]
    for column in range(len(lines)):
        slot = np.uint64(lines[column, SLOT])
        plain, width = lines[column, PLAIN], lines[column, WIDTH]
        there = np.int64(0)
        size = np.int64(0)
        for row in range(rows):
            is_there = np.int64(valid[slot + np.uint64(row)] == 1) & plain
            there += is_there
            size += (values[slot + np.uint64(row)] & 0xFFFFFFFF) * is_there
        nulls = rows - there
        lines[column, NULLS] = nodes[column, 1] = nulls
        nodes[column, 0] = rows
        bits = (rows + 7) >> 3
        lines[column, BITMAP] = at
        at = _place(buffers, number, at, bits if nulls > 0 else 0)
        lines[column, VALUES] = at
        if width == TEXT:
            lines[column, SIZE] = size
            lines[column, PIECES] = _place(buffers, number + 1, at, 4 * (rows + 1))
            at = _place(buffers, number + 2, lines[column, PIECES], size)
            number += 3
        else:
            at = _place(buffers, number + 1, at, bits if width == BITS else width * rows)
            number += 2
        lines[column, _END] = at


@compiled
def _place(buffers: Ints, number: Int, at: Int, size: Int) -> Int:
    """Note the place and the size of a buffer; return the place of the next."""
    buffers[number, 0] = at
    buffers[number, 1] = size
    return (at + size + 7) & ~7


@compiled
def _write_nulls(valid: Ints, slot: Int, plain: Int, rows: Int, message: Ints, at: Int) -> None:
    """Write a bit for each row: whether it is not null."""
    for first in range(0, rows, 8):
        bits = np.int64(0)
        for bit in range(min(rows - first, 8)):
            bits |= (np.int64(valid[slot + np.uint64(first + bit)] == 1) & plain) << bit
        message[np.uint64(at + (first >> 3))] = bits


@compiled
def _write_booleans(values: Ints, slot: Int, rows: Int, message: Ints, at: Int) -> None:
    for first in range(0, rows, 8):
        bits = np.int64(0)
        for bit in range(min(rows - first, 8)):
            bits |= np.int64(values[slot + np.uint64(first + bit)] != 0) << bit
        message[np.uint64(at + (first >> 3))] = bits


@compiled
def _write_numbers(
    values: Ints, slot: Int, width: Int, rows: Int, message: Ints, at: Int, to: Int
) -> None:
    """Write numbers of a width to a place; `to`: the address of that place."""
    if width == 8:
        for row in range(rows):
            store64(to + 8 * row, np.uint64(values[slot + np.uint64(row)]))
        return
    for row in range(rows):
        number = values[slot + np.uint64(row)]
        for byte in range(width):
            message[np.uint64(at + width * row + byte)] = (number >> (8 * byte)) & 0xFF


@compiled
def _write_texts(
    memory: Ints, values: Ints, valid: Ints, line: Ints, rows: Int, message: Ints, ends: Ints
) -> Int:
    """Write the texts of a column, and where each ends; return 0 if all are ASCII."""
    base, out_base = memory[_DATA], memory[_MESSAGE]
    limit = base + memory[_DATA_SIZE]
    slot, begin, at = np.uint64(line[SLOT]), line[PIECES], line[VALUES] >> 2
    to, high = begin, np.uint64(0)
    ends[np.uint64(at)] = 0
    for row in range(rows):
        piece = values[slot + np.uint64(row)]
        left = (piece & 0xFFFFFFFF) * (np.int64(valid[slot + np.uint64(row)] == 1) & line[PLAIN])
        start = base + (piece >> 32) * np.int64(left > 0)
        high |= copy_piece(out_base + to, start, left, limit, out_base, message)
        to += left
        ends[np.uint64(at + row + 1)] = to - begin
    return high


def _write(
    memory: Ints, values: Ints, valid: Ints, lines: Ints, rows: int, message: Ints, halves: Ints
) -> None:
    high = np.uint64(0)
    for column in range(len(lines)):
        line = lines[column]
        slot, width, at = np.uint64(line[SLOT]), line[WIDTH], line[VALUES]
        if line[NULLS] > 0:
            _write_nulls(valid, slot, line[PLAIN], rows, message, line[BITMAP])
        if width == TEXT:
            high |= _write_texts(memory, values, valid, line, rows, message, halves)
        elif width == BITS:
            _write_booleans(values, slot, rows, message, at)
        else:
            _write_numbers(values, slot, width, rows, message, at, memory[_MESSAGE] + at)
    memory[_HIGH] = np.int64(high != np.uint64(0))
