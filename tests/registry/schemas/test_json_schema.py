"""JSON schemas: validity, references, text."""

from __future__ import annotations

import pytest

from kmr.registry.error_codes import RequestRefused
from kmr.registry.schemas.json_schema import JsonSchema
from kmr.registry.schemas.schema_types import Dependency


def test_the_text_is_without_white_space_and_normalized_sorted() -> None:
    schema = JsonSchema('{ "type": "object",\n "properties": {"é": {"minimum": 1.0}}, "a": 1}')
    assert schema.text == '{"type":"object","properties":{"é":{"minimum":1.0}},"a":1}'
    assert schema.normalized() == '{"a":1,"properties":{"é":{"minimum":1.0}},"type":"object"}'
    assert JsonSchema("true").text == "true"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("1", "neither an object"),
        ('{"type": "text"}', r"\$.type: 'text'"),
        ('{"properties": {"x": {"minimum": "1"}}}', r"\$.properties.x.minimum"),
        ('{"properties": {"x": {"$ref": "other.json"}}}', "the reference 'other.json'"),
        ('{"$ref": "#/definitions/missing"}', "cannot be resolved"),
    ],
)
def test_an_invalid_schema_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(RequestRefused, match=reason):
        JsonSchema(text)


@pytest.mark.parametrize("identity", ["", '"$id": "http://example.com/schemas/user.json",'])
def test_references_are_resolved_inside_and_by_name(identity: str) -> None:
    address = Dependency("address.json", '{"definitions": {"zip": {"type": "string"}}}')
    name = "address.json" if not identity else "http://example.com/schemas/address.json"
    user = f"""{{{identity} "definitions": {{"a": {{"type": "integer"}}}}, "properties": {{
        "age": {{"$ref": "#/definitions/a"}}, "zip": {{"$ref": "{name}#/definitions/zip"}}}}}}"""
    known = address._replace(name=name)
    text = user.replace('"string"', '"number"')
    schema, same = JsonSchema(user, [known]), JsonSchema(text, [known])
    assert schema.incompatibilities(same) == []
    changed = known._replace(text=known.text.replace("string", "number"))
    assert schema.incompatibilities(JsonSchema(user, [changed]))


def test_a_schema_of_another_draft_is_checked_by_its_own_rules() -> None:
    draft4 = '{"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": true, "minimum": 1}'
    assert JsonSchema(draft4).text
    with pytest.raises(RequestRefused):
        JsonSchema('{"exclusiveMinimum": true, "minimum": 1}')
