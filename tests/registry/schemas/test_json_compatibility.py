"""Which JSON schemas accept everything that others accept."""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from kmr.registry.schemas.json_schema import JsonSchema
from tests.examples import examples

INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
TEXT: dict[str, Any] = {"type": "string"}


def open_(*required: str, **properties: Any) -> dict[str, Any]:
    """An object that may have other properties."""
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    """An object without other properties."""
    return {**open_(*required, **properties), "additionalProperties": False}


def recursive(**properties: Any) -> dict[str, Any]:
    return closed(next={"$ref": "#"}, **properties)


CASES: list[tuple[Any, Any, str]] = [
    # reader, writer, kind of the difference ("" if there is none)
    (NUMBER, INTEGER, ""),
    (INTEGER, NUMBER, "TYPE_NARROWED"),
    (TEXT, INTEGER, "TYPE_CHANGED"),
    ({"type": ["string", "null"]}, TEXT, ""),
    (TEXT, {"type": ["string", "null"]}, "TYPE_NARROWED"),
    (True, TEXT, ""),
    ({"title": "x"}, TEXT, ""),
    (TEXT, True, "TYPE_NARROWED"),
    (False, TEXT, "TYPE_NARROWED"),
    (TEXT, False, ""),
    ({**TEXT, "description": "new", "format": "date"}, TEXT, ""),
    # properties
    (open_(x=INTEGER, y=TEXT), open_(x=INTEGER), "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"),
    (open_(x=INTEGER, y={}), open_(x=INTEGER), ""),
    (open_(x=INTEGER), open_(x=INTEGER, y=TEXT), ""),
    (closed(x=INTEGER, y=TEXT), closed(x=INTEGER), ""),
    (closed(x=INTEGER), closed(x=INTEGER, y=TEXT), "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"),
    (closed("y", x=INTEGER, y=TEXT), closed(x=INTEGER), "REQUIRED_ATTRIBUTE_ADDED"),
    (closed("y", x=INTEGER, y={**TEXT, "default": ""}), closed(x=INTEGER), ""),
    (closed(x=INTEGER), closed("x", x=INTEGER), ""),
    (closed(x=INTEGER), open_(x=INTEGER), "ADDITIONAL_PROPERTIES_NARROWED"),
    (open_(x=INTEGER), closed(x=INTEGER), ""),
    (open_(x=open_(y=INTEGER)), open_(x=open_(y=NUMBER)), "TYPE_NARROWED"),
    (
        {**open_(), "additionalProperties": TEXT},
        {**open_(y=TEXT), "additionalProperties": False},
        "",
    ),
    (
        {**closed(), "patternProperties": {"^a": TEXT}},
        {**closed(), "patternProperties": {"^a": INTEGER}},
        "TYPE_CHANGED",
    ),
    ({**closed(), "patternProperties": {"^a": TEXT}}, closed(ab=TEXT), ""),
    ({**open_(), "maxProperties": 2}, {**open_(), "maxProperties": 3}, "MAX_PROPERTIES_CHANGED"),
    ({**open_(), "dependencies": {"a": ["b"]}}, open_(), "DEPENDENCY_ADDED"),
    (
        {**open_(), "dependencies": {"a": ["b"]}},
        {**open_(), "dependencies": {"a": ["b", "c"]}},
        "",
    ),
    ({**open_(), "propertyNames": {"maxLength": 3}}, open_(), "ADDITIONAL_PROPERTIES_NARROWED"),
    # limits
    ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 5}, ""),
    ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 6}, "MAX_LENGTH_CHANGED"),
    ({**TEXT, "maxLength": 5}, TEXT, "MAX_LENGTH_ADDED"),
    (TEXT, {**TEXT, "maxLength": 5}, ""),
    ({**TEXT, "minLength": 0}, TEXT, ""),
    ({**TEXT, "minLength": 1}, TEXT, "MIN_LENGTH_ADDED"),
    ({**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"}, "PATTERN_CHANGED"),
    (TEXT, {**TEXT, "pattern": "b"}, ""),
    ({**NUMBER, "minimum": 2}, {**NUMBER, "minimum": 1}, "MINIMUM_CHANGED"),
    ({**NUMBER, "minimum": 1}, {**NUMBER, "exclusiveMinimum": 1}, ""),
    ({**NUMBER, "exclusiveMaximum": 1}, {**NUMBER, "maximum": 1}, "MAXIMUM_CHANGED"),
    ({**NUMBER, "multipleOf": 2}, {**NUMBER, "multipleOf": 4}, ""),
    ({**NUMBER, "multipleOf": 4}, {**NUMBER, "multipleOf": 2}, "MULTIPLE_OF_CHANGED"),
    # values
    ({"enum": ["a", "b"]}, {"enum": ["a"]}, ""),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}, "ENUM_ARRAY_NARROWED"),
    (TEXT, {"const": "a"}, ""),
    ({"const": "a"}, TEXT, "ENUM_ARRAY_NARROWED"),
    (INTEGER, {"enum": [1, "b"]}, "ENUM_ARRAY_NARROWED"),
    # arrays
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": INTEGER}, ""),
    ({"type": "array", "items": INTEGER}, {"type": "array"}, "TYPE_NARROWED"),
    ({"type": "array", "uniqueItems": True}, {"type": "array"}, "UNIQUE_ITEMS_ADDED"),
    (
        {"type": "array", "items": [TEXT], "additionalItems": False},
        {"type": "array", "items": [TEXT, TEXT], "additionalItems": False},
        "TYPE_NARROWED",
    ),
    # combinations
    ({"oneOf": [TEXT, INTEGER]}, {"oneOf": [TEXT]}, ""),
    ({"oneOf": [TEXT]}, {"oneOf": [TEXT, INTEGER]}, "SUM_TYPE_NARROWED"),
    ({"anyOf": [TEXT, INTEGER]}, TEXT, ""),
    (TEXT, {"anyOf": [TEXT, INTEGER]}, "TYPE_CHANGED"),
    ({"allOf": [open_("x", x=INTEGER)]}, {"allOf": [open_("x", x=INTEGER), open_("y")]}, ""),
    (
        {"allOf": [open_("x", x=INTEGER), open_("y")]},
        {"allOf": [open_("x", x=INTEGER)]},
        "REQUIRED_ATTRIBUTE_ADDED",
    ),
    (open_("x", "y", x=INTEGER), {"allOf": [open_("x", x=INTEGER), open_("y")]}, ""),
    ({"not": TEXT}, {"not": {"type": ["string", "null"]}}, ""),
    ({"not": {"type": ["string", "null"]}}, {"not": TEXT}, "NOT_TYPE_EXTENDED"),
    ({"if": TEXT, "then": {"maxLength": 3}}, {}, "KEYWORD_CHANGED"),
    # patterns that RE2 knows, and Python's re does not
    ({"pattern": r"^\p{L}$"}, {"const": "a"}, ""),
    ({"pattern": r"^\p{L}$"}, {"const": "1"}, "ENUM_ARRAY_NARROWED"),
    # values of an enum that properties of a pattern, and the others, refuse
    ({"patternProperties": {"^a": TEXT}}, {"const": {"ab": 1, "b": 1}}, "ENUM_ARRAY_NARROWED"),
    ({"patternProperties": {"^a": TEXT}}, {"const": {"ab": "x", "b": 1}}, ""),
    (
        {"patternProperties": {"^a": TEXT}, "additionalProperties": False},
        {"const": {"b": 1}},
        "ENUM_ARRAY_NARROWED",
    ),
    # patterns that RE2 does not know
    (
        {**closed(), "patternProperties": {r"^(?!b)": TEXT}},
        {**closed(a=TEXT), "patternProperties": {r"^(?!b)": TEXT}},
        "",
    ),
    ({"pattern": r"^(?!b)"}, {"const": "a"}, "ENUM_ARRAY_NARROWED"),
    # references
    (recursive(x=NUMBER), recursive(x=INTEGER), ""),
    (recursive(x=INTEGER), recursive(x=NUMBER), "TYPE_NARROWED"),
    (
        {"definitions": {"t": TEXT}, "properties": {"x": {"$ref": "#/definitions/t"}}},
        {"properties": {"x": {"type": "string", "maxLength": 3}}},
        "",
    ),
    (
        {"definitions": {"t": TEXT}, "$ref": "#/definitions/t", "maxLength": 3},
        TEXT,
        "MAX_LENGTH_ADDED",
    ),
]


@pytest.mark.parametrize(("reader", "writer", "kind"), CASES)
def test_a_reader_accepts_what_a_writer_allows(reader: Any, writer: Any, kind: str) -> None:
    found = JsonSchema(json.dumps(reader)).incompatibilities(JsonSchema(json.dumps(writer)))
    assert bool(found) is bool(kind), found
    assert kind in "".join(found)


def test_schemas_that_are_nested_too_deeply_are_incompatible() -> None:
    def deep(title: str) -> JsonSchema:
        schema: dict[str, Any] = {**TEXT, "title": title}
        for _ in range(20):
            schema = {"type": "array", "items": {"anyOf": [schema]}}
        return JsonSchema(json.dumps(schema))

    one, other = deep("a"), deep("b")
    assert one.incompatibilities(other) == []
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(sum(1 for _ in traceback.walk_stack(None)) + 80)
    try:
        found = one.incompatibilities(other)
    finally:
        sys.setrecursionlimit(limit)
    assert "TOO_DEEP" in found[0]


def test_every_schema_accepts_its_own_documents() -> None:
    for reader, writer, _ in CASES:
        for each in (reader, writer):
            assert (
                JsonSchema(json.dumps(each)).incompatibilities(JsonSchema(json.dumps(each))) == []
            )


scalars = st.sampled_from(
    [TEXT, INTEGER, NUMBER, {"enum": [1, "a"]}, {**TEXT, "maxLength": 1}, True]
)
schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(
            lambda properties, required, additional: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": additional,
            },
            st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
            st.lists(st.sampled_from("xy"), max_size=1),
            st.sampled_from([True, False, TEXT]),
        ),
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(
            lambda kind, parts: {kind: parts},
            st.sampled_from(["anyOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=2),
        ),
    ),
    max_leaves=4,
)
documents = st.recursive(
    st.sampled_from([None, 1, 1.5, "a", "ab"]),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("xyz"), inner, max_size=2), st.lists(inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=examples(120))
@given(schemas, schemas, st.lists(documents, min_size=5, max_size=20))
def test_no_document_of_a_compatible_writer_is_refused(
    reader: Any, writer: Any, found: list[Any]
) -> None:
    if JsonSchema(json.dumps(reader)).incompatibilities(JsonSchema(json.dumps(writer))):
        return
    accepts, wrote = Draft7Validator(reader), Draft7Validator(writer)
    for each in found:
        assert accepts.is_valid(each) or not wrote.is_valid(each), each
