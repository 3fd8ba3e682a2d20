"""Which Protobuf schemas can read what others have written."""

from __future__ import annotations

import pytest

from kmr.registry.schemas.protobuf_compatibility import Files, incompatibilities
from kmr.registry.schemas.protobuf_schema import compile_files
from kmr.registry.schemas.schema_types import Dependency

PROTO3 = [
    # body of the reader's message, of the writer's, kind of the difference ("" if there is none)
    ("string a = 1; int32 b = 2;", "string a = 1;", ""),
    ("string a = 1;", "string a = 1; int32 b = 2;", ""),
    ("string renamed = 1;", "string a = 1;", ""),
    ("int64 a = 1;", "int32 a = 1;", ""),
    ("bool a = 1;", "uint64 a = 1;", ""),
    ("E a = 1; enum E { X = 0; }", "int32 a = 1;", ""),
    ("sint64 a = 1;", "sint32 a = 1;", ""),
    ("sint32 a = 1;", "int32 a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
    ("bytes a = 1;", "string a = 1;", ""),
    ("string a = 1;", "int32 a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
    ("float a = 1;", "double a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
    ("N a = 1; message N {}", "int32 a = 1;", "FIELD_KIND_CHANGED"),
    ("N a = 1; message N {}", "M a = 1; message M {}", "FIELD_NAMED_TYPE_CHANGED"),
    ("N a = 1; message N { int32 b = 1; }", "N a = 1; message N {}", ""),
    ("N a = 1; message N { int32 b = 1; }", "N a = 1; message N { string b = 1; }", "SCALAR_KIND"),
    ("N n = 1; message N { N n = 1; }", "N n = 1; message N { N n = 1; }", ""),
    ("", "message N {}", "MESSAGE_REMOVED"),
    ("message N {}", "", ""),
    ("map<string, int64> m = 1;", "map<string, int32> m = 1;", ""),
    ("map<string, string> m = 1;", "map<string, int32> m = 1;", "FIELD_SCALAR_KIND_CHANGED"),
    ("", "map<string, int32> m = 1;", ""),
    ("repeated string a = 1;", "string a = 1;", ""),
    ("repeated int32 a = 1;", "int32 a = 1;", "FIELD_NUMERIC_LABEL_CHANGED"),
    ("optional int32 a = 1;", "int32 a = 1;", ""),
    ("oneof o { int32 a = 1; string b = 2; }", "int32 a = 1;", ""),
    ("oneof o { int32 a = 1; string b = 2; }", "int32 a = 1; string b = 2;", "MULTIPLE_FIELDS"),
    (
        "oneof o { int32 a = 1; int32 b = 2; }",
        "oneof o { int32 a = 1; } int32 b = 2;",
        "FIELD_MOVED_TO_EXISTING_ONEOF",
    ),
    ("oneof o { int32 a = 1; int32 b = 2; }", "oneof o { int32 a = 1; }", ""),
    ("oneof o { int32 a = 1; }", "oneof o { int32 a = 1; int32 b = 2; }", "ONEOF_FIELD_REMOVED"),
    ("int32 a = 1;", "oneof o { int32 a = 1; int32 b = 2; }", ""),
    ("oneof p { int32 a = 1; int32 b = 2; }", "oneof o { int32 a = 1; int32 b = 2; }", ""),
]
PROTO2 = [
    ("required int32 a = 1;", "", "REQUIRED_FIELD_ADDED"),
    ("", "required int32 a = 1;", "REQUIRED_FIELD_REMOVED"),
    ("required int32 a = 1;", "optional int32 a = 1;", "REQUIRED_FIELD_ADDED"),
    ("optional group G = 1 { optional int32 a = 1; }", "optional group G = 1 {}", ""),
]
CASES = [*(("proto3", *each) for each in PROTO3), *(("proto2", *each) for each in PROTO2)]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Files]:
    """The files of all cases, compiled by one process."""
    sources = [
        Dependency(
            f"{side}{number}.proto",
            f'syntax = "{syntax}"; package {side}{number}; message T {{ {body} }}',
        )
        for number, (syntax, *bodies, _) in enumerate(CASES)
        for side, body in zip(("reader", "writer"), bodies, strict=True)
    ]
    imports = "".join(f'import "{each.name}";' for each in sources)
    files = compile_files(f'syntax = "proto3"; {imports}', sources)
    return {each.name: Files([each]) for each in files}


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=lambda number: " <- ".join(CASES[number][1:3])
)
def test_a_reader_and_a_writer_follow_the_encoding(number: int, compiled: dict[str, Files]) -> None:
    kind = CASES[number][3]
    found = incompatibilities(compiled[f"reader{number}.proto"], compiled[f"writer{number}.proto"])
    assert bool(found) is bool(kind), found
    assert kind in "".join(found)


def test_a_message_that_was_removed_from_the_file_is_missed_and_the_package_does_not_count() -> (
    None
):
    both = compile_files('syntax = "proto3"; package a; message M {} message N {}', ())
    one = compile_files('syntax = "proto3"; package b; message N {}', ())
    assert incompatibilities(Files(both), Files(one)) == []
    assert "MESSAGE_REMOVED" in incompatibilities(Files(one), Files(both))[0]
