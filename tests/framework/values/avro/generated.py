"""Avro schemas made at random, values encoded by them, and what fastavro reads of these.

fastavro gets the schemas without logical types: it then reads all values that exist, also times that Python
does not have. `same` compares what it reads with Arrow's values as they are stored.
"""

from __future__ import annotations

import struct
from decimal import Context
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from kmr.values.avro.schema import NamedTypes, branch_names, logical_of, resolve, type_of

from .named_types import full_name, plain, references

Schema = Any

_DAY = 86_400
_WIDE = Context(prec=90)
_INT, _LONG = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_NAMESPACES = ["", "acme", "acme.v1", "acme.v2"]
_SYMBOLS = ["A", "BB", "C", "D"]

_DECIMAL = {"type": "bytes", "logicalType": "decimal"}
SCALARS: list[Schema] = [
    "null", "boolean", "int", "long", "float", "double", "string", "bytes",
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    *(
        {"type": "long", "logicalType": f"{zone}timestamp-{unit}"}
        for zone in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    ),
    {"type": "string", "logicalType": "uuid"},
    {"type": "int", "logicalType": "not-known"},
    {**_DECIMAL, "precision": 30, "scale": 4},
    {**_DECIMAL, "precision": 60},
    {**_DECIMAL},  # not valid: it is plain bytes
    {"type": "string", "logicalType": "date"},  # not valid either
]  # fmt: skip


class Names:
    """Names of types for one schema: those to make, and those that are defined."""

    def __init__(self, prefix: str = "T") -> None:
        self._prefix = prefix
        self._count = 0
        self.defined: list[str] = []
        self.outer: list[Schema] = []
        self.complete: list[Schema] = []

    @property
    def space(self) -> str:
        """The namespace of the record around a type."""
        return str(self.outer[-1]["namespace"]) if self.outer else ""

    def usable(self, definitions: list[Schema]) -> list[Schema]:
        """Return the types that may be named here: within a namespace there is no name for those without."""
        return [each for each in definitions if each["namespace"] or not self.space]

    def made(self, draw: Any) -> dict[str, str]:
        """Return name and namespace of a new type; some types differ only in their namespace."""
        self._count += 1
        name = draw(st.sampled_from(["Same", f"{self._prefix}{self._count}"]))
        namespace = draw(st.sampled_from(_NAMESPACES))
        full = f"{namespace}.{name}".lstrip(".")
        if full in self.defined:
            name = f"{self._prefix}{self._count}"
            full = f"{namespace}.{name}".lstrip(".")
        self.defined.append(full)
        return {"name": name, "namespace": namespace}


@st.composite
def schemas(draw: Any, names: Names, depth: int = 2, *, union: bool = True) -> Schema:
    """Draw a schema."""
    kinds = ["scalar", "scalar", "scalar", "fixed", "enum"]
    if names.usable(names.complete):
        kinds += ["again"] * 2
    if depth:
        kinds += ["record", "array", "map"] + (["nullable", "union"] if union else [])
    match draw(st.sampled_from(kinds)):
        case "scalar":
            return draw(st.sampled_from(SCALARS))
        case "again":
            return draw(st.sampled_from(names.usable(names.complete)))
        case "fixed":
            names.complete.append(_fixed(draw, names))
            return names.complete[-1]
        case "enum":
            symbols = draw(st.lists(st.sampled_from(_SYMBOLS), min_size=1, unique=True))
            more = {"default": symbols[-1]} if draw(st.booleans()) else {}
            made = {"type": "enum", **names.made(draw), "symbols": symbols, **more}
            names.complete.append(made)
            return made
        case "array":
            return {"type": "array", "items": draw(schemas(names, depth - 1).filter(_has_size))}
        case "map":
            return {"type": "map", "values": draw(schemas(names, depth - 1))}
        case "nullable":
            branches = ["null", draw(schemas(names, depth - 1, union=False).filter(_not_null))]
            return branches if draw(st.booleans()) else branches[::-1]
        case "union":
            some = draw(st.lists(schemas(names, depth - 1, union=False), min_size=1, max_size=3))
            if draw(st.booleans()):  # of one shape, so that only their names tell them apart
                fields = [{"name": "x", "type": draw(st.sampled_from(["int", "string"]))}]
                some += [{"type": "record", **names.made(draw), "fields": fields} for _ in range(2)]
            return _distinct(draw(st.permutations(some)))
        case _:
            return draw(records(names, depth - 1))


def _fixed(draw: Any, names: Names) -> Schema:
    kind = draw(st.sampled_from(["plain", "decimal", "duration", "uuid", "small", "large"]))
    made = {"type": "fixed", **names.made(draw)}
    if kind == "decimal":
        return {**made, "size": 6, "logicalType": "decimal", "precision": 12, "scale": 2}
    if kind == "duration":
        return {**made, "size": 12, "logicalType": "duration"}
    if kind == "uuid":
        return {**made, "size": 16, "logicalType": "uuid"}
    if kind == "small":
        return {**made, "size": 1, "logicalType": "decimal", "precision": 2, "scale": 2}
    if kind == "large":
        return {**made, "size": 32, "logicalType": "decimal", "precision": 76, "scale": 75}
    return {**made, "size": draw(st.integers(0, 5))}


def _distinct(branches: list[Schema]) -> list[Schema]:
    """Keep of the branches that have no name one of each type, as Avro demands."""
    kept: dict[str, Schema] = {}
    for branch in branches:
        kind = type_of(branch)
        named = isinstance(branch, dict) and "name" in branch
        kept[full_name(branch) if named else kind] = branch
    return list(kept.values())


@st.composite
def records(draw: Any, names: Names | None = None, depth: int = 2) -> Schema:
    """Draw the schema of a record."""
    names = Names() if names is None else names
    made = names.made(draw)
    names.outer.append(made)
    fields = draw(st.lists(schemas(names, depth), min_size=1, max_size=5))
    if draw(st.integers(0, 3)) == 0 and (around := names.usable(names.outer)):
        fields.append(draw(_recursive(full_name(draw(st.sampled_from(around))))))
    names.outer.pop()
    record = {
        "type": "record",
        **made,
        "fields": [{"name": f"f{at}", "type": each} for at, each in enumerate(fields)],
    }
    if references(record) <= {full_name(made)}:
        names.complete.append(record)
    return record


def _recursive(name: str) -> st.SearchStrategy[Schema]:
    """Types of fields by which a record contains itself, and yet has an end."""
    return st.sampled_from(
        [
            ["null", name], [name, "string", "null"], {"type": "array", "items": name},
            {"type": "map", "values": name}, {"type": "array", "items": ["null", name]},
        ]
    )  # fmt: skip


def _has_size(schema: Schema) -> bool:
    """Items of no bytes are bounded by the bytes that are left, which fastavro does not do."""
    if isinstance(schema, dict) and schema["type"] == "fixed":
        return bool(schema["size"])
    if isinstance(schema, dict) and schema["type"] == "record":
        return any(_has_size(field["type"]) for field in schema["fields"])
    return bool(schema != "null")


def _not_null(schema: Schema) -> bool:
    return bool(schema != "null")


def varint(number: int) -> bytes:
    """Encode an integer."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _integers(low: int, high: int) -> st.SearchStrategy[bytes]:
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, -1, 0, 1])).map(
        lambda number: varint(min(max(number, low), high))
    )


def encoded(  # noqa: C901  one case for each type
    schema: Schema, named: NamedTypes, known: dict[str, st.SearchStrategy[bytes]] | None = None
) -> st.SearchStrategy[bytes]:
    """Return encoded values of a parsed schema.

    Args:
        known: those of types that have been met, which may contain themselves.
    """
    known = {} if known is None else known
    if isinstance(schema, str) and schema in named:
        if schema not in known:
            definition, types = named[schema], known
            known[schema] = st.deferred(lambda: encoded(definition, named, types))
        return known[schema]
    if isinstance(schema, list):
        return st.one_of(
            [
                encoded(each, named, known).map(lambda data, at=at: varint(at) + data)  # type: ignore[misc]
                for at, each in enumerate(schema)
            ]
        )
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    match type_of(schema):
        case "null":
            return st.just(b"")
        case "boolean":
            return st.sampled_from([b"\0", b"\1"])
        case "int" if logical == "time-millis":
            return _integers(0, _DAY * 1000 - 1)
        case "long" if logical == "time-micros":
            return _integers(0, _DAY * 10**6 - 1)
        case "int":
            return _integers(*_INT)
        case "long":
            return _integers(*_LONG)
        case "float":
            return st.floats(width=32).map(lambda number: struct.pack("<f", number))
        case "double":
            return st.floats().map(lambda number: struct.pack("<d", number))
        case "string":
            return st.text(max_size=9).map(lambda text: _sized(text.encode()))
        case "bytes" if logical == "decimal" and "precision" in schema:
            return st.integers(-(10**30) + 1, 10**30 - 1).map(lambda n: _sized(_big_endian(n)))
        case "bytes":
            return st.binary(max_size=9).map(_sized)
        case "fixed" if logical == "decimal":
            digits, size = 10 ** schema["precision"] - 1, schema["size"]
            return st.one_of(st.integers(-digits, digits), st.sampled_from([-digits, digits])).map(
                lambda number: number.to_bytes(size, "big", signed=True)
            )
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "enum":
            return st.integers(0, len(schema["symbols"]) - 1).map(varint)
        case "array":
            return _blocks(encoded(schema["items"], named, known))
        case "map":
            key = st.text(max_size=4).map(lambda text: _sized(text.encode()))
            entry = st.tuples(key, encoded(schema["values"], named, known)).map(b"".join)
            return _blocks(entry)
        case _:
            parts = [encoded(field["type"], named, known) for field in schema["fields"]]
            return st.tuples(*parts).map(b"".join)


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def _big_endian(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)


def _blocks(item: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Items in blocks, some of which say how many bytes they have."""

    def block(items: list[bytes], sized: bool) -> bytes:
        data = b"".join(items)
        count = varint(-len(items)) + varint(len(data)) if sized else varint(len(items))
        return count + data

    some = st.builds(block, st.lists(item, min_size=1, max_size=3), st.booleans())
    return st.lists(some, max_size=2).map(lambda blocks: b"".join(blocks) + b"\0")


def read(data: bytes, writer: Schema, reader: Schema = None) -> Any:
    """Decode a value by fastavro."""
    resolved = None if reader is None else plain(reader)
    return fastavro.schemaless_reader(BytesIO(data), plain(writer), resolved)


def raw(value: Any) -> Any:
    """Return a value of Arrow as it is stored: times as integers."""
    if isinstance(value, pa.StructScalar):
        return None if not value.is_valid else {name: raw(each) for name, each in value.items()}
    if isinstance(value, pa.MapScalar):
        pairs: Any = value.values
        return None if pairs is None else {p["key"].as_py(): raw(p["value"]) for p in pairs}
    if isinstance(value, pa.ListScalar):
        items: Any = value.values
        return None if items is None else [raw(each) for each in items]
    stored: Any = getattr(value, "value", None)
    return stored if stored is not None else value.as_py()


def same(schema: Schema, named: NamedTypes, ours: Any, theirs: Any) -> bool:
    """Whether a value of Arrow is what fastavro has read by a parsed schema; defaults are JSON."""
    schema = resolve(schema, named)
    if isinstance(schema, list):
        return _same_branch(schema, named, ours, theirs)
    match type_of(schema):
        case "null":
            return ours is None and theirs is None
        case "float":
            return struct.pack("<f", ours) == struct.pack("<f", theirs)
        case "double":
            return struct.pack("<d", ours) == struct.pack("<d", theirs)
        case "bytes" | "fixed":
            data = theirs.encode("latin-1") if isinstance(theirs, str) else theirs
            if logical_of(schema) == "decimal":
                scaled = ours.scaleb(schema.get("scale", 0), _WIDE)
                return bool(scaled == int.from_bytes(data, "big", signed=True))
            return bool(ours == data)
        case "array":
            pairs = zip(ours, theirs, strict=True)
            return all(same(schema["items"], named, a, b) for a, b in pairs)
        case "map":
            return ours.keys() == theirs.keys() and all(
                same(schema["values"], named, ours[key], theirs[key]) for key in ours
            )
        case "record":
            return all(
                same(
                    field["type"],
                    named,
                    ours[field["name"]],
                    theirs.get(field["name"], field.get("default")),
                )
                for field in schema["fields"]
            )
        case _:
            return type(ours) is type(theirs) and bool(ours == theirs)


def _same_branch(branches: list[Schema], named: NamedTypes, ours: Any, theirs: Any) -> bool:
    rest = [each for each in branches if each != "null"]
    if ours is None or theirs is None:
        return ours is None and theirs is None
    if len(rest) == 1:
        return same(rest[0], named, ours, theirs)
    if {each if isinstance(each, str) else "" for each in rest} in (
        {"int", "long"},
        {"float", "double"},
    ):
        return bool(struct.pack("<d", ours) == struct.pack("<d", theirs))
    resolved = [resolve(each, named) for each in rest]
    found = [
        (branch, ours[name])
        for name, branch in zip(branch_names(resolved), resolved, strict=True)
        if ours[name] is not None
    ]
    (branch, value), *others = found
    if isinstance(theirs, float) and type_of(branch) in ("int", "long"):
        theirs = int(theirs)  # fastavro takes a float before the same type
        value = int(struct.unpack("<f", struct.pack("<f", value))[0]) if value != theirs else value
    if isinstance(theirs, bytes) and type_of(branch) == "string":
        theirs = theirs.decode()  # and bytes before text
    elif isinstance(theirs, str) and value == theirs.encode(errors="replace"):
        theirs = value  # or text before bytes
    return not others and same(branch, named, value, theirs)


@st.composite
def readers(draw: Any, writer: Schema, names: Names) -> Schema:
    """Draw a reader's schema for values of a record; some it cannot read."""
    fields = [draw(_reader_field(field, names)) for field in writer["fields"]]
    fields = [field for field in fields if field is not None]
    for at in range(draw(st.integers(0, 2))):
        kind, default = draw(st.sampled_from(_DEFAULTS))
        fields.append({"name": f"new{at}", "type": kind, "default": default})
    if not fields:
        fields = [{"name": "new", "type": "long", "default": 7}]
    reader = {**writer, "fields": draw(st.permutations(fields))}
    if draw(st.integers(0, 4)) == 0:
        reader |= {"name": f"{writer['name']}x", "aliases": [writer["name"]]}
    return reader


_OF_DEFAULT = {
    "type": "record",
    "name": "OfDefault",
    "namespace": "acme.defaults",
    "fields": [
        {"name": "a", "type": ["null", "int"], "default": None},
        {"name": "b", "type": {"type": "map", "values": "bytes"}},
    ],
}
_DEFAULTS: list[tuple[Schema, Any]] = [
    ({"type": "enum", "name": "Default", "namespace": "acme", "symbols": ["X", "Y"]}, "Y"),
    ({"type": "fixed", "name": "Fix", "namespace": "acme.v1", "size": 2}, "\xff\0"),
    (_OF_DEFAULT, {"b": {"k": "\xff"}}),
    (_OF_DEFAULT, {"a": None, "b": {}}),
    ({"type": "array", "items": _OF_DEFAULT}, [{"b": {}}]),
    ("long", -5),
    ("string", "none"),
    ("bytes", "\xff\0"),
    ("float", 1),
    (["null", "string"], None),
    (["long", "null"], 3),
    (["bytes", "string", "null"], "\xe4"),
    ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "map", "values": "string"}, {"k": "v"}),
    ("double", 0.5),
    ("boolean", True),
    ({"type": "int", "logicalType": "date"}, 12),
    ({**_DECIMAL, "precision": 4, "scale": 2}, "\1\2"),
]
_WIDER = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}


@st.composite
def _reader_field(draw: Any, field: dict[str, Any], names: Names) -> Any:
    action = draw(st.sampled_from(["keep", "keep", "drop", "rename", "type"]))
    if action == "drop":
        return None
    if action == "rename":
        return {**field, "name": f"{field['name']}_renamed", "aliases": [field["name"]]}
    if action == "type":
        return {**field, "type": draw(_reader_type(field["type"], names))}
    return field


@st.composite
def _reader_type(draw: Any, kind: Schema, names: Names) -> Schema:
    if isinstance(kind, list):
        branches = [draw(_reader_type(each, names)) for each in draw(st.permutations(kind))]
        flat = [one for each in branches for one in (each if isinstance(each, list) else [each])]
        return _distinct(flat)[draw(st.integers(0, 1)) if len(flat) > 1 else 0 :] or kind
    action = draw(st.sampled_from(["keep", "widen", "nullable", "inner"]))
    if action == "widen" and isinstance(kind, str) and kind in _WIDER:
        return draw(st.sampled_from(_WIDER[kind]))
    if action == "nullable" and kind != "null":
        return draw(st.sampled_from([["null", kind], [kind, "null"]]))
    if not isinstance(kind, dict) or action != "inner":
        return kind
    match kind["type"]:
        case "record":
            return draw(readers(kind, names))
        case "array":
            return {**kind, "items": draw(_reader_type(kind["items"], names).filter(_has_size))}
        case "map":
            return {**kind, "values": draw(_reader_type(kind["values"], names))}
        case "enum":
            symbols = draw(st.lists(st.sampled_from(_SYMBOLS), min_size=1, unique=True))
            rest = {key: value for key, value in kind.items() if key != "default"}
            more = {"default": symbols[0]} if draw(st.booleans()) else {}
            return {**rest, "symbols": symbols, **more}
        case _:
            return kind


def encode(schema: Schema, value: Any) -> bytes:
    """Encode a value by fastavro."""
    into = BytesIO()
    fastavro.schemaless_writer(into, schema, value)
    return into.getvalue()
