"""Values of producers that put the schema's id in a header are read as those that begin with it."""

from __future__ import annotations

from io import StringIO
from typing import Any
from uuid import UUID

import msgspec
from anyio.to_thread import run_sync
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kmr import Avro, Json, Protobuf, Record, Strategy
from kmr.record import Header
from kmr.sinks import StreamWriter
from kmr.testing import run_strategy
from kmr.values.registry.framing import message_prefix, prefix
from kmr.values.registry.id_headers import schema_id_of
from tests.framework.values.protobuf.types import All, Other

HIT = '{"type": "record", "name": "Hit", "fields": [{"name": "n", "type": "int"}]}'
JSON_HIT = '{"title": "Hit", "type": "object", "properties": {"n": {"type": "integer"}}}'
HEADER = "__value_schema_id"


class Hit(msgspec.Struct):
    n: int


class Keyed(msgspec.Struct):
    a: int


def record(
    value: bytes | None, *headers: tuple[str, bytes | None], key: bytes | None = None
) -> Record:
    return Record("hits", 0, 0, key, value, 0, 0, headers=tuple(Header(*each) for each in headers))


def rows_and_reasons(format_: Any, *records: Record, **options: Any) -> tuple[list[Any], list[str]]:
    strategy = Strategy(value=format_, reduce=StreamWriter(StringIO()), **options)
    run = run_strategy(
        strategy, [msgspec.structs.replace(each, offset=at) for at, each in enumerate(records)]
    )
    return run.rows, [failure["reason"] for failure in run.failures]


async def test_what_confluents_serializers_write_with_headers_is_read(registry_url: str) -> None:
    def work() -> None:
        with SchemaRegistryClient({"url": registry_url}) as client:
            options = {"schema.id.serializer": header_schema_id_serializer}
            for schema, serializer in (
                (HIT, AvroSerializer(client, HIT, conf=options)),
                (JSON_HIT, JSONSerializer(JSON_HIT, client, conf=options)),
            ):
                headers: list[Any] = []
                topic = "avro" if schema is HIT else "json"
                context = SerializationContext(topic, MessageField.VALUE, headers)
                value = serializer({"n": 0}, context)  # Avro's is a zero byte
                format_ = (Avro if schema is HIT else Json)(Hit, registry=registry_url)
                old = prefix(1 if schema is HIT else 2) + value
                found = rows_and_reasons(format_, record(value, *headers), record(old))
                assert found == ([{"n": 0}, {"n": 0}], [])
                assert len(headers[0][1]) == 17

    await run_sync(work)


async def test_headers_with_ids_and_of_keys_are_read_and_what_names_no_schema_fails_alone(
    registry_url: str,
) -> None:
    def work() -> None:
        with SchemaRegistryClient({"url": registry_url}) as client:
            client.register_schema("hits-value", Schema(HIT, "AVRO"))
        unknown = UUID(int=7)
        rows, reasons = rows_and_reasons(
            Avro(Hit, registry=registry_url),
            record(b"\2", (HEADER, prefix(1)), ("other", b"")),
            record(b"\2", (HEADER, b"\1" + unknown.bytes)),
            record(b"\2", (HEADER, b"nine")),
            record(b"\2", (HEADER, prefix(9))),
            record(None, (HEADER, prefix(1))),
            record(b"\4", (HEADER, b"damaged"), (HEADER, prefix(1))),
        )
        assert rows == [{"n": 1}, {"n": 2}]
        assert reasons[0].startswith(
            f"header {HEADER}: registry {registry_url}: /schemas/guids/{unknown}"
        )
        assert reasons[1].startswith(f"header {HEADER}: b'nine' is no id of a schema")
        assert reasons[2].startswith("schema 9 is unknown")

    await run_sync(work)


def test_the_position_of_a_message_is_in_the_header_and_keys_have_a_header_of_their_own() -> None:
    all_, other = (Protobuf(cls, registry="http://localhost:1") for cls in (All, Other))
    guid = b"\1" + bytes(16)
    third = record(All(f_int32=5).SerializeToString(), (HEADER, prefix(3) + message_prefix([2])))
    rows, reasons = rows_and_reasons(all_, third, record(b"", (HEADER, prefix(3) + b"\0")))
    assert ([row["f_int32"] for row in rows], len(reasons)) == ([5], 1)
    keyed = record(b'{"a": 1}', ("__key_schema_id", guid + b"\0"), key=b"\x08\x06")
    assert rows_and_reasons(Json(Keyed), keyed, key=other) == ([{"a": 1, "n": 6}], [])


def test_a_letter_has_the_id_of_the_header() -> None:
    assert schema_id_of(b"\2", [(HEADER, prefix(7))]) == 7
    assert schema_id_of(prefix(8) + b"\2", []) == 8
    assert schema_id_of(b"\2", [(HEADER, b"\1" + bytes(16))]) is None
    assert schema_id_of(None, []) is None
