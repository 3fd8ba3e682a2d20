"""Slots: where compiled decoders write values of any schema, and how they become Arrow columns.

Every column is a run of 64-bit slots with a byte for "not null" beside each: an integer, the bits of a
float, a piece of the input (its start in the upper half, its size in the lower), or for a list the number
of items before it. Level 0 has a slot for each value; the items of each list or map are a level of
their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from .flat_columns import FlatColumns
from .frame import CHILD, LEVEL, SlotArrays
from .pieces import gather, gather_fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

Array: TypeAlias = Any
"""An Arrow array of any type."""

Bad: TypeAlias = "Callable[[SlotColumn, NDArray[np.int64], str], None]"
"""Gets a column, the rows of it that are not valid, and the reason."""

Kind: TypeAlias = Literal[
    "null", "integer", "float", "double", "boolean", "text", "bytes", "fixed", "decimal", "struct",
    "list", "map", "instant", "wrapper", "json",
]  # fmt: skip

# pyarrow's stubs distinguish array types that are all the same here.
_pa: Any = pa
_FIRST_CAPACITY: Final = 1024
_MOST: Final = 16  # times as much room at once
_FEW: Final = 1024  # rows, of which simple columns are made together
_SIMPLE: Final = frozenset({"integer", "float", "double", "boolean", "text", "bytes"})
_WORD: Final = 64  # bits of a slot


@dataclass(slots=True)
class SlotColumn:
    """A column of any type, with those inside it.

    Attributes:
        first: the number of its first slot column; -1 for nulls, and for the columns of the values together.
        words: how many slot columns it has: several for a decimal.
        level: what its rows are.
        children: the fields of a struct; the items of a list; the key and the value of a map; the seconds and
            nanoseconds of an instant; the one field of a wrapper.
        to_json: makes text of the bytes of a JSON column, or raises ValueError.
        is_flat: whether it may be made together with others, see `FlatColumns`.
    """

    kind: Kind
    type: pa.DataType
    level: int
    first: int = -1
    words: int = 1
    path: str = ""
    children: list[SlotColumn] = field(default_factory=list)
    to_json: Callable[[bytes], str] | None = None
    is_flat: bool = False

    def nullable(self) -> Iterator[int]:
        """Yield the slot columns to make null so that it is null: its own and those of its fields."""
        if self.first >= 0:
            yield from range(self.first, self.first + self.words)
        if self.kind in {"struct", "instant", "wrapper"}:
            for child in self.children:
                yield from child.nullable()


class SlotLayout:
    """The slot columns of a schema; made once for each."""

    def __init__(self) -> None:
        self.levels = 1
        self._columns: list[tuple[int, int]] = []
        self._tables: SlotTables | None = None
        self._flat: FlatColumns | None = None

    def add(
        self, kind: Kind, type_: pa.DataType, level: int, path: str, *, words: int = 1
    ) -> SlotColumn:
        """Add a column."""
        column = SlotColumn(kind, type_, level, len(self._columns), words, path)
        child = -1
        if kind in {"list", "map"}:
            child = self.levels
            self.levels += 1
        self._columns += [(level, child)] * words
        column.is_flat = level == 0 and kind in _SIMPLE
        return column

    def child_level(self, column: SlotColumn) -> int:
        """Return the level of the items of a list or map."""
        return self.child_of(column.first)

    def child_of(self, column: int) -> int:
        """Return the level of the items of a slot column; -1 if it is not a list."""
        return self._columns[column][CHILD]

    @property
    def tables(self) -> SlotTables:
        """The tables of the columns so far; complete when the last was added."""
        if self._tables is None or len(self._tables.order) < len(self._columns):
            levels = np.array(self._columns, np.int64).reshape(-1, 2)
            order = np.argsort(levels[:, LEVEL], kind="stable")
            self._tables = SlotTables(levels, order, levels[order, LEVEL])
        return self._tables

    def flat(self, columns: Sequence[SlotColumn]) -> FlatColumns:
        """Return those of the columns of the schema, always the same, that may be made together."""
        if self._flat is None:
            self._flat = FlatColumns([each for each in columns if each.is_flat])
        return self._flat


class SlotTables(NamedTuple):
    """The slot columns of a layout.

    Attributes:
        levels: the level of each, and that of its items (-1: it is not a list).
        order: their order in memory: those of level 0 are the first.
        levels_in_order: the level of each in that order.
    """

    levels: NDArray[np.int64]
    order: NDArray[np.int64]
    levels_in_order: NDArray[np.int64]


class Slots:
    """The slots of one batch.

    Calls: compiled code writes into `values` and `valid`, and counts in `cursors`; `grow` when a level is
    full; `array` at the end.
    """

    def __init__(self, layout: SlotLayout, rows: int) -> None:
        self.table, self._order, self._levels = layout.tables
        self._layout = layout
        self.cursors = np.zeros(layout.levels, np.int64)
        self._saved = np.zeros(layout.levels, np.int64)
        self.capacities = np.full(layout.levels, _FIRST_CAPACITY, np.int64)
        self.capacities[0] = rows
        self._allocate()

    def _allocate(self) -> None:
        sizes = self.capacities[self._levels]
        ends = sizes.cumsum()
        self.bases = np.empty_like(sizes)
        self.bases[self._order] = ends - sizes
        size = int(ends[-1]) if len(ends) else 0
        self.values = np.empty(size, np.int64)
        self.valid = np.empty(size, np.uint8)

    @property
    def arrays(self) -> SlotArrays:
        """The slots as compiled code takes them; others after `grow`."""
        return SlotArrays(
            self.table,
            self.bases,
            self.capacities,
            self.values,
            self.valid,
            self.cursors,
            self._saved,
        )

    def grow(self, level: int) -> None:
        """Make room for the rows of a level: as many as the values so far need for all, within bounds."""
        bases, values, valid = self.bases, self.values, self.valid
        expected = int(self.cursors[level] * self.capacities[0] / (self.cursors[0] + 1))
        capacity = int(self.capacities[level])
        self.capacities[level] = min(max(2 * capacity, expected + expected // 8), _MOST * capacity)
        self._allocate()
        for column, (level_of, _) in enumerate(self.table):
            # JSON marks all rows of level 0 as missing beforehand: copy that level whole.
            used = self.capacities[0] if level_of == 0 else self.cursors[level_of]
            old, new = bases[column], self.bases[column]
            self.values[new : new + used] = values[old : old + used]
            self.valid[new : new + used] = valid[old : old + used]

    def batch(
        self,
        columns: Sequence[SlotColumn],
        schema: pa.Schema,
        data: NDArray[np.uint8],
        bad: Bad,
    ) -> pa.RecordBatch:
        """Return columns with the names of a schema; see `array`.

        Columns of few rows take longer to make one by one than together, in one piece of memory.
        """
        made: dict[int, Array] = {}
        together = self._layout.flat(columns)
        if self.cursors[0] <= _FEW and together.columns:
            simple = self.simple()
            is_all = np.count_nonzero(simple[together.slots]) == len(columns)
            batch = together.batch(self, simple, data, schema if is_all else None)
            if batch is not None and is_all:
                return batch
            if batch is not None:
                pairs = zip(together.columns, batch.columns, strict=True)
                made = {each.first: array for each, array in pairs if simple[each.first]}
        arrays = [
            self.array(each, data, bad) if each.first not in made else made[each.first]
            for each in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def simple(self) -> NDArray[np.bool_]:
        """Return for each slot column whether `array` takes nothing from elsewhere, if it is flat."""
        return np.ones(len(self.table), np.bool_)

    def array(self, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
        """Return a column as Arrow array.

        Args:
            data: the input, which the pieces are of.
            bad: gets the rows with values that are not valid: text that is not UTF-8, decimals that are
                too large. Their values in the array are undefined.
        """
        return _BUILDERS[column.kind](self, column, data, bad)

    def of(self, column: int) -> NDArray[np.int64]:
        """Return the used slots of a column."""
        base = self.bases[column]
        used: NDArray[np.int64] = self.values[base : base + self.cursors[self.table[column, LEVEL]]]
        return used

    def bitmap(self, column: int) -> pa.Buffer | None:
        """Return the validity of a column; None if no value is null."""
        valid = self.is_valid(column)
        return None if valid.all() else _pa.py_buffer(np.packbits(valid, bitorder="little"))

    def is_valid(self, column: int) -> NDArray[np.bool_]:
        """Return whether each value of a column is not null."""
        base = self.bases[column]
        return self.valid[base : base + self.cursors[self.table[column, LEVEL]]].view(np.bool_)

    def rows_of(self, column: SlotColumn, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of level 0 that items of a column belong to."""
        level = column.level
        while level:
            owner = int(np.flatnonzero(self.table[:, CHILD] == level)[0])
            items = np.searchsorted(self.of(owner), items, side="right") - 1
            level = int(self.table[owner, LEVEL])
        return items


def _null(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    return _pa.nulls(int(slots.cursors[column.level]))


def _integer(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    # Copied even where the width is equal: else each column would keep the slots of all.
    width = np.dtype(f"i{column.type.bit_width // 8}")
    return _fixed_width(slots, column, slots.of(column.first).astype(width))


def _double(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    return _fixed_width(slots, column, slots.of(column.first).copy())


def _float(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    return _fixed_width(slots, column, slots.of(column.first).astype(np.uint32))


def _boolean(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    bits = np.packbits(slots.of(column.first).astype(np.bool_), bitorder="little")
    return _fixed_width(slots, column, bits)


def _decimal(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    words = [slots.of(column.first + word) for word in range(column.words)]
    array = _fixed_width(slots, column, np.stack(words, axis=1))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        limit = 10 ** _pa_precision(column.type)
        unscaled = [_unscaled(row) for row in np.stack(words, axis=1).tolist()]
        valid = slots.is_valid(column.first)
        rows = [at for at, value in enumerate(unscaled) if valid[at] and abs(value) >= limit]
        bad(column, np.array(rows, np.int64), "the decimal has too many digits")
    return array


def _pa_precision(type_: Any) -> int:
    return int(type_.precision)


def _unscaled(words: list[int]) -> int:
    value = words[-1]
    for word in reversed(words[:-1]):
        value = (value << _WORD) | (word & (2**_WORD - 1))
    return value


def _fixed_width(slots: Slots, column: SlotColumn, values: NDArray[Any]) -> Array:
    rows = int(slots.cursors[column.level])
    buffers = [slots.bitmap(column.first), _pa.py_buffer(values)]
    return _pa.Array.from_buffers(column.type, rows, buffers)


def _text(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    offsets, pieces, is_ascii = gather(data, slots.of(column.first), slots.is_valid(column.first))
    if not len(offsets):
        rows = int(slots.cursors[column.level])
        bad(column, np.arange(rows), "the texts of the batch have more than 2 GiB")
        return _pa.nulls(rows, column.type)
    buffers = [slots.bitmap(column.first), _pa.py_buffer(offsets), _pa.py_buffer(pieces)]
    array = _pa.Array.from_buffers(column.type, len(offsets) - 1, buffers)
    if column.kind == "text" and not is_ascii:
        array, wrong = valid_texts(array)
        if len(wrong):
            bad(column, wrong, "the text is not UTF-8")
    return array


def valid_texts(array: Array) -> tuple[Array, NDArray[np.int64]]:
    """Make texts that are not UTF-8 empty; return all texts, and the rows of the emptied ones."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        values = _pa.Array.from_buffers(pa.binary(), len(array), array.buffers()).to_pylist()
        wrong = [at for at, value in enumerate(values) if not _is_utf8(value)]
        bad = set(wrong)
        texts = [b"" if at in bad else value for at, value in enumerate(values)]
        return pa.array(texts, pa.binary()).cast(pa.string()), np.array(wrong, np.int64)
    return array, np.zeros(0, np.int64)


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _fixed(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    size = _byte_width(column.type)
    valid = slots.is_valid(column.first)
    return _fixed_width(slots, column, gather_fixed(data, slots.of(column.first), valid, size))


def _byte_width(type_: Any) -> int:
    return int(type_.byte_width)


def _struct(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    children = [slots.array(child, data, bad) for child in column.children]
    rows = int(slots.cursors[column.level])
    return _pa.Array.from_buffers(
        column.type, rows, [slots.bitmap(column.first)], children=children
    )


def _instant(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    seconds, nanos = (slots.of(child.first) for child in column.children)
    valid = slots.is_valid(column.first)
    unit = column.type.unit  # type: ignore[attr-defined]
    per_second = 10**6 if unit == "us" else 10**9
    largest = 2**63 // per_second - 1
    wrong = valid & ((np.abs(seconds) > largest) | (nanos < 0) | (nanos >= 10**9))
    finer = valid & (nanos % (10**9 // per_second) != 0)
    for rows, why in ((wrong, f"out of range of {unit}"), (finer & ~wrong, f"finer than {unit}")):
        for row in np.flatnonzero(rows).tolist():
            of_row = f"the timestamp of {seconds[row]} s and {nanos[row]} ns is {why}"
            bad(column, np.array([row]), of_row)
    wrong |= finer
    seconds, nanos = np.where(wrong, 0, seconds), np.where(wrong, 0, nanos)
    ticks = np.where(valid, seconds * per_second + nanos // (10**9 // per_second), 0)
    return _fixed_width(slots, column, ticks)


def _json(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    convert = column.to_json
    assert convert is not None  # noqa: S101  set where the column is made
    raw = _text(slots, replace(column, kind="bytes", type=pa.binary()), data, bad)
    texts: list[str | None] = []
    for row, each in enumerate(raw.to_pylist()):
        try:
            texts.append(None if each is None else convert(each))
        except (ValueError, RecursionError) as error:
            bad(column, np.array([row]), f"it is no JSON: {error}")
            texts.append(None)
    return pa.array(texts, pa.string())


def _wrapper(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    (inner,) = column.children
    return slots.array(inner, data, bad)


def _list(slots: Slots, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Array:
    offsets = _offsets(slots, column)
    children = [slots.array(child, data, bad) for child in column.children]
    if column.kind == "map":
        fields = [column.type.key_field, column.type.item_field]  # type: ignore[attr-defined]
        children = [_pa.StructArray.from_arrays(children, fields=fields)]
    buffers = [slots.bitmap(column.first), _pa.py_buffer(offsets)]
    return _pa.Array.from_buffers(column.type, len(offsets) - 1, buffers, children=children)


def _offsets(slots: Slots, column: SlotColumn) -> NDArray[np.int32]:
    child = int(slots.table[column.first, CHILD])
    starts = slots.of(column.first)
    offsets = np.empty(len(starts) + 1, np.int32)
    offsets[:-1] = starts
    offsets[-1] = slots.cursors[child]
    return offsets


_BUILDERS: Final[dict[Kind, Callable[[Slots, SlotColumn, NDArray[np.uint8], Bad], Array]]] = {
    "null": _null,
    "integer": _integer,
    "float": _float,
    "double": _double,
    "boolean": _boolean,
    "text": _text,
    "bytes": _text,
    "fixed": _fixed,
    "decimal": _decimal,
    "struct": _struct,
    "list": _list,
    "map": _list,
    "instant": _instant,
    "wrapper": _wrapper,
    "json": _json,
}
