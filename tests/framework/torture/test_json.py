"""JSON: documents of random types are read as the standard library reads them, or refused for a reason.

A document is made together with what it means for the type. Spellings vary: escapes, exponents, spaces, order,
unknown and repeated names. The oracle of a damaged document is `json.loads` and the type: what it does not
accept must not be read, and what is read must mean the same.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, note, settings
from hypothesis import strategies as st

from kmr import Json
from tests.examples import examples

from .plain_values import (
    Clock,
    Day,
    Entries,
    Float,
    Moment,
    Span,
    Struct,
    Text,
    days_of,
    is_same,
    plain,
)

NAMES = st.sampled_from(["id", "a", "B", "a b", "ünï", "😀", "key.x", "offset", "_", "type", "a/b"])
TEXT = st.sampled_from(["", "\x00", "😀", "\u2028", "/", '"\\', "\x7f"]) | st.text(max_size=10)
SPACES = st.sampled_from(["", " ", "\n\t", "\r "])
_WIDE = Decimal


@st.composite
def types(draw: Any, depth: int) -> pa.DataType:
    plain_types = [
        pa.bool_(),
        pa.int64(),
        pa.int32(),
        pa.int8(),
        pa.uint64(),
        pa.float64(),
        pa.float32(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.time64("us"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("us"),
        pa.duration("us"),
        pa.decimal128(38, 18),
        pa.decimal128(9, 2),
    ]
    match draw(st.sampled_from(["plain"] * 4 + ["list", "struct", "map"] * (depth > 0))):
        case "list":
            item = draw(types(depth - 1))
            nullable = draw(st.booleans()) and not pa.types.is_struct(item)
            return pa.list_(pa.field("item", item, nullable=nullable))
        case "struct":
            return pa.struct(draw(fields(depth - 1)))
        case "map":
            return pa.map_(pa.string(), draw(types(depth - 1)))
        case _:
            return draw(st.sampled_from(plain_types))


@st.composite
def fields(draw: Any, depth: int) -> list[Any]:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return [pa.field(name, draw(types(depth)), nullable=draw(st.booleans())) for name in names]


def quoted(draw: Any, text: str) -> str:
    """A JSON string: some characters escaped, surrogate pairs for what is beyond the basic plane."""
    if draw(st.booleans()):
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False).replace("/", draw(st.sampled_from(["/", "\\/"])))


def value(draw: Any, kind: pa.DataType, nullable: bool) -> tuple[str, Any]:
    """The spelling of a value, and what it is."""
    t = pa.types
    if nullable and draw(st.integers(0, 4)) == 0:
        return "null", None
    if t.is_boolean(kind):
        b = draw(st.booleans())
        return ("true" if b else "false"), b
    if t.is_integer(kind):
        low, high = (
            (0, 2**kind.bit_width - 1)
            if "u" in str(kind)
            else (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
        )
        n = draw(st.sampled_from([low, high, 0]) | st.integers(low, high))
        return str(n), n
    if t.is_floating(kind):
        x = draw(st.floats(allow_nan=False, allow_infinity=False, width=kind.bit_width))
        spelled = draw(
            st.sampled_from([repr(x), f"{x:.20e}", f"{x:E}" if float(f"{x:E}") == x else repr(x)])
        )
        return spelled, Float(x, kind.bit_width)
    if t.is_string(kind):
        s = draw(TEXT)
        return quoted(draw, s), Text(s.encode("utf-8", "surrogatepass"))
    if t.is_binary(kind):
        b = draw(st.binary(max_size=8))
        return json.dumps(base64.b64encode(b).decode()), b
    if t.is_date(kind):
        y, m, d = draw(st.tuples(st.integers(1, 9999), st.integers(1, 12), st.integers(1, 28)))
        return f'"{y:04}-{m:02}-{d:02}"', Day(days_of(y, m, d))
    if t.is_time(kind):
        us = draw(st.integers(0, 86_399_999_999))
        return f'"{_clock(us)}"', Clock(us * 1000)
    if t.is_timestamp(kind):
        y, m, d = draw(st.tuples(st.integers(2, 9998), st.integers(1, 12), st.integers(1, 28)))
        us = draw(st.integers(0, 86_399_999_999))
        shift = draw(st.sampled_from([0, 330, -720]))
        zone = (
            draw(st.sampled_from(["Z", "+00:00", "z"]))
            if not shift
            else f"{'+' if shift > 0 else '-'}{abs(shift) // 60:02}:{abs(shift) % 60:02}"
        )
        if kind.tz is None:
            zone, shift = "", 0
        ns = (days_of(y, m, d) * 86_400_000_000 + us - shift * 60_000_000) * 1000
        return f'"{y:04}-{m:02}-{d:02}{draw(st.sampled_from("Tt "))}{_clock(us)}{zone}"', Moment(
            ns, kind.tz is not None
        )
    if t.is_duration(kind):
        us = draw(st.integers(0, 10**15))
        sign = draw(st.sampled_from(["", "-"]))
        return f'"{sign}PT{us // 10**6}.{us % 10**6:06}S"', Span(us * 1000 * (-1 if sign else 1))
    if t.is_decimal(kind):
        unscaled = draw(st.integers(-(10**kind.precision - 1), 10**kind.precision - 1))
        d = Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -kind.scale))
        return draw(st.sampled_from([f'"{d:f}"', f"{d:f}"])), d
    if t.is_list(kind):
        items = [
            value(draw, kind.value_type, kind.value_field.nullable)
            for _ in range(draw(st.integers(0, 3)))
        ]
        return (
            f"[{draw(SPACES)}{(draw(SPACES) + ',').join(i[0] for i in items)}{draw(SPACES)}]",
            tuple(i[1] for i in items),
        )
    if t.is_map(kind):
        keys = draw(st.lists(TEXT, max_size=3, unique=True))
        items = [(k, value(draw, kind.item_type, kind.item_field.nullable)) for k in keys]
        body = ",".join(f"{quoted(draw, k)}:{v[0]}" for k, v in items)
        return f"{{{body}}}", Entries(
            tuple((Text(k.encode("utf-8", "surrogatepass")), v[1]) for k, v in items)
        )
    return document(draw, list(kind))


def _clock(us: int) -> str:
    s, fraction = divmod(us, 10**6)
    text = f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}"
    return f"{text}.{fraction:06}" if fraction else text


UNKNOWN = [
    "1e999",
    "-0",
    "[[[]]]",
    '{"a": {"b": [null, true, 1.5e-300]}}',
    "123456789012345678901234567890",
    '""',
    '"\\u0000"',
]


def document(draw: Any, of: list[Any]) -> tuple[str, Any]:
    """An object with these fields: in any order, some null ones left out, with unknown names between them."""
    found = [(f.name, value(draw, f.type, f.nullable)) for f in of]
    shown = [(n, v[0]) for n, v in found if not (v[1] is None and draw(st.booleans()))]
    shown = draw(st.permutations(shown))
    known = {f.name for f in of}
    for unknown in draw(st.lists(st.sampled_from(UNKNOWN), max_size=2)):
        name = draw(NAMES.filter(lambda n: n not in known) | st.just("unknown\\"))
        shown.insert(draw(st.integers(0, len(shown))), (name, unknown))
    body = ("," + draw(SPACES)).join(
        f"{quoted(draw, n)}{draw(SPACES)}:{draw(SPACES)}{v}" for n, v in shown
    )
    return f"{{{draw(SPACES)}{body}{draw(SPACES)}}}", Struct(tuple((n, v[1]) for n, v in found))


@st.composite
def documents(draw: Any) -> tuple[pa.Schema, list[tuple[bytes, Any]]]:
    of = draw(fields(2))
    made = [document(draw, of) for _ in range(draw(st.integers(1, 4)))]
    return pa.schema(of), [
        (raw.encode("utf-8", "surrogatepass"), expected) for raw, expected in made
    ]


def read(schema: pa.Schema, raw: list[bytes]) -> tuple[list[Any], dict[int, str]]:
    decoded = Json(schema).decode(pa.array(raw, pa.binary()))
    return plain(pa.table(decoded.columns).to_struct_array()), decoded.failures


@settings(max_examples=examples(60))
@given(documents())
def test_documents_of_random_types_are_read_as_they_were_written(made: Any) -> None:
    schema, values = made
    for raw, _ in values:
        json.loads(raw)
    note(f"{schema} {[raw for raw, _ in values]}")
    rows, failures = read(schema, [raw for raw, _ in values])
    for n, (_, expected) in enumerate(values):
        assert n not in failures, failures[n]
        assert is_same(expected, rows[n])


def refuse(name: str) -> Any:
    raise ValueError(name)


@settings(max_examples=examples(60))
@given(documents(), st.data())
def test_what_is_no_json_is_not_read_and_fails_alone(made: Any, data: Any) -> None:
    schema, values = made
    raw = bytearray(values[0][0])
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, max(0, len(raw) - 1)))
        match data.draw(st.sampled_from(["cut", "flip", "insert", "remove", "append"])):
            case "cut":
                raw = raw[:at]
            case "flip" if raw:
                raw[at] = data.draw(st.sampled_from(b'",:{}[]0e+-.\\uNI\x00\x1f\x80\xed\xa0 tfn1'))
            case "insert":
                raw.insert(at, data.draw(st.sampled_from(b'",:{}[]0e+-.\\uNI\x00\x1f\x80\xed 1')))
            case "remove" if raw:
                del raw[at]
            case _:
                raw += data.draw(
                    st.sampled_from([b" ", b"\x00", b",", b"}", b"\xef\xbb\xbf", b"1"])
                )
    sound = [raw for raw, _ in values]
    note(f"{schema} {bytes(raw)!r}")
    rows, failures = read(schema, [*sound, bytes(raw), *sound])
    assert set(failures) <= {len(sound)}
    for n, (_, expected) in enumerate(values):
        assert is_same(expected, rows[n])
        assert is_same(expected, rows[n + len(sound) + 1])
    if not failures:
        json.loads(bytes(raw).decode("utf-8", "replace"), parse_constant=refuse)
