"""Avro schemas: canonical text, and the rules of schema resolution."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kmr.registry.error_codes import RequestRefused
from kmr.registry.schemas.avro_schema import AvroSchema
from kmr.registry.schemas.schema_types import Dependency


def avro(schema: Any) -> AvroSchema:
    return AvroSchema(json.dumps(schema))


def record(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


X, Y = {"name": "x", "type": "int"}, {"name": "y", "type": "string", "default": ""}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, '"string"'),
        ({"type": "int", "logicalType": "date"}, '{"type":"int","logicalType":"date"}'),
        ({"type": "long", "logicalType": "x"}, '{"type":"long","logicalType":"x"}'),
        (["null", {"type": "long"}], '["null","long"]'),
        ({"items": {"type": "int"}, "type": "array"}, '{"type":"array","items":"int"}'),
        (
            {"fields": [{"type": {"type": "int"}, "name": "x"}], "name": "a.b.R", "type": "record"},
            '{"type":"record","name":"R","namespace":"a.b","fields":[{"name":"x","type":"int"}]}',
        ),
        (
            record(
                {"name": "e", "type": {"type": "enum", "name": "a.E", "symbols": ["A"]}},
                {"order": "ignore", "name": "f", "type": "a.E", "default": "A", "doc": "d", "z": 1},
                {"name": "n", "type": ["null", "R"], "default": None, "aliases": ["m"]},
                namespace="a",
                doc="documented",
                aliases=["a.Old", "b.Older"],
                owner="me",
            ),
            (
                '{"type":"record","name":"R","namespace":"a","doc":"documented","fields":['
                '{"name":"e","type":{"type":"enum","name":"E","symbols":["A"]}},'
                '{"name":"f","type":"E","doc":"d","default":"A","order":"ignore","z":1},'
                '{"name":"n","type":["null","R"],"default":null,"aliases":["m"]}],'
                '"owner":"me","aliases":["Old","b.Older"]}'
            ),
        ),
    ],
)
def test_the_text_is_that_of_javas_library(schema: Any, text: str) -> None:
    parsed = avro(schema)
    assert parsed.text == text
    assert AvroSchema(text).text == text


def test_the_normal_form_sorts_properties_and_aliases() -> None:
    one = avro(record(X, aliases=["B", "A"], p=1, o=2)).normalized()
    assert one == avro(record(X, o=2, aliases=["A", "B"], p=1)).normalized()


@pytest.mark.parametrize(
    "text",
    ["", "string", "{", '"nope"', '{"type":"record"}', "1", "null", '{"type":"array"}', "[[]]"],
)
def test_an_invalid_schema_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused, match="Invalid schema"):
        AvroSchema(text)


def test_a_schema_may_use_the_names_of_its_dependencies() -> None:
    address = Dependency("a.Address", json.dumps(record(X, name="Address", namespace="a")))
    user = record({"name": "home", "type": "a.Address"})
    assert "a.Address" in AvroSchema(json.dumps(user), [address]).text
    with pytest.raises(RequestRefused):
        avro(user)


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


@pytest.mark.parametrize(
    ("reader", "writer", "kind"),
    [
        (record(X, Y), record(X), ""),
        (record(X), record(X, Y), ""),
        (record(X, {"name": "y", "type": "string"}), record(X), "READER_FIELD_MISSING_DEFAULT"),
        ("long", "int", ""),
        ("int", "long", "TYPE_MISMATCH"),
        ("double", "float", ""),
        ("string", "bytes", ""),
        (["null", "int"], "int", ""),
        ("int", ["null", "int"], "TYPE_MISMATCH"),
        (["null", "int"], ["null", "int", "string"], "MISSING_UNION_BRANCH"),
        (enum("A", "B"), enum("A"), ""),
        (enum("A"), enum("A", "B"), "MISSING_ENUM_SYMBOLS"),
        (enum("A", default="A"), enum("A", "B"), ""),
        (record(X, name="Q"), record(X), "NAME_MISMATCH"),
        (record(X, name="Q", aliases=["R"]), record(X), ""),
        (record({**X, "name": "z", "aliases": ["x"]}), record(X), ""),
        (
            {"type": "fixed", "name": "F", "size": 4},
            {"type": "fixed", "name": "F", "size": 8},
            "FIXED_SIZE_MISMATCH",
        ),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, ""),
        (
            record({"name": "next", "type": ["null", "R"]}, Y),
            record({"name": "next", "type": ["null", "R"]}),
            "",
        ),
    ],
)
def test_a_reader_and_a_writer_follow_avros_resolution(reader: Any, writer: Any, kind: str) -> None:
    found = avro(reader).incompatibilities(avro(writer))
    assert bool(found) is bool(kind)
    assert kind in "".join(found)
