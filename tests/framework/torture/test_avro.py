"""Avro: values of random schemas, written by an encoder of these tests, are read as fastavro reads them.

The generator knows which branch of each union it took and every edge of the numbers, so the expected column
values are its own; fastavro only confirms that the bytes mean them.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from kmr import Avro
from kmr.errors import StrategyError
from tests.examples import examples

from .plain_values import Clock, Day, Entries, Float, Moment, Struct, Text, is_same, plain

INT = st.sampled_from([0, -1, 1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 8191, 8192]) | st.integers(
    -(2**31), 2**31 - 1
)
LONG = (
    st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1, 2**31, -(2**31) - 1, 2**62])
    | INT
    | st.integers(-(2**63), 2**63 - 1)
)
TEXT = st.sampled_from(["", "\x00", "😀", "\ufeff", "\uffff", "é" * 100]) | st.text(max_size=12)
BYTES = st.sampled_from([b"", b"\x00", b"\xff\xfe", bytes(range(256))]) | st.binary(max_size=12)


@dataclass(frozen=True)
class Kind:
    """A type: its schema, what encodes a value, and the values as pairs of datum and expected column value."""

    schema: Any
    values: st.SearchStrategy[tuple[bytes, Any]]
    nullable: bool = False


def varint(n: int) -> bytes:
    n = (n << 1) ^ (n >> 63)
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def sized(raw: bytes) -> bytes:
    return varint(len(raw)) + raw


def number(kind: Any, values: st.SearchStrategy[int], make: Any = lambda n: n) -> Kind:
    return Kind(kind, values.map(lambda n: (varint(n), make(n))))


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name} | more


def moment(scale: int, zoned: bool) -> Any:
    return lambda n: Moment(n * scale, zoned)


def real(code: str, bits: int) -> Kind:
    values = st.floats(width=bits) | st.sampled_from(  # type: ignore[arg-type]
        [0.0, -0.0, float("nan"), float("inf"), -float("inf")]
    )
    kind = "float" if bits == 32 else "double"
    return Kind(kind, values.map(lambda x: (struct.pack(code, x), Float(x, bits))))


def decimals(precision: int, scale: int, size: int | None, name: str) -> Kind:
    most = 10**precision - 1
    if size is not None:
        most = min(most, 2 ** (8 * size - 1) - 1)

    def encode(n: int) -> tuple[bytes, Any]:
        raw = n.to_bytes(size or max(1, (n.bit_length() + 8) // 8), "big", signed=True)
        return (raw if size else sized(raw)), Decimal(n).scaleb(-scale, _WIDE)

    base: dict[str, Any] = {"logicalType": "decimal", "precision": precision, "scale": scale}
    made = {"type": "fixed", "name": name, "size": size} if size else {"type": "bytes"}
    values = st.sampled_from([0, 1, -1, most, -most]) | st.integers(-most, most)
    return Kind(made | base, values.map(encode))


from decimal import Context  # noqa: E402

_WIDE = Context(prec=100, Emax=999, Emin=-999)

PLAIN = [
    number("int", INT),
    number("long", LONG),
    real("<f", 32),
    real("<d", 64),
    Kind("boolean", st.booleans().map(lambda b: (bytes([b]), b))),
    Kind("string", TEXT.map(lambda s: (sized(s.encode()), Text(s.encode())))),
    Kind("bytes", BYTES.map(lambda b: (sized(b), b))),
    number(logical("int", "date"), INT, Day),
    number(logical("int", "time-millis"), st.integers(0, 86_399_999), lambda n: Clock(n * 10**6)),
    number(
        logical("long", "time-micros"), st.integers(0, 86_399_999_999), lambda n: Clock(n * 10**3)
    ),
    number(logical("long", "timestamp-millis"), LONG, moment(10**6, True)),
    number(logical("long", "timestamp-micros"), LONG, moment(10**3, True)),
    number(logical("long", "timestamp-nanos"), LONG, moment(1, True)),
    number(logical("long", "local-timestamp-millis"), LONG, moment(10**6, False)),
    number(logical("long", "local-timestamp-micros"), LONG, moment(10**3, False)),
    number(logical("long", "made-up"), LONG),
    Kind(
        logical("string", "uuid"),
        st.uuids().map(lambda u: (sized(str(u).encode()), Text(str(u).encode()))),
    ),
    decimals(9, 2, None, ""),
    decimals(38, 10, None, ""),
    decimals(76, 76, None, ""),
]


class Names:
    """Names of types, some in namespaces; simple names repeat in other namespaces."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.known: list[Kind] = []

    def new(self, draw: Any) -> dict[str, str]:
        while True:
            name = draw(st.sampled_from(["Order", "Item", "T", "_x", "R2", "Order9", "A", "B"]))
            space = draw(st.sampled_from(["", "acme.v1", "acme.v2", "x"]))
            full = f"{space}.{name}"
            if full not in self.taken:
                self.taken.add(full)
                # In the fields of another record a missing namespace would be that of the record.
                return (
                    {"name": name, "namespace": space or "root"}
                    if f"root.{name}" not in self.taken
                    else self.new(draw)
                )


@st.composite
def kinds(draw: Any, names: Names, depth: int) -> Kind:
    choices = ["plain"] * 3 + ["enum", "fixed", "decimal fixed", "known"]
    if depth:
        choices += ["array", "map", "record", "optional", "optional", "union", "union"]
    match draw(st.sampled_from(choices)):
        case "enum":
            symbols = draw(
                st.lists(st.sampled_from(["A", "b", "_c", "D4", "E"]), min_size=1, unique=True)
            )
            schema = {"type": "enum", "symbols": symbols} | names.new(draw)
            kind = Kind(
                schema,
                st.integers(0, len(symbols) - 1).map(
                    lambda n: (varint(n), Text(symbols[n].encode()))
                ),
            )
        case "fixed":
            size = draw(st.sampled_from([1, 3, 16]))
            schema = {"type": "fixed", "size": size} | names.new(draw)
            kind = Kind(schema, st.binary(min_size=size, max_size=size).map(lambda b: (b, b)))
        case "decimal fixed":
            made = decimals(
                *draw(st.sampled_from([(9, 0, 4), (18, 18, 8), (38, 2, 16), (2, 1, 1)])), "x"
            )
            kind = Kind(made.schema | names.new(draw), made.values)
        case "known" if names.known:
            kind = draw(st.sampled_from(names.known))
            named = f"{kind.schema['namespace']}.{kind.schema['name']}"
            return Kind(named, kind.values)
        case "array":
            return array(draw(kinds(names, depth - 1)))
        case "map":
            return mapping(draw(kinds(names, depth - 1)))
        case "record":
            own = names.new(draw)
            return record(draw, names, depth - 1, own)
        case "optional":
            kind = draw(kinds(names, depth - 1))
            return kind if isinstance(kind.schema, list) else optional(kind, draw(st.booleans()))
        case "union":
            return union(draw, names, depth - 1)
        case _:
            return draw(st.sampled_from(PLAIN))
    names.known.append(kind)
    return kind


def blocks(items: list[bytes], cuts: list[bool]) -> bytes:
    """Items in blocks, some of which begin with their size in bytes."""
    out = b""
    for item, with_size in zip(items, cuts, strict=True):
        out += (varint(-1) + sized(item)) if with_size else varint(1) + item
    return out + b"\x00"


def array(of: Kind) -> Kind:
    items = st.lists(st.tuples(of.values, st.booleans()), max_size=4)
    return Kind(
        {"type": "array", "items": of.schema},
        items.map(
            lambda found: (
                blocks([v[0] for v, _ in found], [c for _, c in found]),
                tuple(v[1] for v, _ in found),
            )
        ),
    )


def mapping(of: Kind) -> Kind:
    items = st.dictionaries(TEXT, st.tuples(of.values, st.booleans()), max_size=4)

    def make(found: dict[str, Any]) -> tuple[bytes, Any]:
        raw = blocks(
            [sized(k.encode()) + v[0] for k, (v, _) in found.items()],
            [c for _, c in found.values()],
        )
        return raw, Entries(tuple((Text(k.encode()), v[1]) for k, (v, _) in found.items()))

    return Kind({"type": "map", "values": of.schema}, items.map(make))


def record(draw: Any, names: Names, depth: int, own: dict[str, str]) -> Kind:
    fields = draw(
        st.lists(
            st.sampled_from(["id", "offset", "a", "_b", "C", "x9", "value", "key"]),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    made = [(name, draw(kinds(names, depth))) for name in fields]
    schema = {
        "type": "record",
        "fields": [{"name": name, "type": kind.schema} for name, kind in made],
    } | own
    values = st.tuples(*(kind.values for _, kind in made))
    found = Kind(
        schema,
        values.map(
            lambda vs: (
                b"".join(v[0] for v in vs),
                Struct(tuple((name, v[1]) for name, v in zip(fields, vs, strict=True))),
            )
        ),
    )
    names.known.append(found)
    return found


def optional(of: Kind, null_first: bool) -> Kind:
    schema = ["null", of.schema] if null_first else [of.schema, "null"]
    null, value = (0, 1) if null_first else (1, 0)
    values = st.none().map(lambda _: (varint(null), None)) | of.values.map(
        lambda v: (varint(value) + v[0], v[1])
    )
    return Kind(schema, values, nullable=True)


def union(draw: Any, names: Names, depth: int) -> Kind:
    """Of two to four branches that Avro allows beside each other."""
    found: list[Kind] = []
    seen: set[str] = set()
    before = len(names.known)
    for _ in range(draw(st.integers(2, 4))):
        known = len(names.known)
        kind = draw(kinds(names, depth))
        of = "" if isinstance(kind.schema, list) else kind.schema
        of = of if isinstance(of, str) else kind.schema["type"]
        if of in ("record", "enum", "fixed"):
            of = f"{kind.schema['namespace']}.{kind.schema['name']}"
        if of and of not in seen:
            seen.add(of)
            found.append(kind)
        else:
            del names.known[known:]
    if len(found) < 2 or seen in ({"int", "long"}, {"float", "double"}):
        del names.known[before:]
        return draw(st.sampled_from(PLAIN))
    has_null = draw(st.booleans())
    first = int(has_null)

    def branch(n: int) -> Any:
        return found[n].values.map(lambda v: (varint(n + first) + v[0], Branch(n, v[1])))

    values = st.one_of([branch(n) for n in range(len(found))])
    if has_null:
        values = values | st.just((varint(0), None))
    return Kind(
        (["null"] if has_null else []) + [kind.schema for kind in found], values, nullable=has_null
    )


@dataclass(frozen=True)
class Branch:
    at: int
    value: Any


def matches(expected: Any, got: Any) -> bool:
    match expected:
        case Branch(at, value):
            if not isinstance(got, Struct) or len({name for name, _ in got.fields}) != len(
                got.fields
            ):
                return False
            return all(
                matches(value, v) if n == at else v is None for n, (_, v) in enumerate(got.fields)
            )
        case Struct(fields):
            return (
                isinstance(got, Struct)
                and [n for n, _ in got.fields] == [n for n, _ in fields]
                and all(matches(a[1], b[1]) for a, b in zip(fields, got.fields, strict=True))
            )
        case Entries(pairs):
            return (
                isinstance(got, Entries)
                and len(got.pairs) == len(pairs)
                and all(
                    matches(a, c) and matches(b, d)
                    for (a, b), (c, d) in zip(pairs, got.pairs, strict=True)
                )
            )
        case tuple():
            return (
                isinstance(got, tuple)
                and len(got) == len(expected)
                and all(map(matches, expected, got))
            )
    return is_same(expected, got)


@st.composite
def written(draw: Any, depth: int = 3) -> tuple[Any, list[tuple[bytes, Any]]]:
    """A schema of a record, and some of its values."""
    names = Names()
    kind = record(draw, names, depth, names.new(draw))
    return kind.schema, draw(st.lists(kind.values, min_size=1, max_size=5))


def without_logical(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: without_logical(v) for k, v in schema.items() if k != "logicalType"}
    return [without_logical(each) for each in schema] if isinstance(schema, list) else schema


@settings(max_examples=examples(120))
@given(written())
def test_values_of_random_schemas_are_read_as_they_were_written(made: Any) -> None:
    schema, values = made
    note(str(schema))
    parsed = fastavro.parse_schema(without_logical(schema))
    for raw, _ in values:
        left = io.BytesIO(raw)
        fastavro.schemaless_reader(left, parsed, None)
        assert not left.read()
    decoded = Avro(schema).decode(pa.array([raw for raw, _ in values], pa.binary()))
    assert decoded.failures == {}
    rows = plain(pa.table(decoded.columns).to_struct_array())
    for (_, expected), got in zip(values, rows, strict=True):
        assert matches(expected, got)


@settings(max_examples=examples(120))
@given(written(depth=2), st.data())
def test_a_damaged_value_fails_alone_or_is_what_fastavro_reads(made: Any, data: Any) -> None:
    schema, values = made
    raw = bytearray(values[0][0])
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.sampled_from(["cut", "flip", "insert", "append"])):
            case "cut":
                raw = raw[: data.draw(st.integers(0, len(raw)))]
            case "flip" if raw:
                raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
            case "insert":
                raw.insert(data.draw(st.integers(0, len(raw))), data.draw(st.integers(0, 255)))
            case _:
                raw += b"\x01"
    note(f"{schema} {bytes(raw)!r}")
    sound = [value for value, _ in values]
    decoded = Avro(schema).decode(pa.array([*sound, bytes(raw), *sound], pa.binary()))
    assert set(decoded.failures) <= {len(sound)}
    rows = plain(pa.table(decoded.columns).to_struct_array())
    for n, (_, expected) in enumerate(values):
        assert matches(expected, rows[n])
        assert matches(expected, rows[n + len(sound) + 1])
    if not decoded.failures:
        left = io.BytesIO(bytes(raw))
        fastavro.schemaless_reader(left, fastavro.parse_schema(without_logical(schema)), None)
        assert not left.read()


@pytest.mark.parametrize(
    "schema",
    [{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}],
)
def test_a_record_that_contains_itself_is_refused_with_its_name(schema: Any) -> None:
    with pytest.raises(StrategyError, match="Node|next"):
        Avro(schema).schema  # noqa: B018  made when it is asked for
