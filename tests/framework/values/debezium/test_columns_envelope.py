"""Events in Avro: the columns are those of the row in the schema of the whole event."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kmr import Avro, Debezium, Json
from kmr.errors import StrategyError


def _connect(kind: str, name: str) -> Any:
    return {"type": kind, "connect.version": 1, "connect.name": name}


VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "day", "type": ["null", _connect("int", "io.debezium.time.Date")]},
        {"name": "at", "type": ["null", _connect("long", "io.debezium.time.MicroTimestamp")]},
        {
            "name": "zoned",
            "type": ["null", _connect("string", "io.debezium.time.ZonedTimestamp")],
        },
        {
            "name": "price",
            "type": [
                "null",
                {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            ],
        },
    ],
}
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "namespace": "server.public.customers",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    {"name": "connector", "type": "string"},
                    {"name": "ts_ms", "type": "long"},
                    {"name": "lsn", "type": ["null", "long"]},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {
            "name": "transaction",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "block",
                    "fields": [
                        {"name": "id", "type": "string"},
                        {"name": "total_order", "type": "long"},
                    ],
                },
            ],
        },
    ],
}
ROW = {
    "id": 1,
    "name": "Ann",
    "day": 19_675,
    "at": 1_700_000_000_123_456,
    "zoned": "2023-11-14T22:13:20.123456Z",
    "price": Decimal("1.25"),
}
AT = dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC)


def event(op: str, before: Any, after: Any, lsn: int | None = 7) -> bytes:
    into = BytesIO()
    source = {"connector": "postgresql", "ts_ms": 5, "lsn": lsn}
    whole = {"before": before, "after": after, "source": source, "op": op}
    whole["transaction"] = {"id": "9", "total_order": 1}
    fastavro.schemaless_writer(into, fastavro.parse_schema(ENVELOPE), whole)
    return into.getvalue()


def test_the_encodings_come_from_the_names_in_the_schema() -> None:
    format_ = Debezium(Avro(ENVELOPE))
    row = {"name": "Ann", "day": dt.date(2023, 11, 14), "at": AT, "zoned": AT}
    row |= {"id": 1, "price": Decimal("1.25")}
    values = [event("c", None, ROW), event("d", ROW, None), event("m", None, None), None]
    columns, failures = format_.decode(pa.array(values, pa.binary()))
    assert failures == {}
    assert columns.schema == format_.schema
    created, deleted, message, tombstone = columns.to_pylist()
    assert {name: created[name] for name in row} == row
    assert (created["op"], created["transaction"]) == ("c", "9")
    assert created["position"][:8] == (7).to_bytes(8, "big")
    assert (deleted["op"], deleted["before"]) == ("d", row)
    assert (message["op"], tombstone["op"]) == (None, None)


def test_what_cannot_be_understood_fails_its_record_and_names_the_field() -> None:
    late = {**ROW, "zoned": "yesterday"}
    toast = {**ROW, "name": "__debezium_unavailable_value"}
    values = [
        event("c", None, late), event("c", None, toast), event("u", None, None),
        event("c", None, ROW, lsn=None), b"\x07",
    ]  # fmt: skip
    _, failures = Debezium(Avro(ENVELOPE)).decode(pa.array(values, pa.binary()))
    assert sorted(failures) == [0, 1, 2, 3, 4]
    assert failures[0].startswith("field after.zoned: ZonedTimestamp")
    assert failures[1].startswith("field after.name: the source did not send it")
    assert failures[2].startswith("field after: null")
    assert failures[3].startswith("field source.lsn")


def test_arrays_and_a_type_that_is_named_twice_have_the_encodings_of_their_names() -> None:
    scaled = {
        "type": "record",
        "name": "io.debezium.data.VariableScaleDecimal",
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
        "connect.name": "io.debezium.data.VariableScaleDecimal",
    }
    fields = [
        {
            "name": "days",
            "type": {"type": "array", "items": _connect("int", "io.debezium.time.Date")},
        },
        {"name": "a", "type": scaled},
        {"name": "b", "type": ["null", scaled["name"]]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ]
    row = {"type": "record", "name": "Value", "fields": fields}
    before, *others = ENVELOPE["fields"]
    envelope: Any = {**ENVELOPE, "fields": [{**before, "type": ["null", row]}, *others]}
    number = {"scale": 1, "value": b"\x0f"}
    toast = "__debezium_unavailable_value"
    source = {"connector": "postgresql", "ts_ms": 5, "lsn": 7}
    values = []
    for tags in ({"x": "y"}, {toast: toast}):
        into = BytesIO()
        after = {"days": [19_675], "a": number, "b": number, "tags": tags}
        change = {"before": None, "after": after, "source": source, "op": "c", "transaction": None}
        fastavro.schemaless_writer(into, fastavro.parse_schema(envelope), change)
        values.append(into.getvalue())
    columns, failures = Debezium(Avro(envelope)).decode(pa.array(values, pa.binary()))
    found = columns.to_pylist()[0]
    assert (found["days"], found["a"], found["b"]) == ([dt.date(2023, 11, 14)], "1.5", "1.5")
    assert list(failures) == [1]
    assert failures[1].startswith("field after.tags: the source did not send it")


def test_a_copy_in_another_process_reads_the_same() -> None:
    for format_ in (Debezium(Avro(ENVELOPE)), Debezium(Json(pa.schema({"id": pa.int64()})))):
        _ = format_.schema
        assert pickle.loads(pickle.dumps(format_)).schema == format_.schema


def test_a_per_record_map_gets_dicts() -> None:
    objects, failures = Debezium(Avro(ENVELOPE)).decode_objects(pa.array([event("c", None, ROW)]))
    assert failures == {}
    assert objects[0].after["at"] == AT


def test_a_format_that_is_no_envelope_is_refused() -> None:
    with pytest.raises(StrategyError, match="are no envelope"):
        _ = Debezium(Avro({"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]})).schema  # fmt: skip  # noqa: E501
    with pytest.raises(StrategyError, match="only flattened JSON"):
        _ = Debezium(Avro(ENVELOPE), flattened=True).schema
    assert Debezium(Json(pa.schema({"id": pa.int64()}))).schema.names[0] == "id"
