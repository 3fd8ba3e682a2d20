"""The message type of `Protobuf`: from the program, or from the latest schema of a subject."""

from __future__ import annotations

import base64
import datetime as dt
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from anyio.to_thread import run_sync
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kmr import Protobuf
from kmr.errors import RegistryError, StrategyError
from kmr.values.protobuf.protobuf_format import RegisteredType
from kmr.values.registry.registry import RegisteredSchema

from .types import All, Other, field

if TYPE_CHECKING:
    from kmr.broker import Broker


def test_a_module_with_one_message_stands_for_it() -> None:
    columns, _ = Protobuf(timestamp_pb2).decode(
        pa.array([timestamp_pb2.Timestamp(seconds=5).SerializeToString()], pa.binary())
    )
    assert columns.to_pylist() == [{"seconds": 5, "nanos": 0}]
    with pytest.raises(StrategyError, match="has the messages Struct, Value, ListValue"):
        Protobuf(struct_pb2)
    with pytest.raises(StrategyError, match="not a message type"):
        Protobuf(dt)


async def test_the_latest_schema_of_a_subject_has_the_message_type_and_the_files_that_it_imports(
    broker: Broker,
    registry_url: str,
) -> None:
    def work() -> None:
        url = registry_url
        context = SerializationContext("t", MessageField.VALUE)
        with SchemaRegistryClient({"url": url}) as client:
            value = ProtobufSerializer(All, client)(All(f_string="x", f_int32=7), context)
            client.register_schema(
                "outer",
                Schema(
                    'syntax = "proto3"; package t; import "all.proto"; '
                    "message Outer { t.Inner inner = 1; }",
                    "PROTOBUF",
                    [SchemaReference("all.proto", "t-value", 1)],
                ),
            )
        by_name = Protobuf("All", registry=url, subject="t-value")
        assert by_name.schema == Protobuf("t.All", registry=url, subject="t-value").schema
        assert by_name.schema == Protobuf(All).schema
        columns, failures = pickle.loads(pickle.dumps(by_name)).decode(pa.array([value]))
        assert failures == {}
        assert columns.to_pylist()[0]["f_string"] == "x"
        first = Protobuf(registry=url, subject="t-value")
        assert first.schema == Protobuf(Other).schema
        inner = Protobuf(registry=url, subject="outer").schema.field("inner").type
        assert {each.name for each in inner} == {"n", "tags"}

    await run_sync(work)


async def test_a_type_that_a_registry_does_not_have_is_refused(
    broker: Broker,
    registry_url: str,
) -> None:
    def work() -> None:
        url = registry_url
        with SchemaRegistryClient({"url": url}) as client:
            client.register_schema("a", Schema('syntax = "proto3"; message A {}', "PROTOBUF"))
            client.register_schema("b", Schema('"long"', "AVRO"))
        with pytest.raises(StrategyError, match=r"of a in http.* has no message B; it has: A"):
            _ = Protobuf("B", registry=url, subject="a").schema
        with pytest.raises(StrategyError, match=r"of b in http.* is AVRO"):
            _ = Protobuf(registry=url, subject="b").schema
        with pytest.raises(RegistryError, match="Subject 'c' not found"):
            _ = Protobuf(registry=url, subject="c").schema

    await run_sync(work)


class Served:
    """A registry of files, by the name that other files import them by."""

    url = "http://registry:1"

    def __init__(self, **files: FileDescriptorProto) -> None:
        self._ids = dict(enumerate(files))
        self._files = files

    def by_version(self, subject: str) -> RegisteredSchema:
        number = [*self._files].index(subject)
        return RegisteredSchema("", "PROTOBUF", id=number)

    def references(self, schema: RegisteredSchema) -> dict[str, RegisteredSchema]:
        numbers = range(schema.id)
        return {f"{self._ids[at]}.proto": RegisteredSchema("", "PROTOBUF", id=at) for at in numbers}

    def serialized(self, number: int) -> str:
        return base64.b64encode(self._files[self._ids[number]].SerializeToString()).decode()


def file(message: str, imported: str = "", of: str = "") -> FileDescriptorProto:
    made = FileDescriptorProto(name="default", package="t", syntax="proto3")
    made.dependency.extend([imported] if imported else [])
    field(made.message_type.add(name=message), "n", "int32", 1)
    if of:
        field(made.message_type[0], "inner", "message", 2, of=of)
    return made


def test_a_schema_in_a_registry_imports_the_files_of_googles_libraries() -> None:
    """In a new process: a library that a test has imported would be found."""
    code = """if True:
        import pyarrow as pa
        from kmr.values.protobuf.protobuf_format import RegisteredType
        from kmr.values.protobuf.messages import MessageColumns
        from tests.framework.values.protobuf.test_message_source import Served, file
        for name, of in [("protobuf/duration", "protobuf.Duration"), ("type/money", "type.Money")]:
            served = Served(m=file("M", f"google/{name}.proto", f".google.{of}"))
            print(MessageColumns(RegisteredType(served, "m", None).load()).schema.field("inner").type)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == [
        "struct<seconds: int64, nanos: int32>",
        "struct<currency_code: string, units: int64, nanos: int32>",
    ], done.stderr


def test_a_file_may_be_imported_by_the_name_of_the_subject() -> None:
    registry: Any = Served(inner=file("Inner"), outer=file("Outer", "inner.proto", ".t.Inner"))
    assert RegisteredType(registry, "outer", None).load().full_name == "t.Outer"
    registry = Served(a=file("A"), b=file("B", "a.proto", ".t.A"))
    registry.references = lambda schema: {"b.proto": RegisteredSchema("", "PROTOBUF", id=0)}
    registry._files["b"].dependency[0] = "b.proto"
    assert RegisteredType(registry, "b", None).load().fields_by_name["inner"].message_type


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (file("M", "nowhere.proto", ".t.N"), "'nowhere.proto', but it has not been loaded"),
        (file("M", "google/nowhere.proto", ".t.N"), "the library that has google.nowhere_pb2"),
        (file("M", "", ".t.Nobody"), "couldn't resolve name '.t.Nobody'"),
    ],
)
def test_a_schema_that_cannot_be_a_type_is_refused(made: FileDescriptorProto, reason: str) -> None:
    registry: Any = Served(m=made)
    with pytest.raises(StrategyError, match=reason):
        RegisteredType(registry, "m", None).load()


@pytest.mark.parametrize("given", [{}, {"registry": "http://h:1"}, {"subject": "a"}])
def test_without_a_class_a_registry_and_a_subject_are_needed(given: Any) -> None:
    with pytest.raises(StrategyError, match="its columns are not known; give a generated class"):
        Protobuf(**given)
