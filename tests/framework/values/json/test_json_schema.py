"""Columns of JSON Schemas: of those that libraries make for types, and of those that people write."""

import datetime as dt
import json
import pickle
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from anyio.to_thread import run_sync
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry as Resources
from referencing.jsonschema import DRAFT202012

from kmr import Avro, Json
from kmr.broker import Broker
from kmr.errors import StrategyError
from kmr.values.json.json_schema import columns_of
from kmr.values.registry.registry import Registry
from tests.examples import examples

from . import generated_schemas


class Place(TypedDict):
    lat: NotRequired[float]
    zip: str


class Hit(msgspec.Struct):
    ts: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    day: dt.date
    path: str
    status: int
    method: Literal["GET", "POST"]
    blob: bytes
    places: list[Place]
    tags: dict[str, int | None]
    ms: float | None = None
    ok: bool | None = None
    user: UUID | None = None


ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "number": {"title": "Number", "type": "integer"},
        "when": {"title": "When", "type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"type": "string"}, "default": []},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["number", "when"],
}
HIT_FIELDS: Any = [
    pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("day", pa.date32(), nullable=False),
    pa.field("path", pa.string(), nullable=False),
    pa.field("status", pa.int64(), nullable=False),
    pa.field("method", pa.string(), nullable=False),
    pa.field("blob", pa.binary(), nullable=False),
    pa.field(
        "places",
        pa.list_(
            pa.field(
                "item",
                pa.struct(
                    [
                        pa.field("lat", pa.float64()),
                        pa.field("zip", pa.string(), nullable=False),
                    ]
                ),
                nullable=False,
            )
        ),
        nullable=False,
    ),
    pa.field("tags", pa.map_(pa.string(), pa.int64()), nullable=False),
    pa.field("ms", pa.float64()),
    pa.field("ok", pa.bool_()),
    pa.field("user", pa.string()),
]


def test_the_schema_that_msgspec_makes_of_a_type_has_the_columns_of_the_type() -> None:
    assert columns_of(msgspec.json.schema(Hit)) == pa.schema(HIT_FIELDS)


def test_a_property_that_is_not_required_is_a_nullable_column() -> None:
    assert columns_of(ORDER) == pa.schema(
        [
            pa.field("number", pa.int64(), nullable=False),
            pa.field("when", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("lines", pa.list_(pa.field("item", pa.string(), nullable=False))),
            pa.field("note", pa.string()),
        ]
    )


def one(schema: Any, **document: Any) -> Any:
    """The column of a required property."""
    return columns_of({"properties": {"f": schema}, "required": ["f"], **document}).field("f")


@pytest.mark.parametrize(
    ("schema", "kind", "nullable"),
    [
        ({"type": ["integer", "null"]}, pa.int64(), True),
        ({"type": ["integer", "number"]}, pa.float64(), False),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, pa.int64(), True),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, pa.float64(), False),
        ({"allOf": [{"type": "boolean"}]}, pa.bool_(), False),
        ({"enum": ["a", None]}, pa.string(), True),
        ({"const": 5}, pa.int64(), False),
        ({"type": "string", "format": "time"}, pa.time64("us"), False),
        ({"type": "string", "format": "email"}, pa.string(), False),
    ],
)
def test_words_of_json_schema_become_types(schema: Any, kind: pa.DataType, nullable: bool) -> None:
    assert one(schema) == pa.field("f", kind, nullable=nullable)


def test_references_lead_within_a_schema_and_to_others() -> None:
    document = {
        "$ref": "#/definitions/a~1b",
        "definitions": {
            "a/b": {"properties": {"x": {"$ref": "#/definitions/n"}, "y": {"$ref": "o.json#/d/e"}}},
            "n": {"type": "integer"},
        },
    }
    others = {
        "o.json": {"d": {"e": {"type": "array", "items": {"$ref": "#/d/f"}}, "f": {"enum": ["a"]}}}
    }
    assert columns_of(document, others) == pa.schema(
        {"x": pa.int64(), "y": pa.list_(pa.field("item", pa.string(), nullable=False))}
    )


NAMED = {"$anchor": "Name", "type": "string"}
X, Y = ({"properties": {name: {"type": "integer"}}, "required": [name]} for name in "xy")
XY = pa.struct([pa.field(name, pa.int64(), nullable=False) for name in "xy"])


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"$ref": "#Name"}, pa.string()),
        ({"$ref": "#/$defs/A%20list/anyOf/1"}, pa.int64()),
        ({"allOf": [X, Y]}, XY),
        ({**X, "allOf": [Y]}, XY),
        ({"type": "object", "allOf": [{"$ref": "#/$defs/X"}, Y]}, XY),
        ({"$ref": "#/$defs/X", **Y}, XY),
        ({**X, "allOf": [{**Y, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]}]}, XY),
    ],
)
def test_all_properties_of_an_object_are_found_behind_references_and_in_allof(
    schema: Any, kind: pa.DataType
) -> None:
    others = {"A list": {"anyOf": [{"type": "null"}, {"type": "integer"}]}, "N": NAMED, "X": X}
    found = one(schema, **{"$defs": others}).type
    assert found == kind or {*found} == {*kind}  # type: ignore[misc]


@given(st.data())
@settings(max_examples=examples(150))
def test_values_of_any_schema_are_read_as_they_are(data: st.DataObject) -> None:
    made = data.draw(generated_schemas.schemas())
    if made.is_recursive:
        with pytest.raises(StrategyError, match="contains itself"):
            columns_of(made.schema, made.documents)
        return
    columns = columns_of(made.schema, made.documents)
    values = data.draw(st.lists(made.values, max_size=3))
    others = made.documents.items()
    resources = [(name, DRAFT202012.create_resource(each)) for name, each in others]
    validator = Draft202012Validator(made.schema, registry=Resources().with_resources(resources))
    for each in values:
        validator.validate(each)
    texts = pa.array([json.dumps(each).encode() for each in values], pa.binary())
    found, failures = Json(columns).decode(texts)
    assert failures == {}
    kind = pa.struct(list(columns))
    for row, value in zip(found.to_pylist(), values, strict=True):
        assert generated_schemas.same(kind, row, value)
    assert same_again(columns, found)


def same_again(columns: pa.Schema, rows: pa.RecordBatch) -> bool:
    """Whether rows are the same after they were encoded and decoded."""
    encoded = Json(columns).encode(pa.Table.from_batches([rows]), "t")
    return bool(Json(columns).decode(encoded).columns.equals(rows))


@pytest.mark.parametrize(
    "broken",
    [
        {"type": {"a": 1}}, {"type": ["string", {}]}, {"anyOf": 5}, {"enum": 5}, {"properties": [1]},
        {"properties": X, "required": 5}, {"type": "string", "format": {}},
    ],
)  # fmt: skip
def test_what_is_no_json_schema_is_refused(broken: Any) -> None:
    with pytest.raises(StrategyError):
        one(broken)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"allOf": [X, {"properties": {"x": {"type": "string"}}}]}, "x is int64 and string"),
        ({**X, "anyOf": [Y, X]}, "#/properties/f/anyOf: it gives fields to some values only"),
        ({"$ref": "#Nobody"}, "#/properties/f: there is no #Nobody"),
        ({"items": {"$ref": "#"}, "type": "array"}, "#/properties/f/items: # contains itself"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "#/properties/f: oneOf of 2 types"),
        ({"type": ["string", "integer"]}, "#/properties/f: string or integer is no type"),
        ({"type": "null"}, "#/properties/f: null is no type"),
        ({"type": "object"}, "#/properties/f: object without properties"),
        ({"type": "array"}, "#/properties/f: an array needs one type of items"),
        ({"type": "array", "items": {"type": "object"}}, "#/properties/f/items: object without"),
        ({"description": "?"}, "#/properties/f: it has no type"),
        (True, "#/properties/f: any value is allowed"),
        ({"enum": ["a", 1]}, "#/properties/f: its values are of several types"),
        ({"$ref": "#/none"}, "#/properties/f: there is no #/none"),
        ({"properties": {"g": {"$ref": "#/properties/f"}}}, "contains itself"),
    ],
)
def test_what_has_no_type_of_column_is_refused_with_its_place(schema: Any, reason: str) -> None:
    with pytest.raises(StrategyError) as refusal:
        one(schema)
    assert reason in str(refusal.value)


def test_a_schema_that_is_no_object_is_refused() -> None:
    with pytest.raises(StrategyError, match="#: it is no object with properties"):
        columns_of({"type": "string"})


def test_without_a_type_and_without_a_subject_there_are_no_columns() -> None:
    with pytest.raises(StrategyError, match="give a type with the fields"):
        Json(registry="http://localhost")
    with pytest.raises(StrategyError, match="give a type with the fields"):
        Json(subject="s")


V1 = {
    "title": "Hit",
    "type": "object",
    "properties": {"path": {"type": "string"}, "place": {"$ref": "place.json"}},
    "required": ["path"],
}
V2 = V1 | {"properties": {**V1["properties"], "ms": {"type": "number"}}}  # type: ignore[dict-item]
PLACE = {"title": "Place", "type": "object", "properties": {"zip": {"type": "string"}}}


async def test_confluents_serializer_writes_what_the_columns_of_the_subject_read(
    broker: Broker,
    registry_url: str,
) -> None:
    def work() -> None:
        url = registry_url
        with SchemaRegistryClient({"url": url}) as client:
            client.register_schema("place", Schema(msgspec.json.encode(PLACE).decode(), "JSON"))
            reference = SchemaReference("place.json", "place", 1)
            context = SerializationContext("hits", MessageField.VALUE)
            written = []
            for document, row in (
                (V1, {"path": "/a", "place": {"zip": "1"}}),
                (V2, {"path": "/b", "place": {}, "ms": 0.5}),
            ):
                schema = Schema(msgspec.json.encode(document).decode(), "JSON", [reference])
                client.set_compatibility("hits-value", "NONE")
                written.append(JSONSerializer(schema, client)(row, context))
            values: pa.BinaryArray = pa.array([*written, b"{}", written[0][:5] + b'{"path": 5}'])
            format_ = Json(registry=Registry(url), subject="hits-value")
            assert str(format_) == "Json(hits-value)"
            columns, failures = format_.decode(values)
            assert columns.to_pylist()[:2] == [
                {"path": "/a", "place": {"zip": "1"}, "ms": None},
                {"path": "/b", "place": {"zip": None}, "ms": 0.5},
            ]
            assert failures[2].startswith("the value does not begin with the id of a schema")
            assert failures[3] == "field path: expected str, got int: 5"
            assert pickle.loads(pickle.dumps(format_)).schema == format_.schema
            client.register_schema("broken-value", Schema('{"properties": {"f": {}}}', "JSON"))
            with pytest.raises(StrategyError, match="#/properties/f: it has no type; give a type"):
                _ = Json(registry=url, subject="broken-value").schema
            client.register_schema("avro-value", Schema('"string"', "AVRO"))
            with pytest.raises(
                StrategyError, match="Json: the latest schema of avro-value in http"
            ):
                _ = Json(registry=url, subject="avro-value").schema
            with pytest.raises(
                StrategyError, match="Avro: the latest schema of hits-value in http"
            ):
                _ = Avro(registry=url, subject="hits-value").schema

    await run_sync(work)
