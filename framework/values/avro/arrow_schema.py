"""Avro schemas of Arrow schemas, and rows as fastavro encodes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...errors import StrategyError
from .schema import RECORDS, branch_names, resolve, type_of, without_null

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..schemas import RowType
    from .schema import NamedTypes, Schema

_pa: Any = pa
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
    (lambda kind: str(kind) in {"string", "large_string", "string_view"}, "string"),
    (lambda kind: str(kind) in {"binary", "large_binary", "binary_view"}, "bytes"),
    (pa.types.is_date, {"type": "int", "logicalType": "date"}),
    (pa.types.is_time32, {"type": "int", "logicalType": "time-millis"}),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)


def to_datums(rows: pa.Table, schema: Schema, named: NamedTypes) -> Iterator[Any]:
    """Yield each row as fastavro encodes it.

    Maps become dicts, and structs of the branches of a union the branch that is not null. A schema that is
    not a record is written from the column `value`.
    """
    schema = resolve(schema, named)
    is_record = type_of(schema) in RECORDS
    if not is_record:
        schema = {"type": "record", "fields": [{"name": "value", "type": schema}]}
    convert = _converter(schema, named)
    for row in _with_integers(rows).to_pylist():
        datum = row if convert is None else convert(row)
        yield datum if is_record else datum["value"]


def _with_integers(rows: Any) -> Any:
    """Return times in nanoseconds as integers: Python has no such times."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            rows = rows.set_column(at, field.name, rows.column(at).cast(pa.int64()))
    return rows


def _converter(schema: Schema, named: NamedTypes) -> Callable[[Any], Any] | None:
    """Return a function from Arrow's Python values to fastavro's; None where they are the same."""
    schema = resolve(schema, named)
    match type_of(schema):
        case "union":
            return _union_converter(without_null(schema), named)
        case "array":
            each = _converter(schema["items"], named)
            return each and (lambda items: [each(item) for item in items])
        case "map":
            of_value = _converter(schema["values"], named) or (lambda value: value)
            return lambda pairs: {key: of_value(value) for key, value in dict(pairs).items()}
        case "record" | "error":
            fields = {
                field["name"]: convert
                for field in schema["fields"]
                if (convert := _converter(field["type"], named)) is not None
            }
            if not fields:
                return None
            return lambda row: {
                **row,
                **{name: convert(row[name]) for name, convert in fields.items() if name in row},
            }
        case _:
            return None


def _union_converter(rest: Schema, named: NamedTypes) -> Callable[[Any], Any] | None:
    if not isinstance(rest, list):
        convert = _converter(rest, named)
        return convert and (lambda value: None if value is None else convert(value))
    branches = [resolve(each, named) for each in rest]
    names = branch_names(branches)
    by_name = {
        name: (each.get("name", name) if isinstance(each, dict) else name, _converter(each, named))
        for name, each in zip(names, branches, strict=True)
    }

    def chosen(value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() - by_name.keys():
            return value  # not a struct of branches: fastavro chooses
        for name, (full, convert) in by_name.items():
            if value.get(name) is not None:
                return full, convert(value[name]) if convert else value[name]
        return None

    return chosen
