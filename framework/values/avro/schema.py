"""Avro schemas as fastavro parses them: their types, names and defaults."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import fastavro
import pyarrow as pa

from ...columns.kinds import is_text
from ...errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..schemas import RowType


Schema: TypeAlias = Any
"""A schema as fastavro parses it: a name, a list (union) or a dict."""

NamedTypes: TypeAlias = dict[str, dict[str, Any]]
"""Definitions by full name."""

RECORDS: Final = {"record", "error"}
UNITS: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
"""Of times, in a second."""


class Unresolvable(StrategyError):
    """Values of the writer's schema cannot be read as the reader's schema."""


def parse(schema: Schema, named: NamedTypes) -> Schema:
    """Check a schema, and give all names their namespaces.

    Args:
        schema: JSON as Python values.
        named: by full name, the types that the schema may refer to; its own are added.

    Raises:
        StrategyError: the schema is not valid.
    """
    try:
        parsed = fastavro.parse_schema(schema, named_schemas=named)
        _check(parsed)
    except (
        fastavro.schema.SchemaParseException, KeyError, TypeError, ValueError, RecursionError
    ) as error:  # fmt: skip
        raise StrategyError(f"the Avro schema is not valid: {error!r}") from error
    return parsed


def _check(schema: Schema) -> None:
    """Raise ValueError for mistakes that fastavro accepts."""
    if isinstance(schema, list):
        if any(isinstance(each, list) for each in schema):
            raise ValueError("a union is a branch of a union")
        _refuse_doubles("branch", [_full_name(each) for each in schema])
        for each in schema:
            _check(each)
    elif isinstance(schema, dict):
        for key in ("type", "items", "values"):
            _check(schema.get(key))
        if schema["type"] == "fixed" and (type(schema["size"]) is not int or schema["size"] < 0):
            raise ValueError(f"the size of {schema['name']} is {schema['size']!r}")
        fields = schema.get("fields", ())
        _refuse_doubles("field", [field["name"] for field in fields])
        for field in fields:
            _check(field["type"])


def _refuse_doubles(what: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"there are two of {what} {name}")


def _full_name(schema: Schema) -> str:
    return str(schema["name"]) if _is_named(schema) else type_of(schema)


def resolve(schema: Schema, named: NamedTypes) -> Schema:
    """Return the definition of a name, and the type inside `{"type": ...}`."""
    if isinstance(schema, str):
        return named.get(schema, schema)
    if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
        return resolve(schema["type"], named)
    return schema


def type_of(schema: Schema) -> str:
    """Return the name of a type: `record`, `union`, `int`."""
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, dict) else schema)


_LOGICAL: Final = {
    "int": {"date", "time-millis"},
    "long": {
        f"{kind}-{unit}" for kind in ("timestamp", "local-timestamp") for unit in UNITS
    } | {"time-micros"},
    "bytes": {"decimal"},
    "fixed": {"decimal"},
}  # fmt: skip


def logical_of(schema: Schema) -> str:
    """Return the logical type; one that is not known or not valid is ignored, as the specification says."""
    logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    if not isinstance(logical, str) or logical not in _LOGICAL.get(type_of(schema), ()):
        return ""
    return "" if logical == "decimal" and not _has_digits(schema) else str(logical)


def _has_digits(decimal: Schema) -> bool:
    precision, scale = decimal.get("precision"), decimal.get("scale", 0)
    return type(precision) is int and type(scale) is int and 0 <= scale <= precision > 0


def without_null(schema: Schema) -> Schema:
    """Return the one type beside null of a union, or the union of several."""
    if not isinstance(schema, list):
        return schema
    rest = [each for each in schema if type_of(each) != "null"]
    plain = {each if isinstance(each, str) else "" for each in rest}
    if plain == {"int", "long"}:
        return "long"
    if plain == {"float", "double"}:
        return "double"
    return rest[0] if len(rest) == 1 else rest or "null"


def branch_names(branches: Sequence[Schema]) -> list[str]:
    """Return the names of the fields for the branches of a union.

    A type's name without its namespace; with it, where two have the same.
    """
    full = [_full_name(each) for each in branches]
    simple = [name.rpartition(".")[2] for name in full]
    return [
        name if simple.count(name) == 1 else whole for name, whole in zip(simple, full, strict=True)
    ]


def likeness(w: Schema, r: Schema) -> int:
    """Return how well a reader's type answers to a writer's: 0 is the same name or type, 2 another one."""
    if type_of(w) != type_of(r):
        return 2
    if not _is_named(w):
        return int(logical_of(w) != logical_of(r))
    if w["name"] == r["name"]:
        return 0
    names = {each.rpartition(".")[2] for each in (r["name"], *r.get("aliases", ()))}
    return 1 if w["name"].rpartition(".")[2] in names else 2


def _is_named(schema: Schema) -> bool:
    return isinstance(schema, dict) and "name" in schema


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def show(schema: Schema) -> str:
    if isinstance(schema, list):
        return f"[{', '.join(show(each) for each in schema)}]"
    name = schema.get("name") if isinstance(schema, dict) else None
    logical = logical_of(schema)
    if logical == "decimal":
        logical = f"decimal({schema['precision']}, {schema.get('scale', 0)})"
    shown = f"{type_of(schema)} {name}" if name else type_of(schema)
    return f"{shown} ({logical})" if logical else shown


def inlined(schema: Schema, named: NamedTypes, seen: set[str]) -> Schema:
    """Return a schema with the definition of each name where it first occurs."""
    if isinstance(schema, str):
        if schema not in named or schema in seen:
            return schema
        return inlined(named[schema], named, seen)
    if isinstance(schema, list):
        return [inlined(each, named, seen) for each in schema]
    if "name" in schema and schema.get("type") in {*RECORDS, "enum", "fixed"}:
        seen.add(schema["name"])
    copy = {key: value for key, value in schema.items() if not key.startswith("__")}
    for key in ("items", "values"):
        if key in copy:
            copy[key] = inlined(copy[key], named, seen)
    if "fields" in copy:
        copy["fields"] = [
            {**field, "type": inlined(field["type"], named, seen)} for field in copy["fields"]
        ]
    elif isinstance(copy["type"], dict | list):
        copy["type"] = inlined(copy["type"], named, seen)
    return copy


def default_value(schema: Schema, value: Any, named: NamedTypes) -> Any:
    """Return a default, which is JSON, as the Python value that fastavro encodes."""
    schema = resolve(schema, named)
    if isinstance(schema, list):
        return default_value(schema[0], value, named)
    match type_of(schema):
        case "bytes" | "fixed":
            return value.encode("latin-1")
        case "array":
            return [default_value(schema["items"], each, named) for each in value]
        case "map":
            return {
                key: default_value(schema["values"], each, named) for key, each in value.items()
            }
        case "record" | "error":
            return {
                field["name"]: default_value(
                    field["type"], value.get(field["name"], field.get("default")), named
                )
                for field in schema["fields"]
            }
        case "float" | "double":
            return float(value)
        case _:
            return value


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


def not_of_avro(schema: pa.Schema) -> dict[str, str]:
    """Return the columns with a name or a type that Avro does not have, and the reasons."""
    problems = {}
    for column in schema:
        try:
            _field(column, "", column.name)
        except StrategyError as error:
            problems[column.name] = str(error)
    return problems


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
