"""Types of schemas."""

from __future__ import annotations

import pytest

from kmr.registry.error_codes import RequestRefused
from kmr.registry.schemas.schema_types import incompatibility, parse_schema


@pytest.mark.parametrize(
    ("schema_type", "text"),
    [
        ("AVRO", '"int"'),
        ("JSON", '{"type":"integer"}'),
        ("PROTOBUF", 'syntax = "proto3";\nmessage M {\n}\n'),
    ],
)
def test_each_type_parses_its_schemas(schema_type: str, text: str) -> None:
    assert parse_schema(schema_type, text).text == text


def test_an_unknown_type_and_an_empty_schema_are_refused() -> None:
    with pytest.raises(RequestRefused, match="unknown schema type 'XML'; use JSON, PROTOBUF, AVRO"):
        parse_schema("XML", "<a/>")
    with pytest.raises(RequestRefused, match="it is empty"):
        parse_schema("AVRO", "  ")


def test_a_reason_has_the_form_of_verbose_answers() -> None:
    assert incompatibility("K", "why") == "{errorType:'K', description:'why'}"
