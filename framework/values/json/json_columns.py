"""JSON objects to columns: the tables of the compiled walk, and columns of what it found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from ..decoding.slots import gather
from ..python_columns import to_column
from ..schemas import row_type
from . import json_kernel as kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ..schemas import Column

__all__ = ["Places", "Plan", "Walked", "places_of", "plan_of", "walk"]

_pa: Any = pa
_pc: Any = pc
_INT64 = np.iinfo(np.int64)
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_NONE: Final = np.empty(0, np.int64)
_TEXTS: Final = (pa.string(), pa.large_string())


class Places(NamedTuple):
    """Where the JSON texts are: `starts` and `ends` in `data`; a negative start is a null value."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Walked(NamedTuple):
    """The columns of some texts, and which rows are left to msgspec: what they hold there is undefined."""

    columns: list[Any]
    left: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Reader:
    """How the cells of one column are read.

    Attributes:
        decode: the decoder of one cell, for what the walk does not read.
        allowed: the only texts that are valid; None: all.
        pattern: what a text must match; None: all do.
        nested: the plan of an object inside the object.
    """

    column: Column
    code: int
    decode: Callable[[Any], Any]
    low: int = _INT64.min
    high: int = _INT64.max
    allowed: pa.Array[Any] | None = None
    pattern: str | None = None
    nested: Plan | None = None


class Plan:
    """The tables of the compiled walk for one type."""

    def __init__(self, readers: Sequence[_Reader], *, closed: bool) -> None:
        """`closed`: unknown fields are refused."""
        self.readers = tuple(readers)
        self.closed = closed
        names = [reader.column.key.encode() for reader in readers]
        self.names = np.frombuffer(bytearray(b"".join(names) or b" "), np.uint8)
        self.name_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        self.fields = np.array(
            [
                (
                    reader.code,
                    reader.column.nullable,
                    reader.column.required or reader.column.default is msgspec.NODEFAULT,
                    reader.low,
                    reader.high,
                )
                for reader in readers
            ],
            np.int64,
        ).reshape(len(names), 5)


@lru_cache(maxsize=256)
def plan_of(source: type | pa.Schema) -> Plan | None:
    """Return the plan of a type; None if only its own decoder has its rules (pydantic, `__post_init__`)."""
    rows = row_type(source)
    return None if rows.info is None else _plan(rows.cls, rows.info, rows.columns)


def _plan(cls: type, info: inspect.Type, columns: Sequence[Column]) -> Plan | None:
    if hasattr(cls, "__post_init__") or getattr(info, "tag", None) is not None:
        return None
    try:
        hints = get_type_hints(cls, include_extras=True)
        readers = [_reader(column, hints[column.attribute]) for column in columns]
    except (TypeError, NameError, KeyError):  # generic classes, for example
        return None
    return Plan(readers, closed=getattr(info, "forbid_unknown_fields", False))


def _reader(column: Column, hint: Any) -> _Reader:
    kind, arrow = column.kind, column.type
    decode = msgspec.json.Decoder(hint).decode
    given = {name: getattr(kind, name) for name in kind.__struct_fields__}
    bare = all(value is None for value in given.values())
    match kind:
        case inspect.StrType() if bare and arrow in _TEXTS:
            return _Reader(column, kernel.TEXT, decode)
        case inspect.IntType() if kind.multiple_of is None and _pa.types.is_integer(arrow):
            low, high = _bounds(kind)
            return _Reader(column, kernel.INTEGER, decode, low, high)
        case inspect.FloatType() if bare and arrow in (pa.float64(), pa.float32()):
            return _Reader(column, kernel.FLOAT, decode)
        case inspect.BoolType() if arrow == pa.bool_():
            return _Reader(column, kernel.BOOLEAN, decode)
        case inspect.DateTimeType() if bare and arrow == pa.timestamp("us", tz="UTC"):
            return _Reader(column, kernel.DATETIME, decode)
        case inspect.DateType() if arrow == pa.date32():
            return _Reader(column, kernel.DATE, decode)
        case inspect.UUIDType() if arrow in _TEXTS:
            return _Reader(column, kernel.TEXT, decode, pattern=_UUID)
        case inspect.EnumType() if arrow in _TEXTS:
            allowed = pa.array([member.value for member in kind.cls], arrow)
            return _Reader(column, kernel.TEXT, decode, allowed=allowed)
        case inspect.LiteralType() if arrow in _TEXTS:
            return _Reader(column, kernel.TEXT, decode, allowed=pa.array(kind.values, arrow))
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() if (
            column.columns and _pa.types.is_struct(arrow)
        ):
            nested = _plan(kind.cls, kind, column.columns)
            return _Reader(column, kernel.RAW, decode, nested=nested)
    return _Reader(column, kernel.RAW, decode)


def _bounds(kind: inspect.IntType) -> tuple[int, int]:
    low = max(
        _INT64.min if kind.ge is None else kind.ge, _INT64.min if kind.gt is None else kind.gt + 1
    )
    high = min(
        _INT64.max if kind.le is None else kind.le, _INT64.max if kind.lt is None else kind.lt - 1
    )
    return low, high


def places_of(values: Any) -> Places:
    """Return where the values of a binary column are."""
    rows, begin = len(values), values.offset
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[begin : begin + rows + 1].astype(np.int64)
    starts = ends[:-1]
    if values.null_count:
        starts = starts.copy()
        starts[values.is_null().to_numpy(zero_copy_only=False)] = -1
    found = np.frombuffer(data if data is not None and data.size else b" ", np.uint8)
    found.flags.writeable = False  # the kernel is compiled once, for arrays of one type
    return Places(found, starts.copy(), ends[1:].copy())


def walk(plan: Plan, places: Places) -> Walked:
    """Decode JSON objects to the columns of a plan."""
    cells, kinds, others, left = kernel.parse(
        *places, plan.names, plan.name_ends, plan.fields, plan.closed
    )
    left = left.view(np.bool_)
    columns = [
        _Cells(reader, places, cells[field], kinds[field], left).column(int(others[field]))
        for field, reader in enumerate(plan.readers)
    ]
    return Walked(columns, left)


class _Cells:
    """The cells of one column. `left` gets the rows that its own decoder refuses, too."""

    def __init__(
        self,
        reader: _Reader,
        places: Places,
        cells: NDArray[np.int64],
        kinds: NDArray[np.uint8],
        left: NDArray[np.bool_],
    ) -> None:
        self._reader = reader
        self._places = places
        self._cells = cells
        self._kinds = kinds
        self._left = left

    def column(self, others: int) -> Any:
        """Return the column; `others` is the number of cells that hold no value."""
        reader = self._reader
        column = reader.column
        odd = np.flatnonzero((self._kinds == kernel.ODD) & ~self._left) if others else _NONE
        if reader.nested is not None:
            found = self._objects(reader.nested)
        elif reader.code == kernel.RAW:
            found = _pa.nulls(len(self._cells), column.type)
        else:
            found = self._values(others)
        if len(odd) and reader.nested is None:
            found = splice(found, odd, self._decoded(odd))
        if others and column.default is not None and column.default is not msgspec.NODEFAULT:
            missing = (self._kinds == kernel.MISSING) & (self._places.starts >= 0)
            rows = np.flatnonzero(missing)
            if len(rows):
                default = column.convert(column.default) if column.convert else column.default
                found = splice(found, rows, pa.array([default] * len(rows), column.type))
        return found

    def _values(self, others: int) -> Any:
        """Return the values that the walk has read; the other cells are null."""
        reader, rows = self._reader, len(self._cells)
        is_value = self._kinds == kernel.VALUE
        valid = _pa.py_buffer(np.packbits(is_value, bitorder="little")) if others else None
        arrow = reader.column.type
        if reader.code == kernel.TEXT:
            offsets, data, _ = gather(self._places.data, self._cells, is_value)
            found = _pa.Array.from_buffers(
                pa.string(), rows, [valid, _pa.py_buffer(offsets), _pa.py_buffer(data)]
            )
            self._check_texts(found)
        elif reader.code == kernel.BOOLEAN:
            bits = np.packbits(self._cells.astype(np.bool_), bitorder="little")
            found = _pa.Array.from_buffers(arrow, rows, [valid, _pa.py_buffer(bits)])
        elif reader.code == kernel.DATE:
            days = self._cells.astype(np.int32)
            found = _pa.Array.from_buffers(arrow, rows, [valid, _pa.py_buffer(days)])
        else:
            stored = {kernel.INTEGER: pa.int64(), kernel.FLOAT: pa.float64()}.get(
                reader.code, arrow
            )
            found = _pa.Array.from_buffers(stored, rows, [valid, _pa.py_buffer(self._cells)])
        return found if found.type == arrow else found.cast(arrow)

    def _check_texts(self, found: Any) -> None:
        """Leave rows to msgspec whose text is not allowed."""
        reader = self._reader
        good: Any = None
        if reader.allowed is not None:
            good = _pc.is_in(found, value_set=reader.allowed.cast(pa.string()))
        elif reader.pattern is not None:
            good = _pc.match_substring_regex(found, reader.pattern).fill_null(True)  # noqa: FBT003
        if good is not None:
            refused = ~good.to_numpy(zero_copy_only=False).astype(np.bool_)
            self._left |= refused & (self._kinds == kernel.VALUE)

    def _objects(self, plan: Plan) -> Any:
        """Return nested objects as a column of structs."""
        is_there = (self._kinds == kernel.ODD) & ~self._left
        starts = np.where(is_there, self._cells >> 32, -1)
        columns, left = walk(
            plan,
            Places(self._places.data, starts, starts + (self._cells & 0xFFFFFFFF)),
        )
        self._left |= left
        column = self._reader.column
        fields: Any = list(column.type)  # type: ignore[call-overload]
        return _pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(~is_there))

    def _decoded(self, rows: NDArray[np.int64]) -> Any:
        """Decode the cells of some rows one by one."""
        column, decode = self._reader.column, self._reader.decode
        data = self._places.data.data
        objects: list[Any] = []
        starts = self._cells[rows] >> 32
        ends = starts + (self._cells[rows] & 0xFFFFFFFF)
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            try:
                value = decode(data[start:end])
                objects.append(
                    value if column.convert is None or value is None else column.convert(value)
                )
            except Exception:  # noqa: BLE001  the row's own decoder says why
                objects.append(None)
                self._left[row] = True
        refused: dict[int, str] = {}
        found = to_column(objects, column.type, refused)
        self._left[rows[list(refused)]] = True
        return found


def splice(column: Any, rows: NDArray[np.int64], values: Any) -> Any:
    """Replace some rows of a column."""
    if len(rows) == len(column):
        return values
    indices = np.arange(len(column))
    indices[rows] = len(column) + np.arange(len(rows))
    return _pa.concat_arrays([column, values]).take(_pa.array(indices))
