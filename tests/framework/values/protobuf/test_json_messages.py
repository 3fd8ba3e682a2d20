"""`Struct`, `Value` and `ListValue` are text in JSON, and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from kmr import Protobuf
from kmr.values.value_format import RowsDoNotFit

from .types import class_of, field


def message() -> Any:
    file = FileDescriptorProto(name="json.proto", package="j", syntax="proto3")
    file.dependency.append("google/protobuf/struct.proto")
    type_ = file.message_type.add(name="M")
    field(type_, "s", "message", 1, of=".google.protobuf.Struct")
    field(type_, "v", "message", 2, of=".google.protobuf.Value")
    field(type_, "l", "message", 3, of=".google.protobuf.ListValue")
    several = FieldDescriptorProto.LABEL_REPEATED
    field(type_, "many", "message", 4, of=".google.protobuf.Value", label=several)
    entry = type_.nested_type.add(name="ByNameEntry")
    entry.options.map_entry = True
    field(entry, "key", "string", 1)
    field(entry, "value", "message", 2, of=".google.protobuf.Struct")
    field(type_, "by_name", "message", 5, of=".j.M.ByNameEntry", label=several)
    type_.oneof_decl.add(name="choice")
    field(type_, "a", "message", 6, of=".google.protobuf.Struct").oneof_index = 0
    field(type_, "b", "int32", 7).oneof_index = 0
    return class_of(file, "j.M")


M = message()
DOCUMENT = {"a": 1.0, "b": [True, None, "ü", {"c": 2.5}], "z": {}}


def decode(*values: bytes) -> tuple[list[dict[str, Any]], dict[int, str]]:
    columns, failures = Protobuf(M).decode(pa.array(values, pa.binary()))
    columns.validate(full=True)
    return columns.to_pylist(), failures


def test_json_of_any_form_is_text_wherever_it_is_and_is_written_back() -> None:
    full = M(b=5)
    full.s.update(DOCUMENT)
    full.v.null_value = 0
    full.l.extend([1, "x"])
    full.many.add().bool_value = True
    full.many.add().struct_value.update({"q": 1})
    full.by_name["k"].update({"w": 2})
    rows, failures = decode(full.SerializeToString(), b"", b"\x2a\x03\x0a\x01k")
    assert failures == {}
    assert msgspec.json.decode(rows[0]["s"]) == DOCUMENT
    assert (rows[0]["v"], rows[0]["l"], rows[0]["many"]) == (
        "null",
        '[1.0,"x"]',
        ["true", '{"q":1.0}'],
    )
    assert (rows[0]["by_name"], rows[0]["a"], rows[0]["b"]) == ([("k", '{"w":2.0}')], None, 5)
    assert (rows[1]["s"], rows[1]["many"]) == (None, [])
    assert rows[2]["by_name"] == [("k", "{}")]
    format_ = Protobuf(M)
    columns, _ = format_.decode(pa.array([full.SerializeToString()], pa.binary()))
    (written,) = format_.encode(pa.Table.from_batches([columns]), "t").to_pylist()
    assert M.FromString(written or b"") == full


def test_what_json_has_not_and_what_would_have_to_be_merged_fails_alone() -> None:
    no_number = M()
    no_number.v.number_value = float("nan")
    part = M()
    part.s.update({"a": 1})
    one = part.SerializeToString()
    other = M()
    other.a.update({"a": 1})
    again = other.SerializeToString() + M(b=1).SerializeToString() + other.SerializeToString()
    rows, failures = decode(
        no_number.SerializeToString(), one + one, one, b"\x0a\x02\xff\xff", again
    )
    assert failures[0].startswith("field v: it is no JSON: Fail to serialize NaN")
    assert failures[1] == "field s: it is there more than once, to be merged"
    assert failures[3].startswith("field s: it is no JSON: ")
    assert (rows[2]["s"], rows[4]["a"], rows[4]["b"]) == ('{"a":1.0}', '{"a":1.0}', None)


@pytest.mark.parametrize(
    "text", ["[1]", "{", '{"a":9007199254740993}', '{"a":NaN}', '{"a":1,"a":2}', '{"a":1e400}', "1"]
)
def test_text_that_a_struct_would_change_or_cannot_hold_is_refused(text: str) -> None:
    rows = pa.table({"s": ['{"a":1}', text]})
    with pytest.raises(RowsDoNotFit) as caught:
        Protobuf(M).encode(rows, "t")
    assert list(caught.value.failures) == [1]
    assert "field s (google.protobuf.Struct) cannot hold" in caught.value.failures[1]
