"""Message types with fields of every kind, made without protoc."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from google.protobuf.message import Message

F = FieldDescriptorProto
KNOWN = [
    import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
]
SCALARS = [
    "int64", "uint64", "int32", "uint32", "sint64", "sint32", "fixed64", "sfixed64", "fixed32", "sfixed32",
    "double", "float", "bool", "string", "bytes",
]  # fmt: skip


def field(
    into: Any, name: str, type_: str, number: int, *, label: int = F.LABEL_OPTIONAL, of: str = ""
) -> Any:
    """Add a field to a message."""
    added = into.field.add(name=name, number=number, label=label, json_name=name)
    added.type = getattr(F, f"TYPE_{type_.upper()}")
    if of:
        added.type_name = of
    return added


def all_kinds() -> FileDescriptorProto:
    """Return a file with the messages `t.Other` and `t.All`."""
    file = FileDescriptorProto(name="all.proto", package="t", syntax="proto3")
    file.dependency.extend([f"google/protobuf/{name}.proto" for name in ("timestamp", "wrappers")])
    enum = file.enum_type.add(name="Color")
    for number, name in [(0, "NONE"), (5, "RED"), (-3, "DARK")]:
        enum.value.add(name=name, number=number)
    field(file.message_type.add(name="Other"), "n", "int32", 1)
    inner = file.message_type.add(name="Inner")
    field(inner, "n", "int32", 1)
    field(inner, "tags", "string", 2, label=F.LABEL_REPEATED)
    all_ = file.message_type.add(name="All")
    for number, name in enumerate(SCALARS, 1):
        field(all_, f"f_{name}", name, number)
        field(all_, f"r_{name}", name, 30 + number, label=F.LABEL_REPEATED)
    field(all_, "color", "enum", 20, of=".t.Color")
    field(all_, "colors", "enum", 21, of=".t.Color", label=F.LABEL_REPEATED)
    field(all_, "inner", "message", 22, of=".t.Inner")
    field(all_, "inners", "message", 23, of=".t.Inner", label=F.LABEL_REPEATED)
    field(all_, "at", "message", 24, of=".google.protobuf.Timestamp")
    field(all_, "wrapped", "message", 25, of=".google.protobuf.Int64Value")
    entry = all_.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    field(entry, "key", "string", 1)
    field(entry, "value", "int64", 2)
    field(all_, "counts", "message", 26, of=".t.All.CountsEntry", label=F.LABEL_REPEATED)
    all_.oneof_decl.add(name="choice")
    field(all_, "a", "string", 27).oneof_index = 0
    field(all_, "b", "int64", 28).oneof_index = 0
    all_.oneof_decl.add(name="_maybe")
    maybe = field(all_, "maybe", "int32", 29)
    maybe.oneof_index, maybe.proto3_optional = 1, True
    return file


def pool_of(file: FileDescriptorProto) -> DescriptorPool:
    """Return a pool with a file, and those that it imports."""
    pool = DescriptorPool()
    for known in KNOWN:
        pool.AddSerializedFile(known.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def class_of(file: FileDescriptorProto, name: str) -> type[Message]:
    """Return the class of a message type of a file."""
    return GetMessageClass(pool_of(file).FindMessageTypeByName(name))


POOL = pool_of(all_kinds())
All: type[Message] = GetMessageClass(POOL.FindMessageTypeByName("t.All"))
Other: type[Message] = GetMessageClass(POOL.FindMessageTypeByName("t.Other"))
