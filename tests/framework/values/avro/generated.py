"""Generated Avro schemas with values, and what fastavro reads of them, as Arrow's Python values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
from hypothesis import strategies as st

Schema = Any

_UTC = dt.UTC
_TIMES = st.datetimes(
    dt.datetime(1900, 1, 1),  # noqa: DTZ001  hypothesis wants naive ones
    dt.datetime(2200, 1, 1),  # noqa: DTZ001
)
_LONG = st.integers(-(2**63), 2**63 - 1)

SCALARS: list[tuple[Schema, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", _LONG),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=12)),
    ("bytes", st.binary(max_size=12)),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    (
        {"type": "int", "logicalType": "time-millis"},
        st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    ),
    ({"type": "long", "logicalType": "time-micros"}, st.times()),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        _TIMES.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000, tzinfo=_UTC)),
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        _TIMES.map(lambda t: t.replace(tzinfo=_UTC)),
    ),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, _TIMES),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4},
        st.integers(-(10**27), 10**27).map(lambda n: Decimal(n).scaleb(-4)),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 0},
        st.integers(-(10**27), 10**27).map(Decimal),
    ),
]


@st.composite
def schemas(draw: Any, depth: int = 2, names: list[int] | None = None) -> Schema:
    """Draw a schema; unions are of null and one other type."""
    names = [0] if names is None else names
    kinds = ["scalar", "scalar", "fixed", "enum"]
    if depth:
        kinds += ["record", "array", "map", "nullable"]
    kind = draw(st.sampled_from(kinds))
    names[0] += 1
    name = f"T{names[0]}"
    inner = schemas(depth - 1, names)
    match kind:
        case "scalar":
            return draw(st.sampled_from([schema for schema, _ in SCALARS]))
        case "fixed":
            return {"type": "fixed", "name": name, "size": draw(st.integers(1, 5))}
        case "enum":
            return {"type": "enum", "name": name, "symbols": ["A", "BB", "C"]}
        case "array":
            return {"type": "array", "items": draw(inner.filter(_has_size))}
        case "map":
            return {"type": "map", "values": draw(inner)}
        case "nullable":
            branches = ["null", draw(inner.filter(lambda each: not _is_null_or_union(each)))]
            return branches if draw(st.booleans()) else branches[::-1]
        case _:
            return draw(records(depth - 1, names, name))


@st.composite
def records(draw: Any, depth: int = 2, names: list[int] | None = None, name: str = "Top") -> Schema:
    """Draw the schema of a record."""
    names = [0] if names is None else names
    fields = draw(st.lists(schemas(depth, names), min_size=1, max_size=5))
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{at}", "type": each} for at, each in enumerate(fields)],
    }


def _has_size(schema: Schema) -> bool:
    """Items of no bytes are bounded by the bytes that are left, which fastavro does not do."""
    if isinstance(schema, dict) and schema["type"] == "record":
        return any(_has_size(field["type"]) for field in schema["fields"])
    return bool(schema != "null")


def _is_null_or_union(schema: Schema) -> bool:
    return schema == "null" or isinstance(schema, list)


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Return the values of a schema, as fastavro writes them."""
    if isinstance(schema, list):
        return st.one_of([values(each) for each in schema])
    for scalar, strategy in SCALARS:
        if scalar == schema:
            return strategy
    match schema["type"]:
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "array":
            return st.lists(values(schema["items"]), max_size=4)
        case "map":
            return st.dictionaries(st.text(max_size=4), values(schema["values"]), max_size=3)
        case _:
            return st.fixed_dictionaries(
                {field["name"]: values(field["type"]) for field in schema["fields"]}
            )


def encode(schema: Schema, value: Any) -> bytes:
    """Encode a value by fastavro."""
    into = BytesIO()
    fastavro.schemaless_writer(into, schema, value)
    return into.getvalue()


def read(data: bytes, writer: Schema, reader: Schema = None) -> Any:
    """Decode a value by fastavro, in the form of Arrow's Python values of the reader's schema."""
    value = fastavro.schemaless_reader(BytesIO(data), writer, reader)
    return as_arrow(writer if reader is None else reader, value)


def as_arrow(schema: Schema, value: Any) -> Any:
    """Return a value that fastavro has read as `to_pylist` of Arrow returns it."""
    if isinstance(schema, list):
        return None if value is None else as_arrow(_other(schema), value)
    if schema == "float":
        return float(np.float32(value))
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "array":
            return [as_arrow(schema["items"], each) for each in value]
        case "map":
            return [(key, as_arrow(schema["values"], each)) for key, each in value.items()]
        case "record":
            return {
                field["name"]: as_arrow(field["type"], value[field["name"]])
                for field in schema["fields"]
            }
        case _:
            return value


def _other(branches: list[Schema]) -> Schema:
    return next(each for each in branches if each != "null")


@st.composite
def readers(draw: Any, writer: Schema) -> Schema:
    """Draw a reader's schema that values of a record can be resolved to."""
    fields = [draw(_reader_field(field)) for field in writer["fields"]]
    fields = [field for field in fields if field is not None]
    for at in range(draw(st.integers(0, 2))):
        kind, default = draw(st.sampled_from(_DEFAULTS))
        fields.append({"name": f"new{at}", "type": kind, "default": default})
    if not fields:
        fields = [{"name": "new", "type": "long", "default": 7}]
    return {**writer, "fields": draw(st.permutations(fields))}


_DEFAULTS: list[tuple[Schema, Any]] = [
    ("long", -5),
    ("string", "none"),
    (["null", "string"], None),
    (["long", "null"], 3),
    ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "map", "values": "string"}, {"k": "v"}),
    ("double", 0.5),
    ("boolean", True),
]
_WIDER = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"]}


@st.composite
def _reader_field(draw: Any, field: dict[str, Any]) -> Any:
    action = draw(st.sampled_from(["keep", "keep", "drop", "rename", "widen", "nullable"]))
    kind = field["type"]
    if action == "drop":
        return None
    if action == "rename":
        return {**field, "name": f"{field['name']}_renamed", "aliases": [field["name"]]}
    if action == "widen" and isinstance(kind, str) and kind in _WIDER:
        return {**field, "type": draw(st.sampled_from(_WIDER[kind]))}
    if action == "nullable" and not _is_null_or_union(kind):
        return {**field, "type": ["null", kind]}
    if isinstance(kind, dict) and kind["type"] == "record":
        return {**field, "type": draw(readers(kind))}
    return field
