"""Arrow columns in PostgreSQL's types, and the text that COPY reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ...errors import StrategyError
from ..casts import is_list, is_text
from ..json_rows import readable
from ..parquet.columns import TYPE_NAME, Fitted, fit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["Column", "column_type", "copy_text", "fit_rows"]

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.uint8(): "smallint",
    pa.int16(): "smallint",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "bigint",
    pa.int64(): "bigint",
    pa.uint64(): "numeric(20, 0)",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.date64(): "date",
}


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        type_name: with its arguments, for messages: `numeric(10,2)`.
        kind: the type's own name: `int8`, `jsonb`.
        digits: precision and scale of a `numeric` that has them.
        nullable: whether null fits.
        has_default: whether rows may lack it.
    """

    name: str
    type_name: str
    kind: str
    digits: tuple[int, int] | None = None
    nullable: bool = True
    has_default: bool = False

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type whose values are cast here; text for types that the server casts."""
        if self.kind == "numeric" and self.digits is not None and self.digits[0] <= 38:
            return pa.decimal128(*self.digits)
        return _ARROW.get(self.kind, pa.string())


def column_type(kind: Any) -> str:
    """Return the PostgreSQL type for an Arrow type; lists, structs and maps become `jsonb`.

    Raises:
        StrategyError: there is none.
    """
    if kind in _TYPES:
        return _TYPES[kind]
    if isinstance(kind, pa.UuidType):
        return "uuid"
    if pa.types.is_dictionary(kind):
        return column_type(kind.value_type)
    if is_text(kind):
        return "text"
    if _is_bytes(kind):
        return "bytea"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    if pa.types.is_time(kind):
        return "time"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if _is_nested(kind):
        return "jsonb"
    raise StrategyError(f"PostgreSQL has no type for Arrow's {kind}")


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_nested(kind: pa.DataType) -> bool:
    return is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)


def fit_rows(rows: pa.Table, columns: Sequence[Column], destination: str) -> Fitted:
    """Cast rows to the columns of a table; rows with a value that does not fit are left out.

    Integers must keep their value; times are cut to microseconds; a time without a zone is UTC.

    Raises:
        StrategyError: a column's type cannot become that of the table, whatever the values are.
    """
    prepared = {}
    for column in columns:
        array: Any = rows.column(column.name).combine_chunks()
        target = column.arrow
        if pa.types.is_temporal(target) and not (
            pa.types.is_temporal(array.type) or is_text(array.type) or pa.types.is_null(array.type)
        ):
            raise StrategyError(
                f"column {column.name} of {destination} is {column.type_name}, but the rows have "
                f"{array.type}: return times, or text in ISO 8601"
            )
        prepared[column.name] = _prepare(array, column)
    table = pa.table(prepared)
    refused: dict[int, str] = {}
    for column in columns:
        nulls: Any = prepared[column.name]
        if not column.nullable and nulls.null_count:
            reason = f"column {column.name} ({column.type_name}) cannot be null"
            for row in np.flatnonzero(nulls.is_null().to_numpy(zero_copy_only=False)).tolist():
                refused.setdefault(row, reason)
    left = np.arange(table.num_rows)
    if refused:
        left = np.delete(left, list(refused))
        table = table.take(left)
    schema = pa.schema(
        [
            pa.field(column.name, column.arrow, metadata={TYPE_NAME: column.type_name.encode()})
            for column in columns
        ]
    )
    fitted = fit(table, schema, destination)
    refused |= {int(left[row]): reason for row, reason in fitted.refused.items()}
    return Fitted(fitted.table, refused)


def _prepare(array: Any, column: Column) -> Any:
    """Convert to a type that `fit` casts."""
    if isinstance(array, pa.ExtensionArray):
        array = (
            _hexadecimal(array.storage) if isinstance(array.type, pa.UuidType) else array.storage
        )
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if _is_nested(kind):
        encode = msgspec.json.encode
        values = [None if v is None else encode(v).decode() for v in readable(array).to_pylist()]
        return pa.array(values, pa.string())
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        to = pa.timestamp("us", kind.tz)
        return array.cast(options=pc.CastOptions(to, allow_time_truncate=True))
    if pa.types.is_decimal(column.arrow) and pa.types.is_integer(kind):
        # Arrow refuses the whole column unless the type has room for the widest integer
        return pc.cast(array, pa.decimal256(min(76, 20 + column.arrow.scale), column.arrow.scale))
    if kind in (pa.string_view(), pa.binary_view()):
        return array.cast(pa.string() if is_text(kind) else pa.binary())
    return array


def _hexadecimal(array: Any) -> Any:
    values = array.cast(pa.binary()).to_pylist()
    return pa.array([None if value is None else value.hex() for value in values], pa.string())


def copy_text(table: pa.Table) -> bytes:
    """Encode rows as CSV for COPY: null is empty, text is quoted."""
    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        array: Any = column.combine_chunks()
        if pa.types.is_binary(array.type):
            array = pc.binary_join_element_wise("\\x", _hexadecimal(array), "")
        columns[name] = array
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.table(columns), sink, csv.WriteOptions(include_header=False))
    return sink.getvalue().to_pybytes()
