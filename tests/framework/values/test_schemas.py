"""User types become columns."""

from __future__ import annotations

import datetime as dt
import enum
import re
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pytest

from kmr import Avro, Json, MessagePack
from kmr.errors import StrategyError
from kmr.values.row_classes import fields_of
from kmr.values.schemas import row_type

UTC = pa.timestamp("us", tz="UTC")


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Point(msgspec.Struct):
    x: float
    y: float | None = None


class Everything(msgspec.Struct, rename="camel"):
    is_new: bool
    count: int
    ratio: float
    name: str
    raw: bytes
    at: dt.datetime
    day: dt.date
    time: dt.time
    price: Decimal
    id: uuid.UUID
    level: Level
    kind: Literal["a", "b"]
    either: int | float
    tags: list[str]
    points: tuple[Point, ...]
    sizes: dict[str, int]
    point: Point
    maybe: str | None = None


class Chain(msgspec.Struct):
    next: Chain | None = None


class Tree(TypedDict):
    items: list[Tree]


@dataclass
class Author:
    books: dict[str, Book]


@dataclass
class Book:
    author: Author | None = None


PLAIN = {
    "is_new": pa.bool_(),
    "count": pa.int64(),
    "ratio": pa.float64(),
    "name": pa.string(),
    "raw": pa.binary(),
    "at": UTC,
    "day": pa.date32(),
    "time": pa.time64("us"),
    "price": pa.decimal128(38, 18),
    "id": pa.string(),
    "level": pa.string(),
    "kind": pa.string(),
    "either": pa.float64(),
    "maybe": pa.string(),
}


def test_each_annotation_has_a_type_of_column() -> None:
    schema = row_type(Everything).schema
    assert {name: schema.field(name).type for name in PLAIN} == PLAIN
    assert [each.name for each in schema if each.nullable] == ["maybe"]
    point = pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("y", pa.float64())])
    assert schema.field("point").type == point
    assert schema.field("points").type == pa.list_(pa.field("item", point, nullable=False))
    assert schema.field("tags").type == pa.list_(pa.field("item", pa.string(), nullable=False))
    assert str(schema.field("sizes").type).startswith("map<string, int64")
    assert row_type(Everything).columns[0].key == "isNew"


def test_objects_become_columns_and_nested_ones_structs() -> None:
    row = Everything(
        is_new=True,
        count=1,
        ratio=0.5,
        name="n",
        raw=b"r",
        at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        day=dt.date(2026, 1, 2),
        time=dt.time(3),
        price=Decimal("1.5"),
        id=uuid.UUID(int=1),
        level=Level.HIGH,
        kind="a",
        either=2,
        tags=["t"],
        points=(Point(1.0),),
        sizes={"s": 1},
        point=Point(2.0, 3.0),
    )
    columns, failures = row_type(Everything).to_columns([row, None])
    assert not failures
    first, second = columns.to_pylist()
    assert first["level"] == "high"
    assert first["id"] == str(uuid.UUID(int=1))
    assert first["points"] == [{"x": 1.0, "y": None}]
    assert first["sizes"] == [("s", 1)]
    assert first["point"] == {"x": 2.0, "y": 3.0}
    assert set(second.values()) == {None}


def test_a_value_that_does_not_fit_its_column_fails_alone() -> None:
    columns, failures = row_type(Counted).to_columns([Counted(1), Counted(2**70), Counted(3)])
    assert columns.column("count").to_pylist() == [1, None, 3]
    assert list(failures) == [1]
    assert failures[1].startswith("field count: ")


@dataclass
class Counted:
    count: int
    tags: list[str] = field(default_factory=list)


class Loose(TypedDict):
    b: int
    a: NotRequired[str]


def test_a_typed_dict_keeps_its_order_and_a_key_that_may_be_missing_is_nullable() -> None:
    rows = row_type(Loose)
    assert rows.schema.names == ["b", "a"]
    assert [each.nullable for each in rows.schema] == [False, True]
    assert rows.to_columns([{"b": 1}])[0].to_pylist() == [{"b": 1, "a": None}]


def test_a_schema_is_a_type_too_with_names_that_are_no_identifiers() -> None:
    schema = pa.schema(
        [
            pa.field("user-id", pa.int32(), nullable=False),
            pa.field("class", pa.struct([pa.field("a b", pa.list_(pa.uint8()))])),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("m", pa.map_(pa.string(), pa.float32())),
        ]
    )
    rows = row_type(schema)
    assert rows.schema == schema
    text = b'{"user-id": 1, "class": {"a b": [1, null]}, "price": "1.25", "m": {"x": 1}}'
    decoded: object = msgspec.json.decode(text, type=rows.cls)
    columns, failures = rows.to_columns([decoded])
    assert not failures
    assert columns.to_pylist() == [
        {"user-id": 1, "class": {"a b": [1, None]}, "price": Decimal("1.25"), "m": [("x", 1.0)]}
    ]
    with pytest.raises(msgspec.ValidationError, match="user-id"):
        msgspec.json.decode(b'{"user-id": 3000000000}', type=rows.cls)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int | str, r"row\.bad: .*a union may only have None"),
        (
            Any,
            r"row\.bad: any is no type of column; give the type of its values, or leave the field out",
        ),
        (msgspec.Raw, r"row\.bad: raw .*; for values of any form leave value= out"),
        (object, r"row\.bad: "),
        (Literal["a", 1], r"row\.bad: its values must be all text or all integers"),
        (list[dict[str, Any]], r"row\.bad\[\]\{\}: any"),
        (Point | dict[str, int], "row cannot be columns: "),
    ],
)
def test_an_annotation_without_a_type_of_column_is_refused_by_name(
    annotation: Any, words: str
) -> None:
    cls = msgspec.defstruct("row", [("bad", annotation)])
    with pytest.raises(StrategyError, match=words):
        row_type(cls)


@pytest.mark.parametrize("format_", [Json, MessagePack, Avro])
@pytest.mark.parametrize(
    ("cls", "place"),
    [(Chain, "Chain.next"), (Tree, "Tree.items[]"), (Author, "Author.books{}.author")],
)
def test_a_type_that_contains_itself_is_refused_by_the_field_in_which_it_does(
    cls: type, place: str, format_: Any
) -> None:
    with pytest.raises(StrategyError, match=re.escape(f"{place}: {cls.__name__} contains itself")):
        format_(cls)


def test_what_has_no_fields_is_refused() -> None:
    for source in (int, dict, dict[str, int], Any):
        with pytest.raises(StrategyError, match=r"cannot be columns: .*; for values of any form"):
            row_type(source)
    with pytest.raises(StrategyError, match="without the names of its fields"):
        row_type(msgspec.defstruct("row", [("a", int)], array_like=True))


@pytest.mark.parametrize("names", [['q"'], ["a", "a"], ["tab\t"]])
def test_names_of_fields_that_cannot_be_decoded_are_refused(names: list[str]) -> None:
    kind = pa.struct([pa.field(name, pa.int64()) for name in names])
    with pytest.raises(StrategyError, match=r"row\.of: values cannot be decoded to its fields: "):
        row_type(pa.schema([("of", kind)]))


def test_metadata_of_an_annotation_changes_nothing() -> None:
    cls = msgspec.defstruct("row", [("a", Annotated[int, msgspec.Meta(ge=0, title="A")] | None)])
    assert row_type(cls).schema == pa.schema([pa.field("a", pa.int64())])


def test_the_fields_of_an_object_are_its_columns() -> None:
    assert fields_of(Counted(1)) == {"count": 1, "tags": []}


class Model:
    """Looks like a pydantic model: this suite does not need pydantic."""

    class Field:
        def __init__(self, annotation: Any, default: Any = ..., alias: str | None = None) -> None:
            self.annotation, self.default, self.alias = annotation, default, alias
            self.default_factory = None

        def is_required(self) -> bool:
            return self.default is ...

    model_fields = {"a": Field(int), "b": Field(str | None, None, "B")}  # noqa: RUF012

    @classmethod
    def model_validate_json(cls, text: bytes) -> Any: ...


def test_a_pydantic_model_is_read_without_pydantic() -> None:
    rows = row_type(Model)
    assert rows.is_pydantic
    assert [each.nullable for each in rows.schema] == [False, True]
    assert rows.schema.types == [pa.int64(), pa.string()]
    assert [each.key for each in rows.columns] == ["a", "B"]


def test_a_type_without_fields_has_no_rows_and_is_refused() -> None:
    class Nothing(msgspec.Struct):
        pass

    with pytest.raises(StrategyError, match="Nothing has no fields, so no columns"):
        Json(Nothing)
    with pytest.raises(StrategyError, match="the schema has no fields"):
        MessagePack(pa.schema([]))


def test_null_for_a_key_that_may_only_be_missing_fails_as_columns_and_as_objects() -> None:
    class Row(TypedDict):
        a: int
        b: NotRequired[str]

    values: pa.BinaryArray = pa.array([b'{"a":1}', b'{"a":1,"b":null}'], pa.binary())
    expected = {1: "field b: expected str, got null"}
    assert Json(Row).decode(values).failures == expected
    assert Json(Row).decode_objects(values).failures == expected
