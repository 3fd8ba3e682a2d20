"""`Json`: JSON objects become columns of the user's type; one that does not fit fails alone, by field."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec
import pyarrow as pa
import pytest
from anyio.to_thread import run_sync

from kmr import Json, Registry
from kmr.errors import StrategyError
from kmr.values.typed import TypedFormat
from kmr.values.value_format import RowsDoNotFit

if TYPE_CHECKING:
    from collections.abc import Callable

    from kmr.broker import Broker
    from kmr.types import Decoded


class Hit(msgspec.Struct):
    ts: dt.datetime
    path: str
    status: int
    ms: float | None = None
    country: str = "??"


GOOD = b'{"ts":"2026-01-02T03:04:05Z","path":"/a","status":200,"extra":{"x":[1,"]"]}}'
ROW = {
    "ts": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    "path": "/a",
    "status": 200,
    "ms": None,
    "country": "??",
}


def values(*texts: bytes | None) -> pa.BinaryArray:
    return pa.array(texts, pa.binary())


def test_missing_fields_get_their_defaults_and_unknown_ones_are_ignored() -> None:
    decoded = Json(Hit).decode(values(GOOD))
    assert decoded.failures == {}
    assert decoded.columns.schema == Json(Hit).schema
    assert decoded.columns.to_pylist() == [ROW]


NOT_JSON = "value: JSON is malformed: invalid character (byte 0)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD.replace(b"200", b'"x"'), "field status: expected int, got str: 'x'"),
        (GOOD.replace(b"200", b"null"), "field status: expected int, got null"),
        (GOOD.replace(b"200", b"2.5"), "field status: expected int, got float: 2.5"),
        (GOOD.replace(b"200", b"9223372036854775808"), "field status: "),
        (GOOD.replace(b'"status":200,', b""), "field status: missing, and it has no default"),
        (GOOD.replace(b"2026-01-02", b"2026-02-30"), "field ts: "),
        (GOOD.replace(b"/a", b"/\xff"), "field path: invalid UTF-8"),
        (GOOD[:-1], "value: input data was truncated"),
        (b"[]", "value: expected object, got array"),
        (b"", "value: "),
        (b"\0\0\0\0\1" + GOOD, f"{NOT_JSON}; a zero byte, as before the id of a schema: set regis"),
        (b"\xef\xbb\xbf" + GOOD, f"{NOT_JSON}; a byte order mark"),
    ],
)
def test_a_value_that_does_not_fit_fails_alone_with_the_name_of_the_field(
    text: bytes, reason: str
) -> None:
    decoded = Json(Hit).decode(values(GOOD, text, GOOD))
    assert list(decoded.failures) == [1]
    assert decoded.failures[1].startswith(reason), decoded.failures
    assert decoded.columns.to_pylist() == [ROW, dict.fromkeys(ROW), ROW]


def test_a_null_value_is_a_row_of_nulls() -> None:
    decoded = Json(Hit).decode(values(None, GOOD))
    assert decoded.failures == {}
    assert decoded.columns.to_pylist() == [dict.fromkeys(ROW), ROW]


def test_objects_are_of_the_users_type() -> None:
    decoded = Json(Hit).decode_objects(values(GOOD, b"{", None))
    assert decoded.objects == [Hit(ROW["ts"], "/a", 200), None, None]  # type: ignore[arg-type]
    assert list(decoded.failures) == [1]


def test_it_is_pickled_by_its_type() -> None:
    copy = pickle.loads(pickle.dumps(Json(Hit)))
    assert copy.decode(values(GOOD)).columns.to_pylist() == [ROW]
    schema = pa.schema([pa.field("a-b", pa.int16())])
    assert pickle.loads(pickle.dumps(Json(schema))).decode(
        values(b'{"a-b":1}')
    ).columns.to_pylist() == [{"a-b": 1}]


def test_a_type_that_cannot_be_columns_is_refused_at_once() -> None:
    with pytest.raises(StrategyError, match="cannot be columns"):
        Json(int)
    with pytest.raises(StrategyError, match="of any form leave value= out"):
        Json(dict)


def test_a_format_says_its_name() -> None:
    assert str(Json(Hit)) == "Json(Hit)"
    assert str(Json(pa.schema([("n", pa.int64())]))) == "Json(Schema)"


async def test_with_a_registry_values_begin_with_a_schema_id(
    broker: Broker, registry_url: str
) -> None:
    def work() -> None:
        registry = Registry(registry_url)
        format_ = Json(Point, registry=registry)
        table = pa.table({"x": [1, 2]})
        first, second = format_.encode(table, "points").to_pylist()
        assert msgspec.json.decode(registry.by_version("points-value").schema)["$defs"]["Point"]
        assert first is not None
        values: pa.BinaryArray = pa.array(
            [first, b'{"x":3}', None, first[:-1], second], pa.binary()
        )
        columns, failures = format_.decode(values)
        assert columns.column("x").to_pylist() == [1, None, None, None, 2]
        assert sorted(failures) == [1, 3]
        assert failures[1].startswith("the value does not begin with the id of a schema")
        objects, failures = format_.decode_objects(values)
        assert objects == [Point(1), None, None, None, Point(2)]
        assert sorted(failures) == [1, 3]

    await run_sync(work)


class Point(msgspec.Struct):
    x: int


class Bounded(msgspec.Struct):
    number: Annotated[int, msgspec.Meta(ge=0)]


class Choosy(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("below 0")


class Pair(msgspec.Struct):
    number: int
    other: int


class OfTwo(TypedDict):
    number: Literal[1, 2]


class Plain(msgspec.Struct):
    number: int
    other: int = 0


class Strict(Json):
    @property
    def decoder(self) -> Callable[[Any], Any]:
        def decode(value: bytes) -> Any:
            raise ValueError(f"not {value!r}")

        return decode

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return TypedFormat.decode(self, values)


@pytest.mark.parametrize(
    "form", [Json(Bounded), Json(Choosy), Json(Pair), Json(OfTwo), Strict(Plain)], ids=str
)
def test_a_row_that_the_type_would_refuse_is_not_encoded(form: Json) -> None:
    with pytest.raises(RowsDoNotFit):
        form.encode(pa.table({"number": [-1]}), "t")
    assert Json(Plain).encode(pa.table({"number": [-1]}), "t").to_pylist() == [b'{"number":-1}']
