"""Avro schemas of Arrow schemas and of users' types."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...columns.kinds import is_text
from ...errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..schemas import RowType
    from .schema import Schema

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def avro_schema(schema: pa.Schema, name: str) -> Schema:
    """Return the schema of rows: a record; a nullable column is a union with null, null by default.

    Args:
        name: of the record; characters that Avro does not allow become `_`.

    Raises:
        StrategyError: a column has a name or a type that Avro does not have.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return _record(list(schema), name if _NAME.fullmatch(name) else f"_{name}", "")


def schema_of_type(rows: RowType) -> Schema:
    """Return the reader's schema of a user's type; a field's name in encoded values is its alias."""
    schema = avro_schema(rows.schema, getattr(rows.source, "__name__", "Row"))
    for field, column in zip(schema["fields"], rows.columns, strict=True):
        if column.key != column.name:
            field["aliases"] = [column.key]
        if not column.required and isinstance(column.default, bool | int | float | str):
            field["default"] = column.default
            if isinstance(field["type"], list):  # a default is of the first branch
                field["type"] = field["type"][::-1]
    return schema


def _record(fields: list[Any], name: str, path: str) -> Schema:
    return {
        "type": "record",
        "name": name,
        "fields": [_field(each, name, f"{path}{each.name}") for each in fields],
    }


def _field(field: Any, name: str, path: str) -> Schema:
    if not _NAME.fullmatch(field.name):
        raise StrategyError(f"column {path}: Avro's names have letters, digits and _; rename it")
    kind = _type(field.type, f"{name}_{field.name}", path)
    if not field.nullable or kind == "null":
        return {"name": field.name, "type": kind}
    return {"name": field.name, "type": ["null", kind], "default": None}


def _items(field: Any, name: str, path: str) -> Schema:
    kind = _type(field.type, name, path)
    return ["null", kind] if field.nullable and kind != "null" else kind


def _type(kind: Any, name: str, path: str) -> Schema:
    types: Any = pa.types
    for matches, schema in _TYPES:
        if matches(kind):
            return schema
    if types.is_timestamp(kind):
        unit = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}[kind.unit]
        zone = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{zone}timestamp-{unit}"}
    if types.is_decimal(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": name, "size": kind.byte_width}
    if types.is_dictionary(kind):
        return _type(kind.value_type, name, path)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"type": "array", "items": _items(kind.value_field, name, path)}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": _items(kind.item_field, name, path)}
    if types.is_struct(kind):
        return _record([kind.field(at) for at in range(kind.num_fields)], name, f"{path}.")
    raise StrategyError(f"column {path}: Avro has no type for {kind}")


_TYPES: Final[tuple[tuple[Callable[[Any], bool], Schema], ...]] = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (
        lambda kind: pa.types.is_integer(kind) and str(kind) not in {"int64", "uint32", "uint64"},
        "int",
    ),
    (pa.types.is_integer, "long"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (is_text, "string"),
    (lambda kind: str(kind) in {"binary", "large_binary", "binary_view"}, "bytes"),
    (pa.types.is_date, {"type": "int", "logicalType": "date"}),
    (pa.types.is_time32, {"type": "int", "logicalType": "time-millis"}),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)
