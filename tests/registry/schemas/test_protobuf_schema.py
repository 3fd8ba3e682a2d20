"""Protobuf's schemas: from text and from descriptors, with imports."""

from __future__ import annotations

import base64

import pytest

from kmr.registry.error_codes import RequestRefused
from kmr.registry.schemas.protobuf_schema import ProtobufSchema
from kmr.registry.schemas.schema_types import Dependency

ZIP = Dependency(
    "geo/zip.proto", 'syntax = "proto3"; package geo; message Zip { string code = 1; }'
)
USER = """syntax = "proto3"; // a comment
import "geo/zip.proto";
message User { geo.Zip home = 1; }"""


def test_equal_schemas_have_the_same_text_however_they_are_sent() -> None:
    schema = ProtobufSchema(USER, [ZIP])
    other = USER.replace("geo.Zip", ".geo.Zip").replace("{", "{\n").replace("// a comment", "")
    assert ProtobufSchema(other, [ZIP]).text == schema.text == schema.normalized()
    assert ProtobufSchema(schema.serialized(), [ZIP]).text == schema.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'syntax = "proto3"; message M { nope x = 1; }',
            'Invalid schema: line 1:32: "nope" is not defined',
        ),
        ("message", "Expected message name"),
        ('import "other.proto";', "other.proto: File not found"),
        (base64.b64encode(b"\x12\x01x\x1a\x01y").decode(), "y: File not found"),
    ],
)
def test_an_invalid_schema_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(RequestRefused, match=reason):
        ProtobufSchema(text)


@pytest.mark.parametrize("name", ["../x.proto", "/x.proto"])
def test_a_reference_cannot_leave_its_directory(name: str) -> None:
    with pytest.raises(RequestRefused, match="is not the path of an import"):
        ProtobufSchema('syntax = "proto3";', [Dependency(name, "")])
