"""Encode rows as JSON: types are converted by columns, not cell by cell."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BASE64", "json_lines", "json_objects"]

BASE64 = "base64:"
"""Prefix of bytes that are not UTF-8, before their base64."""


def json_lines(table: pa.Table) -> bytes:
    """Encode each row as a JSON object and a line feed.

    Bytes become text where they are UTF-8, else `base64:...`; timestamps ISO 8601, in UTC if they have
    a zone; infinity and NaN null.
    """
    return msgspec.json.Encoder().encode_lines(_structs(table)) if table.num_rows else b""


def json_objects(table: pa.Table) -> list[bytes]:
    """Encode each row as a JSON object, as in `json_lines`."""
    encoder = msgspec.json.Encoder()
    return list(map(encoder.encode, _structs(table)))


def _structs(table: pa.Table) -> Sequence[msgspec.Struct]:
    """Make structs of the rows, of a type for these columns: msgspec encodes them fastest."""
    if not table.num_columns:
        empty = msgspec.defstruct("Row", [])
        return [empty() for _ in range(table.num_rows)]
    # A column's name need not be a Python identifier.
    fields = [(f"c{position}", object) for position in range(table.num_columns)]
    rename = {field: name for (field, _), name in zip(fields, table.column_names, strict=True)}
    row = msgspec.defstruct("Row", fields, rename=rename, gc=False)
    columns = (readable(column.combine_chunks()).to_pylist() for column in table.columns)
    return list(map(row, *columns))


def readable(array: pa.Array[Any]) -> pa.Array[Any]:
    """Convert to types that JSON has, down to the children of nested types."""
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _as_text(array)
    if pa.types.is_fixed_size_binary(kind):
        return _as_text(array.cast(pa.binary()))
    if pa.types.is_timestamp(kind):
        moment = array.cast(pa.timestamp(kind.unit, "UTC")) if kind.tz is not None else array
        return pc.replace_substring(moment.cast(pa.string()), " ", "T", max_replacements=1)
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return array.cast(pa.string())
    if pa.types.is_duration(kind):
        return array.cast(pa.int64())
    if pa.types.is_dictionary(kind):
        return readable(array.cast(kind.value_type))
    if pa.types.is_map(kind):
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _list(array.cast(pa.list_(entry)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(array)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        children = [readable(pc.struct_field(array, [at])) for at in range(len(names))]
        return pa.StructArray.from_arrays(children, names, mask=array.is_null())
    return array


def _as_text(array: pa.Array[Any]) -> pa.Array[Any]:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_text, array.to_pylist()), pa.string())


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return BASE64 + base64.b64encode(value).decode()


def _list(array: pa.Array[Any]) -> pa.Array[Any]:
    lengths = pc.list_value_length(array)
    ends = pc.cumulative_sum(pc.fill_null(lengths, 0))
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
    values = readable(pc.list_flatten(array))
    made = pa.LargeListArray if pa.types.is_large_list(array.type) else pa.ListArray
    return made.from_arrays(offsets, values, mask=array.is_null())
