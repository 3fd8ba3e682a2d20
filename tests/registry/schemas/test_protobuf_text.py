"""The text of a .proto file that is written from a descriptor."""

from __future__ import annotations

import pytest

from kmr.registry.schemas.protobuf_schema import ProtobufSchema
from kmr.registry.schemas.protobuf_text import default_json_name

PROTO3 = r"""syntax = "proto3";
package a.b;
import "google/protobuf/timestamp.proto";
import public "google/protobuf/descriptor.proto";
option java_package = "com.\"x\"\303\251";
option optimize_for = SPEED;
message Options {
  int32 x = 1;
  repeated string y = 2;
}
message Event {
  option deprecated = true;
  reserved 20, 30 to 40, 100 to max;
  reserved "old";
  message Inner {
    .a.b.Event.Inner next = 1;
  }
  string name = 1 [json_name = "title", deprecated = true, (.a.b.tag) = "hi\n\""];
  .google.protobuf.Timestamp at = 2;
  map<string, .a.b.Options> by_name = 3;
  oneof choice {
    int32 number = 4;
    .a.b.Options options = 5;
  }
  optional int32 maybe = 6;
  repeated int32 many = 7 [packed = false];
  .a.b.Event.Kind kind = 8;
  int32 z = 9 [(.a.b.details) = { x: 1 y: "a" y: "b" }, (.a.b.ratio) = 0.5];
  enum Kind {
    option allow_alias = true;
    reserved 5 to 7, 9;
    reserved "X";
    NONE = 0;
    NOTHING = 0 [deprecated = true];
    NEGATIVE = -1;
  }
}
extend .google.protobuf.FieldOptions {
  string tag = 50001;
}
extend .google.protobuf.FieldOptions {
  .a.b.Options details = 50002;
}
extend .google.protobuf.FieldOptions {
  double ratio = 50003;
}
service Events {
  rpc Get(.a.b.Event) returns (stream .a.b.Event) {
    option deprecated = true;
  }
  rpc Put(stream .a.b.Event) returns (.a.b.Event);
}
"""
PROTO2 = r"""syntax = "proto2";
message Old {
  extensions 100 to 199;
  extensions 1000 to max;
  required string name = 1 [default = "a\"b"];
  optional bytes data = 2 [default = "\001"];
  optional .Old.Level level = 3 [default = LOW];
  optional double ratio = 4 [default = inf];
  repeated group Item = 5 {
    optional bool flag = 1 [default = true];
  }
  enum Level {
    HIGH = 0;
    LOW = 1;
  }
  extend .Old {
    optional int32 more = 100;
  }
}
"""
EDITION = """edition = "2023";
option features = { field_presence: IMPLICIT };
message New {
  reserved old;
  string name = 1 [features = { field_presence: EXPLICIT }];
  repeated int32 many = 2;
}
"""


@pytest.mark.parametrize("text", [PROTO3, PROTO2, EDITION], ids=["proto3", "proto2", "edition"])
def test_a_text_compiles_to_the_descriptor_that_it_is_written_from(text: str) -> None:
    schema = ProtobufSchema(text)
    assert schema.text == text
    assert ProtobufSchema(schema.serialized()).text == text


def test_the_json_name_of_a_field_is_in_camel_case() -> None:
    assert [default_json_name(each) for each in ("a", "by_name", "_x", "a__b1_c")] == [
        "a",
        "byName",
        "X",
        "aB1C",
    ]
