"""JSON objects to columns: the tables of the compiled walk, and columns of what it found."""

from __future__ import annotations

from functools import cached_property, lru_cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NamedTuple,
    Union,
    get_args,
    get_origin,
)

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from ...columns.fitting import fit
from ...columns.numbers import DIGITS
from ...errors import as_exception
from ..decoding.slot_decoding import CompiledDecoder, batch_of, run
from ..decoding.slots import SlotColumn, SlotLayout, Slots, valid_texts
from ..lost_digits import FINE, LARGE_OR_TINY, has_floats, has_times
from ..python_columns import to_column
from ..registry.framing import NULL, raw_values
from ..row_classes import checks_values
from ..schemas import hints_of, item_of, nested_columns, row_type
from . import json_kernel as kernel
from . import json_scalars as nodes
from .json_texts import copy_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ..conversions import Convert
    from ..decoding.slots import Bad, Kind
    from ..schemas import SchemaField

_pa: Any = pa
_pc: Any = pc
_INT64: Final = np.iinfo(np.int64)
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_TEXTS: Final = (pa.string(), pa.large_string())
_MISSING: Final = 1 << nodes.MISSING
_NOT_SIMPLE: Final = 1 << nodes.ODD | 1 << nodes.ESCAPED


class WalkedColumns(NamedTuple):
    """The columns of some texts, and which rows are left to msgspec: what they hold there is undefined."""

    columns: pa.RecordBatch
    left: NDArray[np.bool_]


class _Unplanned(Exception):
    """The compiled walk does not know the rules of this type: msgspec decodes it."""


class _Value:
    """How the values at one place of a type are read.

    Args:
        hint: the annotation, for msgspec.
        convert: makes Arrow's Python value of msgspec's.
    """

    code = nodes.RAW
    kind: Kind = "bytes"
    stored: Any = pa.binary()  # as the slots hold it
    low, high = int(_INT64.min), int(_INT64.max)
    allowed: Any = None  # the only texts that are valid; None: all
    pattern: str | None = None  # what a text must match; None: all do

    def __init__(
        self, hint: Any, type_: pa.DataType, *, nullable: bool, convert: Convert | None
    ) -> None:
        self.type = type_
        self.has_times = has_times(type_)
        self.has_floats = has_floats(type_)
        self.nullable = nullable
        self.convert = convert
        self._hint = hint
        self.fields: tuple[_Field, ...] = ()
        self.item: _Value | None = None
        self.closed = False
        self.column = SlotColumn("null", type_, 0)

    @cached_property
    def decode(self) -> Callable[[Any], Any]:
        """The decoder of one value, for values that the compiled walk leaves."""
        return msgspec.json.Decoder(self._hint).decode


class _Field(NamedTuple):
    column: SchemaField
    value: _Value


def _value(
    hint: Any, kind: inspect.Type, type_: Any, *, nullable: bool, convert: Convert | None, depth: int
) -> _Value:  # fmt: skip
    value = _Value(hint, type_, nullable=nullable, convert=convert)
    given = {name: getattr(kind, name) for name in kind.__struct_fields__}
    bare = all(each is None for each in given.values())

    def read_as(code: int, stored: Kind, as_type: pa.DataType = type_) -> None:
        value.code, value.kind, value.stored = code, stored, as_type

    match kind:
        case inspect.StrType() if bare and type_ in _TEXTS:
            read_as(nodes.TEXT, "text", pa.string())
        case inspect.IntType() if kind.multiple_of is None and _pa.types.is_integer(type_):
            value.low, value.high = _bounds(kind)
            read_as(nodes.INTEGER, "integer")
        case inspect.FloatType() if bare and type_ in (pa.float64(), pa.float32()):
            read_as(nodes.FLOAT, "double", pa.float64())
            value.high = DIGITS[type_.bit_width]
        case inspect.BoolType() if type_ == pa.bool_():
            read_as(nodes.BOOLEAN, "boolean")
        case inspect.DateTimeType() if bare and type_ == pa.timestamp("us", tz="UTC"):
            read_as(nodes.DATETIME, "integer")
        case inspect.DateType() if type_ == pa.date32():
            read_as(nodes.DATE, "integer")
        case inspect.UUIDType() if type_ in _TEXTS:
            read_as(nodes.TEXT, "text", pa.string())
            value.pattern = _UUID
        case inspect.EnumType() if type_ in _TEXTS:
            read_as(nodes.TEXT, "text", pa.string())
            value.allowed = pa.array([member.value for member in kind.cls], pa.string())
        case inspect.LiteralType() if type_ in _TEXTS:
            read_as(nodes.TEXT, "text", pa.string())
            value.allowed = pa.array(kind.values, pa.string())
        case _ if depth < kernel.DEPTH:
            _nest(value, hint, kind, depth)
    return value


def _nest(value: _Value, hint: Any, kind: inspect.Type, depth: int) -> None:
    """Let the walk read an object, a list or a map, where it can; else msgspec does."""
    type_: Any = value.type
    match kind:
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            try:
                fields = _fields(kind.cls, kind, nested_columns(kind, type_), depth + 1)
            except _Unplanned:
                return
            value.code, value.kind, value.stored = nodes.OBJECT, "struct", type_
            value.fields, value.closed = fields, _is_closed(kind)
        case inspect.ListType() if kind.min_length is None and kind.max_length is None:
            plain = pa.list_(type_.value_field)
            _nest_items(value, hint, kind.item_type, (nodes.ITEMS, "list", plain), depth)
        case inspect.DictType() if (
            kind.min_length is None
            and kind.max_length is None
            and _is_bare_text(kind.key_type)
            and type_.key_type == pa.string()
        ):
            _nest_items(value, hint, kind.value_type, (nodes.PAIRS, "map", type_), depth)


def _nest_items(
    value: _Value, hint: Any, kind: inspect.Type, read_as: tuple[int, Kind, Any], depth: int
) -> None:
    arguments = get_args(_bare(hint))
    if not arguments or inspect.type_info(arguments[-1]) != kind:  # as msgspec understands it
        return
    value.code, value.kind, value.stored = read_as
    type_ = value.stored.item_type if value.kind == "map" else value.stored.value_type
    bare, nullable, convert = item_of(kind)
    value.item = _value(
        arguments[-1], bare, type_, nullable=nullable, convert=convert, depth=depth + 1
    )


def _is_bare_text(kind: inspect.Type) -> bool:
    return kind == inspect.StrType()


def _bare(hint: Any) -> Any:
    """Return an annotation without metadata and without None."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        rest = [each for each in get_args(hint) if each is not NoneType]
        return _bare(rest[0]) if len(rest) == 1 else hint
    return hint


def _bounds(kind: inspect.IntType) -> tuple[int, int]:
    low = max(
        _INT64.min if kind.ge is None else kind.ge, _INT64.min if kind.gt is None else kind.gt + 1
    )
    high = min(
        _INT64.max if kind.le is None else kind.le, _INT64.max if kind.lt is None else kind.lt - 1
    )
    return low, high


def _is_closed(info: Any) -> bool:
    return bool(getattr(info, "forbid_unknown_fields", False))


def _fields(cls: type, info: Any, columns: Sequence[SchemaField], depth: int) -> tuple[_Field, ...]:
    if checks_values(cls, info):
        raise _Unplanned
    try:
        hints = hints_of(cls)
        found = [(column, hints[column.attribute]) for column in columns]
    except (TypeError, NameError, KeyError) as error:  # generic classes, for example
        raise _Unplanned from error
    return tuple(
        _Field(
            column,
            _value(
                hint,
                column.kind,
                column.type,
                nullable=column.nullable and not column.left_out,
                convert=column.convert,
                depth=depth,
            ),
        )
        for column, hint in found
    )


def hash_of(name: bytes) -> int:
    """Return the hash of a name, as the kernel does."""
    long = len(name) >= 8
    first = int.from_bytes(name[:8], "little") if long else int.from_bytes(name, "big")
    last = int.from_bytes(name[-8:], "little") if long else 0
    first, last = first ^ first >> 32, last ^ last >> 32
    return (first * kernel.FACTOR + last * kernel.OTHER_FACTOR + len(name)) % 2**64 >> 40


class WalkTables:
    """The tables of the compiled walk for one type.

    Attributes:
        layout: the slots of the columns.
        columns: those of the fields of the type.
        values: how the value in each slot column is read.
        defaults: the field in each slot column.
        odd: for each slot column `1 << kind` of what its slots do not hold, see `JsonScratch.others`.
        maps: how many maps are inside of each other.
        program: the tables.
    """

    def __init__(self, fields: tuple[_Field, ...], *, closed: bool) -> None:
        """`closed`: unknown fields are refused."""
        self.layout = SlotLayout()
        self.values: dict[int, _Value] = {}
        self.defaults: dict[int, SchemaField] = {}
        self._lines: list[list[int]] = []
        self._table: list[int] = []
        self._nulls: list[int] = []
        self._names = bytearray()
        root = _Value(None, pa.null(), nullable=False, convert=None)
        root.code, root.fields, root.closed = nodes.OBJECT, fields, closed
        self._lines.append([0] * nodes.NODE_WIDTH)
        self._fill(0, root, 0, 0)
        of_maps = [line for line in self._lines if line[nodes.CODE] == nodes.PAIRS]
        self.maps = max((line[nodes.MASK] + 1 for line in of_maps), default=0)
        self.columns = [field.value.column for field in fields]
        self.odd = np.full(len(self.layout.tables.levels), _NOT_SIMPLE, np.uint8)
        for column, field in self.defaults.items():
            if field.default not in (None, msgspec.NODEFAULT):
                self.odd[column] |= _MISSING
        names = np.frombuffer(bytes(self._names), np.uint8)
        self.program = kernel.JsonProgram(
            np.array(self._lines, np.int64),
            np.array(self._table, np.int64),
            np.array(self._nulls, np.int64),
            names,
            np.array([names.ctypes.data], np.int64),
        )

    def _fill(self, at: int, value: _Value, level: int, maps: int) -> None:
        """Complete the line of a value, and add those of the values inside it."""
        line = self._lines[at]
        line[nodes.CODE], line[nodes.NULLABLE] = value.code, int(value.nullable)
        line[nodes.LOW], line[nodes.HIGH] = value.low, value.high
        line[nodes.TO], line[nodes.AT] = value.column.first, level
        line[nodes.CLOSED] = int(value.closed)
        if value.code == nodes.OBJECT:
            line[nodes.FIELDS], line[nodes.COUNT] = len(self._lines), len(value.fields)
            self._lines += [[0] * nodes.NODE_WIDTH for _ in value.fields]
            for position, field in enumerate(value.fields, line[nodes.FIELDS]):
                self._add_column(field.value, level)
                self.defaults[field.value.column.first] = field.column
                default = field.column.default
                name = field.column.key.encode()
                own = self._lines[position]
                own[nodes.REQUIRED] = int(field.column.required or default is msgspec.NODEFAULT)
                own[nodes.NAME], own[nodes.NAME_SIZE] = len(self._names), len(name)
                self._names += name
                self._fill(position, field.value, level, maps)
            value.column.children = [field.value.column for field in value.fields]
            self._hash(line)
        elif value.item is not None:
            inner = self.layout.child_level(value.column)
            children = []
            if value.code == nodes.PAIRS:
                key = self.layout.add("text", pa.string(), inner, "")
                line[nodes.KEY], line[nodes.MASK] = key.first, maps
                children, maps = [key], maps + 1
            self._add_column(value.item, inner)
            line[nodes.ITEM], line[nodes.INNER] = len(self._lines), inner
            self._lines.append([0] * nodes.NODE_WIDTH)
            self._fill(line[nodes.ITEM], value.item, inner, maps)
            value.column.children = [*children, value.item.column]
        nulls = list(value.column.nullable())
        line[nodes.NULLS], line[nodes.NULL_COUNT] = len(self._nulls), len(nulls)
        self._nulls += nulls

    def _add_column(self, value: _Value, level: int) -> None:
        value.column = self.layout.add(value.kind, value.stored, level, "")
        is_checked = value.allowed is not None or value.pattern is not None
        if value.code == nodes.RAW or is_checked or value.stored != value.type:
            value.column.is_flat = False
        self.values[value.column.first] = value

    def _hash(self, line: list[int]) -> None:
        size = 1 << (2 * line[nodes.COUNT]).bit_length()
        entries = [-1] * size
        for node in range(line[nodes.FIELDS], line[nodes.FIELDS] + line[nodes.COUNT]):
            begin = self._lines[node][nodes.NAME]
            name = bytes(self._names[begin : begin + self._lines[node][nodes.NAME_SIZE]])
            place = hash_of(name) & (size - 1)
            while entries[place] >= 0:
                place = (place + 1) & (size - 1)
            entries[place] = node
        line[nodes.TABLE], line[nodes.MASK] = len(self._table), size - 1
        self._table += entries


@lru_cache(maxsize=256)
def plan_of(source: type | pa.Schema) -> WalkTables | None:
    """Return the plan of a type; None if the walk cannot read it (pydantic, attrs, `__post_init__`)."""
    rows = row_type(source)
    if rows.info is None:
        return None
    try:
        fields = _fields(rows.cls, rows.info, rows.columns, 0)
    except _Unplanned:
        return None
    return WalkTables(fields, closed=_is_closed(rows.info))


def walk(plan: WalkTables, schema: pa.Schema, values: Any) -> WalkedColumns:
    """Decode a binary column of JSON objects to the columns of a plan, which a schema names."""
    raw = raw_values(values)
    entries = np.zeros(len(values), np.int64)
    if raw.nulls is not None:
        entries[raw.nulls] = NULL
    batch = batch_of(raw.data, len(raw.data), raw.offsets.astype(np.int64), entries)
    slots = _Cells(plan, raw.data, len(values))
    code = CompiledDecoder(
        kernel.kernel(), plan.program, slots.scratch, raw.data[:0], lambda *_: ""
    )
    run(code, batch, slots)
    slots.left = batch.statuses.view(np.bool_)
    if raw.nulls is not None or np.count_nonzero(slots.left):
        slots.scratch.others[:] |= 1 << nodes.NULL

    def bad(column: SlotColumn, items: NDArray[np.int64], reason: str) -> None:
        slots.leave(column, items)

    return WalkedColumns(slots.batch(plan.columns, schema, raw.data, bad), slots.left)


class _Cells(Slots):
    """The slots of a batch; `left` gets the rows that msgspec must decide on."""

    def __init__(self, plan: WalkTables, data: NDArray[np.uint8], rows: int) -> None:
        super().__init__(plan.layout, rows)
        self.valid.fill(nodes.MISSING)
        self.left = np.zeros(rows, np.bool_)
        self.scratch = kernel.scratch(len(plan.program.nodes), len(self.table), plan.maps)
        self._plan = plan
        self._data = data

    def leave(self, column: SlotColumn, items: NDArray[np.int64]) -> None:
        """Leave the rows of some items to msgspec."""
        self.left[self.rows_of(column, items)] = True

    def simple(self) -> NDArray[np.bool_]:
        """Return which slot columns hold only what the walk has read, and nulls."""
        simple: NDArray[np.bool_] = self.scratch.others & self._plan.odd == 0
        return simple

    def array(self, column: SlotColumn, data: NDArray[np.uint8], bad: Bad) -> Any:
        """Return a column: what the walk has read, defaults, and the rest by msgspec."""
        value = self._plan.values.get(column.first)
        if value is None:  # the keys of a map
            return super().array(column, data, bad)
        others = []
        found = self.is_valid(column.first).view(np.uint8)
        if self.scratch.others[column.first] & self._plan.odd[column.first]:
            others = list(self._others(column, value, found.copy()))
            found[:] = (found == nodes.VALUE) | (found == nodes.ESCAPED)
        elif self.scratch.others[column.first] & _MISSING:
            found[:] = found == nodes.VALUE
        if value.code == nodes.RAW:
            array = _pa.nulls(int(self.cursors[column.level]), value.type)
        elif self.scratch.others[column.first] & 1 << nodes.ESCAPED:
            array = self._texts(column)
        else:
            array = super().array(column, data, bad)
        if value.allowed is not None or value.pattern is not None:
            self._check_texts(column, value, array)
        if array.type != value.type:
            array = self._cast(column, value, array)
        for rows, values in others:
            array = splice(array, rows, values)
        return array

    def bitmap(self, column: int) -> pa.Buffer | None:
        """Return the validity of a column; None if no value is null."""
        return super().bitmap(column) if self.scratch.others[column] else None

    def _texts(self, column: SlotColumn) -> Any:
        """Return a column of texts, of which some have escapes."""
        valid = self.is_valid(column.first)
        offsets, texts, wrong = copy_texts(self._data, self.of(column.first), valid)
        self.leave(column, wrong)
        if not len(offsets):
            self.leave(column, np.arange(len(valid)))
            return _pa.nulls(len(valid), column.type)
        buffers = [self.bitmap(column.first), _pa.py_buffer(offsets), _pa.py_buffer(texts)]
        array, wrong = valid_texts(_pa.Array.from_buffers(pa.string(), len(valid), buffers))
        self.leave(column, wrong)
        return array

    def _others(
        self, column: SlotColumn, value: _Value, found: NDArray[np.uint8]
    ) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """Yield the rows that hold no plain value, with their values."""
        rows = np.flatnonzero(found == nodes.ODD)
        if len(rows):
            yield rows, self._decoded(column, value, rows)
        default = self._plan.defaults.get(column.first)
        if default is not None and default.default not in (None, msgspec.NODEFAULT):
            rows = np.flatnonzero(found == nodes.MISSING)
            if len(rows):
                one = default.convert(default.default) if default.convert else default.default
                yield rows, pa.array([one] * len(rows), value.type)

    def _check_texts(self, column: SlotColumn, value: _Value, texts: Any) -> None:
        """Leave rows to msgspec whose text is not allowed."""
        good: Any
        if value.allowed is not None:
            good = _pc.or_(_pc.is_in(texts, value_set=value.allowed), texts.is_null())
        else:
            good = _pc.match_substring_regex(texts, value.pattern).fill_null(True)  # noqa: FBT003
        self.leave(column, np.flatnonzero(~good.to_numpy(zero_copy_only=False).astype(np.bool_)))

    def _cast(self, column: SlotColumn, value: _Value, array: Any) -> Any:
        if value.code != nodes.FLOAT:
            return array.cast(value.type)
        made = fit(array, value.type)
        if made.bad is not None:
            self.leave(column, np.flatnonzero(made.bad))
        return made.array

    def _decoded(self, column: SlotColumn, value: _Value, rows: NDArray[np.int64]) -> Any:
        """Decode the values of some rows one by one."""
        decode, convert, data = value.decode, value.convert, self._data.data
        objects: list[Any] = []
        wrong: list[int] = []
        pieces = self.of(column.first)[rows]
        starts = pieces >> 32
        ends = starts + (pieces & 0xFFFFFFFF)
        for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            text = data[start:end]
            if (value.has_times and FINE.search(text)) or (
                value.has_floats and LARGE_OR_TINY.search(text)
            ):
                objects.append(None)
                wrong.append(at)
                continue
            try:
                each = decode(text)
                objects.append(each if convert is None or each is None else convert(each))
            except BaseException as error:  # noqa: BLE001  the row's own decoder says why
                as_exception(error)
                objects.append(None)
                wrong.append(at)
        refused: dict[int, str] = {}
        found = to_column(objects, value.type, refused)
        self.leave(column, rows[[*wrong, *refused]])
        return found


def splice(column: Any, rows: NDArray[np.int64], values: Any) -> Any:
    """Replace some rows of a column."""
    if len(rows) == len(column):
        return values
    indices = np.arange(len(column))
    indices[rows] = len(column) + np.arange(len(rows))
    return _pa.concat_arrays([column, values]).take(_pa.array(indices))
