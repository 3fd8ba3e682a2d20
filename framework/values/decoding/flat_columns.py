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
# NULLS: how many there are. The rest: where in the message its buffers begin; PIECES are the texts, whose
# ends are the VALUES.
SLOT, WIDTH, PLAIN, NULLS, BITMAP, VALUES, PIECES, _LINE = range(8)
BITS, TEXT = 0, -1
_LARGEST_SIZE, _LENGTH, _HIGH, _TOTALS = range(4)
"""What compiled code tells: bytes of the largest column of texts and of the message, and whether a text is
not ASCII."""
_BODY_LENGTH, _ROWS, _NODES, _BUFFERS = range(4)
"""The words of the metadata of a message that are numbers of a batch, or where there are more of them."""

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
        self._lines[:, SLOT] = self.slots

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
        lines, metadata = self._lines.copy(), self._template.metadata.copy()
        totals = np.empty(_TOTALS, np.int64)
        given = (slots.values, slots.valid, lines, rows)
        _kernels()["_lay_out"](
            *given, slots.bases, plain.view(np.uint8), metadata, self._template.places, totals
        )
        if totals[_LARGEST_SIZE] > LARGEST:
            return None
        message = np.empty(int(totals[_LENGTH]) + BLOCK, np.uint8)
        message[: metadata.nbytes] = metadata.view(np.uint8)
        _kernels()["_write"](*given, data, message, message.view(np.int32), totals)
        batch = _pa.ipc.read_record_batch(_pa.py_buffer(message), schema or self._schema)
        if totals[_HIGH] and self._has_texts:
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
    """The message of one row of nulls, without its body.

    Attributes:
        metadata: its words.
        places: which of them are the numbers of a batch.
    """

    def __init__(self, schema: pa.Schema) -> None:
        one = _pa.RecordBatch.from_arrays(
            [pa.nulls(1, each.type) for each in schema], schema=schema
        )
        raw = one.serialize().to_pybytes()
        (size,) = struct.unpack_from("<i", raw, 4)
        self.metadata = np.frombuffer(raw[: _HEADER + size], np.int64)
        root = _follow(raw, _HEADER)
        header = _follow(raw, _field(raw, root, 2))
        nodes, buffers = (_follow(raw, _field(raw, header, number)) + 4 for number in (1, 2))
        places = [_field(raw, root, 3), _field(raw, header, 0), nodes, buffers]
        self.places = np.array(places, np.int64) // 8


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
    given = (INT64S, BYTES, INT64_TABLE, NUMBER)
    return load(
        __name__,
        {
            "_lay_out": (*given, INT64S, BYTES, INT64S, INT64S, INT64S),
            "_write": (*given, BYTES, BYTES, INT32S, INT64S),
        },
        depends_on=(copy_piece.__module__,),
    )


def _lay_out(
    values: Ints, valid: Ints, lines: Ints, rows: int, bases: Ints, plain: Ints, metadata: Ints,
    places: Ints, totals: Ints,
) -> None:  # fmt: skip
    """Count nulls and bytes, choose the places of all buffers, and complete the metadata."""
    size = 8 * len(metadata)
    node, buffer = places[_NODES], places[_BUFFERS]
    at = np.int64(size)
    largest = np.int64(0)
    for column in range(len(lines)):
        number = lines[column, SLOT]
        slot = np.uint64(bases[number])
        is_plain, width = np.int64(plain[number]), lines[column, WIDTH]
        lines[column, SLOT], lines[column, PLAIN] = bases[number], is_plain
        there = np.int64(0)
        of_texts = np.int64(0)
        for row in range(rows):
            is_there = np.int64(valid[slot + np.uint64(row)] == 1) & is_plain
            there += is_there
            of_texts += (values[slot + np.uint64(row)] & 0xFFFFFFFF) * is_there
        nulls = rows - there
        lines[column, NULLS] = nulls
        metadata[node], metadata[node + 1] = rows, nulls
        node += 2
        bits = (rows + 7) >> 3
        lines[column, BITMAP] = at
        at = _place(metadata, buffer, size, at, bits if nulls > 0 else 0)
        lines[column, VALUES] = at
        if width == TEXT:
            largest = max(largest, of_texts)
            at = _place(metadata, buffer + 2, size, at, 4 * (rows + 1))
            lines[column, PIECES] = at
            at = _place(metadata, buffer + 4, size, at, of_texts)
            buffer += 6
        else:
            at = _place(metadata, buffer + 2, size, at, bits if width == BITS else width * rows)
            buffer += 4
    metadata[places[_BODY_LENGTH]] = at - size
    metadata[places[_ROWS]] = rows
    totals[_LARGEST_SIZE], totals[_LENGTH] = largest, at


@compiled
def _place(metadata: Ints, word: Int, begin: Int, at: Int, size: Int) -> Int:
    """Note the place of a buffer behind the metadata, and its size; return the place of the next."""
    metadata[word] = at - begin
    metadata[word + 1] = size
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
    values: Ints, valid: Ints, line: Ints, rows: Int, data: Ints, message: Ints, ends: Ints
) -> Int:
    """Write the texts of a column, and where each ends; return 0 if all are ASCII."""
    base, out_base = np.int64(data.ctypes.data), np.int64(message.ctypes.data)
    limit = base + len(data)
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
    values: Ints, valid: Ints, lines: Ints, rows: int, data: Ints, message: Ints, halves: Ints,
    totals: Ints,
) -> None:  # fmt: skip
    """Write the body of a message."""
    high = np.uint64(0)
    for column in range(len(lines)):
        line = lines[column]
        slot, width, at = np.uint64(line[SLOT]), line[WIDTH], line[VALUES]
        if line[NULLS] > 0:
            _write_nulls(valid, slot, line[PLAIN], rows, message, line[BITMAP])
        if width == TEXT:
            high |= _write_texts(values, valid, line, rows, data, message, halves)
        elif width == BITS:
            _write_booleans(values, slot, rows, message, at)
        else:
            to = np.int64(message.ctypes.data) + at
            _write_numbers(values, slot, width, rows, message, at, to)
    totals[_HIGH] = np.int64(high != np.uint64(0))
