"""The message type of `Protobuf`: from the program, or from the latest schema of a subject."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from anyio.to_thread import run_sync
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import struct_pb2, timestamp_pb2

from kmr import Protobuf
from kmr.errors import RegistryError, StrategyError

from .types import All, Other

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


@pytest.mark.parametrize("given", [{}, {"registry": "http://h:1"}, {"subject": "a"}])
def test_without_a_class_a_registry_and_a_subject_are_needed(given: dict[str, str]) -> None:
    with pytest.raises(StrategyError, match="its columns are not known; give a generated class"):
        Protobuf(**given)
