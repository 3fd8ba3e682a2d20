"""The compiled walk of JSON and msgspec agree on every text: the same columns, the same failures."""

from __future__ import annotations

import base64
import datetime as dt
import enum
import json
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmr import Json
from kmr.values.json.json_columns import plan_of
from kmr.values.typed import TypedFormat
from tests.examples import examples

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Point(msgspec.Struct):
    x: float
    y: int = 7


class Event(msgspec.Struct):
    at: dt.datetime
    path: str
    status: int
    ms: float | None = None
    ok: bool = True
    day: dt.date | None = None
    level: Level = Level.LOW
    kind: Literal["a", "b"] | None = None
    id: uuid.UUID | None = None
    small: Annotated[int, msgspec.Meta(ge=-5, lt=100)] = 3
    either: int | float = 0
    point: Point | None = None
    points: list[Point] = []
    name: Annotated[str, msgspec.Meta(max_length=3)] = "-"


FIELDS: list[pa.Field[Any]] = [
    pa.field("status", pa.int16()),
    pa.field("ms", pa.float32()),
    pa.field("path", pa.large_string(), nullable=False),
    pa.field("at", pa.timestamp("ms")),
    pa.field("point", pa.struct([pa.field("x", pa.float64()), pa.field("y", pa.uint64())])),
]
SCHEMA = pa.schema(FIELDS)


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    status: int
    path: str = ""


TYPES: list[Any] = [Event, SCHEMA, Closed]

numbers = st.sampled_from(
    [
        *(
            "0",
            "-0",
            "-0.0",
            "1",
            "-17",
            "200",
            "1.5",
            "0.1",
            "1e3",
            "1E-7",
            "-2.5e+3",
            "1e22",
            "1e23",
        ),
        *("9007199254740993", "9007199254740992.0", "9223372036854775807", "9223372036854775808"),
        *(
            "123456789012345678901",
            "0.30000000000000004",
            "1e400",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "+1",
        ),
        *("12345678901234567", "1.7976931348623157e308", "5e-324", "100", "-5", "32768", "NaN"),
    ]
)
moments = st.sampled_from(
    [
        *("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123Z", "2026-01-02T03:04:05.123456+01:30"),
        *("2026-01-02T03:04:05", "2026-01-02 03:04:05Z", "2024-02-29T23:59:59.1-23:59"),
        *("2023-02-29T00:00:00Z", "2026-01-02T24:00:00Z", "2026-01-02T03:04:60Z", "2026-01-02"),
        *("2026-01-02T03:04:05.1234567Z", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00"),
        *(
            "2026-13-01",
            "2026-1-01",
            "1969-12-31T23:59:59.999999Z",
            "1600-02-29",
            "2026-01-02t03:04:05z",
        ),
        *(
            "2026-01-02T03:04:05.Z",
            "2026-01-02T03:04:05+0100",
            "2026-01-02T03:04Z",
            "2026-01-02T03:04:05+24:00",
        ),
    ]
)
words = st.sampled_from(
    [
        "",
        "/a",
        "ä",
        "low",
        "high",
        "a",
        "c",
        str(uuid.UUID(int=7)),
        uuid.UUID(int=7).hex,
        "x" * 40,
        "€",
        "\U0001f600",
    ]
)
texts = st.builds(
    lambda text, ascii_only: json.dumps(text, ensure_ascii=ascii_only),
    st.one_of(words, moments, st.text(max_size=12)),
    st.booleans(),
)
odd = st.sampled_from(
    [
        r'"\ud83d"',
        r'"\ud83d\ude00"',
        r'"\/\b"',
        r'"\q"',
        r'"\u12g4"',
        '"\x01"',
        '"',
        "[",
        "{",
        "[1,]",
        '{"a":1,}',
    ]
)
scalars = st.one_of(numbers, texts, st.sampled_from(["true", "false", "null", "nul", "True"]), odd)
spaces = st.sampled_from(["", "", "", " ", "\n\t", "  "])


def objects(names: SearchStrategy[str], values: SearchStrategy[str]) -> SearchStrategy[str]:
    pair = st.builds(
        lambda name, a, b, value, c: f"{a}{json.dumps(name)}{b}:{c}{value}{a}",
        names,
        spaces,
        spaces,
        values,
        spaces,
    )
    return st.builds(
        lambda pairs, space: "{" + ",".join(pairs) + space + "}", st.lists(pair, max_size=9), spaces
    )


inner = objects(st.sampled_from(["x", "y", "z"]), st.one_of(numbers, scalars))
values = st.one_of(
    scalars,
    inner,
    st.builds(
        lambda items: f"[{','.join(items)}]", st.lists(st.one_of(inner, scalars), max_size=3)
    ),
)
NAMES = [*Event.__struct_fields__, "other", "pat", "paths", "stätus"]
FITTING = {
    "at": moments.map(json.dumps),
    "status": numbers,
    "path": texts,
    "small": numbers,
    "ms": numbers,
    "ok": st.sampled_from(["true", "false"]),
    "day": moments.map(json.dumps),
    "point": inner,
}
whole = st.fixed_dictionaries(
    {"at": st.just('"2026-01-02T03:04:05Z"'), "path": texts, "status": st.just("200")},
    optional={
        name: FITTING.get(name, values) for name in NAMES if name not in ("at", "path", "status")
    },
).map(lambda row: "{" + ",".join(f"{json.dumps(k)}:{v}" for k, v in row.items()) + "}")
any_object = objects(st.sampled_from(NAMES), values)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A text with a few bytes removed, inserted or replaced, or the end cut."""
    text = bytearray(draw(st.one_of(whole, any_object)).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        change = draw(st.sampled_from(["remove", "insert", "cut", "replace"]))
        byte = draw(st.sampled_from(b'"\\,:{}[]0-.eE \x00\x7f\x80\xc3\xe2\xff'))
        if change == "remove":
            del text[at : at + 1]
        elif change == "insert":
            text.insert(at, byte)
        elif change == "cut":
            del text[at:]
        else:
            text[at : at + 1] = bytes([byte])
    return bytes(text)


batches = st.lists(
    st.one_of(whole.map(lambda text: text.encode("utf-8", "surrogatepass")), damaged(), st.none()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(180), deadline=None)
@given(batches, st.integers(0, 3))
@example([b'{"status":1,"status":2}', b'{"status":"1"}', b'{"path":"x"}{}', b"{}\x00", b" {} "], 0)
@example([b'{"a":"\xff","status":1,"path":""}', b'{"\xff":1,"status":1,"path":""}'], 0)
@example(
    [b'{"status":1,"path":"","at":"2026-01-02T03:04:05Z","ms":-0}', b'{"ms":-0.0,"path":""}'], 0
)
@example([b'{"a":' + b"[" * 70 + b"]" * 70 + b',"status":1,"path":""}'], 0)
def test_the_walk_and_msgspec_agree(texts: list[bytes | None], begin: int) -> None:
    column: Any = pa.array(texts, pa.binary()).slice(min(begin, len(texts)))
    for source in TYPES:
        form = Json(source)
        assert plan_of(source) is not None
        fast, slow = form.decode(column), TypedFormat.decode(form, column)
        fast.columns.validate(full=True)
        assert fast.failures == slow.failures
        assert fast.columns.schema == slow.columns.schema
        assert repr(_without_failed(fast)) == repr(_without_failed(slow))


def _without_failed(decoded: Any) -> list[Any]:
    rows: list[Any] = decoded.columns.to_pylist()
    return [None if row in decoded.failures else each for row, each in enumerate(rows)]


KINDS: list[tuple[Any, SearchStrategy[Any]]] = [
    (int, st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-99, 99))),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, st.text(max_size=20)),
    (bool, st.booleans()),
    (Decimal, st.decimals(-(10**9), 10**9, places=3).map(str)),
    (dt.date, st.dates().map(str)),
    (bytes, st.binary(max_size=5).map(lambda data: base64.b64encode(data).decode())),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
]
_LEAVES = st.sampled_from(KINDS)


_NAMES = st.text(
    st.characters(min_codepoint=32, exclude_categories=["Cs"], exclude_characters='\\"'),
    max_size=12,
)


def _object_of(fields: list[tuple[str, Any, bool]]) -> Any:
    members: Any = [
        (f"a{at}", *_optional(kind)) if optional else (f"a{at}", kind)
        for at, (_, (kind, _), optional) in enumerate(fields)
    ]
    rename = {f"a{at}": name for at, (name, _, _) in enumerate(fields)}
    made = msgspec.defstruct("Made", members, rename=rename, kw_only=True)
    required = {name: values for name, (_, values), optional in fields if not optional}
    optional = {name: values for name, (_, values), optional in fields if optional}
    return made, st.fixed_dictionaries(required, optional=optional)


def _nested(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    def of_list(item: Any) -> Any:
        return list[item[0]], st.lists(item[1], max_size=4)

    def of_map(item: Any) -> Any:
        return dict[str, item[0]], st.dictionaries(st.text(max_size=9), item[1], max_size=4)

    def nullable(item: Any) -> Any:
        return item[0] | None, st.none() | item[1]

    fields = st.lists(
        st.tuples(_NAMES, inner, st.booleans()),
        min_size=1,
        max_size=6,
        unique_by=lambda field: field[0],
    )
    return st.one_of(
        inner.map(of_list), inner.map(of_map), inner.map(nullable), fields.map(_object_of)
    )


def _optional(kind: Any) -> tuple[Any, Any]:
    """Return the annotation and the default of a field that may be missing."""
    defaults: dict[Any, Any] = {int: 7, str: "-", float: 0.5, bool: True}
    return (kind, defaults[kind]) if kind in defaults else (kind | None, None)


_TYPES = st.recursive(_LEAVES, _nested, max_leaves=8)


@st.composite
def typed(draw: Any) -> tuple[type, list[bytes]]:
    """Draw a type, and texts of values of it; some are damaged."""
    kind, values = draw(_TYPES.map(lambda made: _object_of([("a", made, False)])))
    texts = []
    for value in draw(st.lists(values, min_size=1, max_size=4)):
        separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]))
        ascii_only = draw(st.booleans())
        text = json.dumps(value, separators=separators, ensure_ascii=ascii_only)
        texts.append(text.encode("utf-8", "surrogatepass"))
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(text)))
            patch = draw(st.binary(max_size=2))
            texts.append(texts[-1][:at] + patch + texts[-1][at + len(patch) :])
    return kind, texts


@settings(max_examples=examples(300))
@given(typed())
def test_values_of_any_type_are_what_msgspec_reads(drawn: tuple[type, list[bytes]]) -> None:
    source, texts = drawn
    form = Json(source)
    column: Any = pa.array(texts, pa.binary())
    fast, slow = form.decode(column), TypedFormat.decode(form, column)
    fast.columns.validate(full=True)
    assert fast.failures == slow.failures
    assert fast.columns.schema == slow.columns.schema
    assert repr(_without_failed(fast)) == repr(_without_failed(slow))


@settings(max_examples=examples(1000))
@given(st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True),
))  # fmt: skip
@example("9007199254740993")
@example("1.7976931348623158e308")
@example("4.9406564584124654e-324")
@example("2.2250738585072011e-308")
@example("9223372036854775808")
@example("-9223372036854775808")
@example("0.000000000000000000000000000000000000012345678901234567")
def test_numbers_are_what_msgspec_reads(number: str) -> None:
    fields: Any = [("f", pa.float64()), ("i", pa.int64()), ("u", pa.uint64())]
    source = pa.schema(fields)
    form = Json(source)
    column: Any = pa.array([f'{{"{name}":{number}}}'.encode() for name in "fiu"], pa.binary())
    fast, slow = form.decode(column), TypedFormat.decode(form, column)
    assert fast.failures == slow.failures
    assert repr(fast.columns.to_pylist()) == repr(slow.columns.to_pylist())


def test_a_number_that_its_column_cannot_hold_fails() -> None:
    fields: Any = [("f", pa.float32()), ("fs", pa.list_(pa.float32()))]
    form = Json(pa.schema(fields))
    texts = [b'{"f":1e300}', b'{"fs":[0.5,-1e39]}', b'{"f":0.1,"fs":[0.25]}', b'{"f":1e400}']
    decoded = form.decode(pa.array(texts, pa.binary()))
    assert decoded.failures == {
        0: "field f: float cannot hold 1e+300",
        1: "field fs: list<item: float> cannot hold [0.5, -1e+39]",
        3: "field f: number out of range: Decimal('1E+400')",
    }
    assert decoded.columns.column("fs").to_pylist() == [None, None, [0.25], None]


@pytest.mark.parametrize("source", TYPES)
def test_ordinary_texts_are_not_left_to_msgspec(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("left to msgspec")

    monkeypatch.setattr(TypedFormat, "decode", refuse)
    text = b'{"at":"2026-01-02T03:04:05Z","path":"/\\u00e4","status":1,"ms":0.30000000000000004}'
    if source is Closed:
        text = b'{"path":"/a", "status":1}'
    assert Json(source).decode(pa.array([text], pa.binary())).failures == {}
