"""Confluent's Python client works with the registry unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUE = SerializationContext("hits", MessageField.VALUE)
HIT = """{"type": "record", "name": "Hit", "namespace": "web", "fields": [
    {"name": "path", "type": "string"}, {"name": "ms", "type": ["null", "double"], "default": null}]}"""


@pytest.fixture
def client(registry_url: str) -> Iterator[SchemaRegistryClient]:
    """Confluent's client; each call is made in a thread, because the broker is in this event loop."""
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


async def test_schemas_are_registered_found_checked_and_deleted(client: Any) -> None:
    def run() -> None:
        schema = Schema(HIT, "AVRO")
        assert client.register_schema("a/b", schema) == 1
        assert client.get_schema(1).schema_type == "AVRO"
        assert client.lookup_schema("a/b", schema).version == 1
        assert client.get_subjects() == ["a/b"]
        assert client.get_versions("a/b") == [1]
        assert client.get_latest_version("a/b").schema_id == 1
        wrong = Schema(HIT.replace('"path"', '"way"'), "AVRO")
        assert client.test_compatibility("a/b", wrong) is False
        with pytest.raises(SchemaRegistryError, match="READER_FIELD_MISSING") as caught:
            client.register_schema("a/b", wrong)
        assert caught.value.http_status_code == 409
        client.set_compatibility("a/b", "NONE")
        assert client.get_compatibility("a/b") == "NONE"
        assert client.register_schema("a/b", wrong) == 2
        user = Schema('["web.Hit"]', "AVRO", [SchemaReference("web.Hit", "a/b", 1)])
        assert client.register_schema("user", user) == 3
        assert client.delete_version("a/b", 2) == 2
        assert client.delete_subject("user") == [1]
        assert client.delete_subject("user", permanent=True) == [1]
        assert client.delete_subject("a/b") == [1]

    await to_thread.run_sync(run)


async def test_avros_serializer_and_deserializer_agree(client: Any) -> None:
    def run() -> None:
        hit = {"path": "/", "ms": 1.5}
        data = AvroSerializer(client, HIT)(hit, VALUE)
        assert data[:5] == b"\0\0\0\0\1"
        assert AvroDeserializer(client)(data, VALUE) == hit
        assert client.get_subjects() == ["hits-value"]

    await to_thread.run_sync(run)


async def test_the_json_serializer_and_deserializer_agree(client: Any) -> None:
    address = """{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Address",
        "type": "object", "properties": {"zip": {"type": "string"}}}"""
    user = """{"$schema": "http://json-schema.org/draft-07/schema#", "title": "User",
        "type": "object", "properties": {"home": {"$ref": "address.json"}}}"""

    def run() -> None:
        client.register_schema("address", Schema(address, "JSON"))
        schema = Schema(user, "JSON", [SchemaReference("address.json", "address", 1)])
        data = JSONSerializer(schema, client)({"home": {"zip": "1"}}, VALUE)
        assert JSONDeserializer(None, schema_registry_client=client)(data, VALUE) == {
            "home": {"zip": "1"}
        }
        assert client.get_latest_version("hits-value").schema.references[0].name == "address.json"

    await to_thread.run_sync(run)


def message_class(pool: descriptor_pool.DescriptorPool, name: str, file: dict[str, Any]) -> Any:
    """A class as protoc generates it, of a message in a file."""
    pool.AddSerializedFile(descriptor_pb2.FileDescriptorProto(**file).SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


async def test_protobufs_serializer_registers_imports_and_its_deserializer_agrees(
    client: Any,
) -> None:
    field, message = descriptor_pb2.FieldDescriptorProto, descriptor_pb2.DescriptorProto
    pool = descriptor_pool.DescriptorPool()
    code = field(name="code", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    home = field(name="home", number=1, label=field.LABEL_OPTIONAL)
    home.MergeFrom(field(type=field.TYPE_MESSAGE, type_name=".geo.Zip"))
    address_file = {"name": "geo/address.proto", "package": "geo", "syntax": "proto3"}
    user_file = {"name": "user.proto", "syntax": "proto3", "dependency": ["geo/address.proto"]}
    zip_ = message_class(
        pool, "geo.Zip", {**address_file, "message_type": [message(name="Zip", field=[code])]}
    )
    first = message(name="First", nested_type=[message(name="User", field=[home])])
    user = message_class(
        pool, "First.User", {**user_file, "message_type": [message(name="Zero"), first]}
    )

    def run() -> None:
        serializer = ProtobufSerializer(user, client, {"use.deprecated.format": False})
        deserializer = ProtobufDeserializer(user, {}, client)
        sent = user(home=zip_(code="8000"))
        assert deserializer(serializer(sent, VALUE), VALUE) == sent
        assert client.get_subjects() == ["geo/address.proto", "hits-value"]
        found = client.get_latest_version("hits-value").schema
        assert 'import "geo/address.proto";' in found.schema_str
        assert found.references[0].subject == "geo/address.proto"
        assert client.get_schema(2, fmt="serialized").schema_str != found.schema_str

    await to_thread.run_sync(run)
