"""Events in Protobuf: the message is the whole event."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kmr import Debezium, Protobuf

_F = descriptor_pb2.FieldDescriptorProto
_TEXT, _LONG, _MESSAGE = _F.TYPE_STRING, _F.TYPE_INT64, _F.TYPE_MESSAGE


def _event() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="shop", syntax="proto3")
    messages: dict[str, list[tuple[str, Any, str]]] = {
        "Value": [("id", _LONG, ""), ("name", _TEXT, ""), ("at", _LONG, "")],
        "Source": [("connector", _TEXT, ""), ("ts_ms", _LONG, ""), ("lsn", _LONG, "")],
        "Envelope": [
            ("before", _MESSAGE, ".shop.Value"),
            ("after", _MESSAGE, ".shop.Value"),
            ("source", _MESSAGE, ".shop.Source"),
            ("op", _TEXT, ""),
        ],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, type_name) in enumerate(fields, 1):
            message.field.add(
                name=field,
                number=number,
                type=kind,
                type_name=type_name or None,
                label=_F.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Envelope"))


def test_the_message_of_an_event_becomes_a_change() -> None:
    event = _event()
    source = {"connector": "postgresql", "ts_ms": 5, "lsn": 7}
    row = {"id": 1, "name": "Ann", "at": 1_700_000_000_123_456}
    values = [
        event(op="c", after=row, source=source).SerializeToString(),
        event(op="d", before={"id": 1}, source=source).SerializeToString(),
        event(op="u", source=source).SerializeToString(),
        b"\xff",
    ]
    format_ = Debezium(Protobuf(event), encodings={"at": "MicroTimestamp"})
    columns, failures = format_.decode(pa.array(values, pa.binary()))
    assert sorted(failures) == [2, 3]
    assert failures[2].startswith("field after: null")
    created, deleted, *_ = columns.to_pylist()
    assert created["at"] == dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC)
    assert (created["id"], created["name"], created["op"]) == (1, "Ann", "c")
    assert (deleted["id"], deleted["op"], deleted["before"]["id"]) == (1, "d", 1)
    assert created["position"][:8] == (7).to_bytes(8, "big")
