"""Change events become the columns, or the objects, that docs/changes.md says."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from kmr import Change, Debezium, Json, Record, Strategy
from kmr.errors import StrategyError
from kmr.sinks import StreamWriter
from kmr.testing import run_strategy
from kmr.values.debezium.encodings import Encoding

from .envelopes import (
    BEGIN,
    HEARTBEAT,
    MESSAGE,
    SCHEMA_CHANGE,
    event,
    field,
    schema_of,
)

AT = dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC)
MICROS = 1_700_000_000_123_456


class Customer(msgspec.Struct):
    id: int
    name: str
    note: str | None = None


ROW = {"id": 1, "name": "Ann", "note": None}


def decode(format_: Debezium, *values: bytes | None) -> tuple[list[dict[str, Any]], dict[int, str]]:
    columns, failures = format_.decode(pa.array(values, pa.binary()))
    columns.validate(full=True)
    return columns.to_pylist(), failures


def one(value: bytes, **options: Any) -> dict[str, Any]:
    rows, failures = decode(Debezium(Json(options.pop("row", Customer)), **options), value)
    assert not failures, failures
    return rows[0]


def reason(value: bytes, **options: Any) -> str:
    _, failures = decode(Debezium(Json(options.pop("row", Customer)), **options), value)
    return failures[0]


@pytest.mark.parametrize("op", ["c", "u", "r"])
@pytest.mark.parametrize("connector", ["postgresql", "mysql", "sqlserver"])
def test_an_upsert_has_the_row_after_the_change(op: str, connector: str) -> None:
    found = one(event(op, None, ROW, connector=connector))
    assert {name: found[name] for name in ROW} == ROW
    assert found["op"] == op
    assert found["before"] is None
    assert found["source_time"] == dt.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=dt.UTC)
    assert found["transaction"] == "555:24023128"


def test_a_deleted_row_has_what_the_source_sent_of_it() -> None:
    found = one(event("d", {"id": 1}, None))
    assert (found["op"], found["id"], found["name"]) == ("d", 1, None)
    assert found["before"] == {"id": 1, "name": None, "note": None}


def test_a_row_before_its_change_has_no_defaults_for_what_was_not_sent() -> None:
    class Tagged(msgspec.Struct):
        id: int
        kind: str = "plain"
        tags: list[str] = []

    changed = event("u", {"id": 1}, {"id": 1})
    found = one(changed, row=Tagged)
    assert (found["kind"], found["tags"]) == ("plain", [])
    assert found["before"] == {"id": 1, "kind": None, "tags": None}
    deleted = one(event("d", {"id": 1}, None), row=Tagged)
    assert (deleted["id"], deleted["kind"], deleted["tags"]) == (1, None, None)
    (change,), _ = Debezium(Json(Tagged)).decode_objects(pa.array([changed], pa.binary()))
    assert change.before.kind is None


def test_what_is_no_change_of_a_row_has_no_op() -> None:
    rows, failures = decode(
        Debezium(Json(Customer)), None, HEARTBEAT, BEGIN, SCHEMA_CHANGE, MESSAGE
    )
    assert failures == {}
    assert [row["op"] for row in rows] == [None] * 5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{", "truncated"),
        (b'{"id":1,"name":"Ann"}', "flattened=True"),
        (event("x", None, ROW), "unknown operation 'x'"),
        (event("u", None, None), "field after: null"),
        (event("u", None, {"id": 1}), "field after.name: null, or missing"),
        (event("u", None, {"id": "1", "name": "Ann"}), "after.id"),
        (event("t"), "truncated; set Debezium(truncates='apply')"),
        (event("c", None, ROW, lsn=None, sequence=None), "field source.lsn: null"),
        (event("c", None, ROW, connector="mysql", file="binlog"), "field source.file"),
        (event("c", None, ROW | {"note": "__debezium_unavailable_value"}), "field after.note: the"),
    ],
)
def test_what_cannot_be_understood_fails_its_record_and_names_the_field(
    value: bytes, expected: str
) -> None:
    rows, failures = decode(Debezium(Json(Customer)), event("c", None, ROW), value)
    assert list(failures) == [1]
    assert expected in failures[1]
    assert rows[0]["name"] == "Ann"
    assert rows[1] == dict.fromkeys(rows[0])


def test_the_type_of_a_row_in_place_of_a_format_is_refused_with_what_to_write() -> None:
    with pytest.raises(StrategyError, match=r"not dict; write Debezium\(Json\(dict\)\)"):
        Debezium(dict)  # type: ignore[arg-type]


def test_an_unknown_connector_needs_the_order_of_offsets() -> None:
    value = event("c", None, ROW).replace(b'"postgresql"', b'"oracle"')
    assert "order='offset'" in reason(value)
    assert one(value, order="offset")["position"] is None


def test_truncates_are_applied_or_dropped_if_told() -> None:
    assert one(event("t"), truncates="apply")["op"] == "t"
    assert one(event("t"), truncates="drop")["op"] is None


def test_positions_of_a_connector_compare_as_its_log_does() -> None:
    def position(connector: str, **source: Any) -> bytes:
        found = one(event("c", None, ROW, connector=connector, **source))["position"]
        assert isinstance(found, bytes)
        return found

    logs: dict[str, list[dict[str, Any]]] = {
        "postgresql": [{"lsn": 5}, {"lsn": 2**33}, {"lsn": 2**62}],
        "mysql": [
            {"file": "bin.000009", "pos": 900, "row": 0},
            {"file": "bin.000010", "pos": 4, "row": 0},
            {"file": "bin.000010", "pos": 2**33, "row": 0},
            {"file": "bin.999999", "pos": 900, "row": 7},
            {"file": "bin.1000000", "pos": 4, "row": 0},
        ],
        "sqlserver": [
            {"commit_lsn": "00000027:00000758:0005", "change_lsn": None, "event_serial_no": None},
            {"commit_lsn": "00000027:00000758:0005", "change_lsn": "00000027:00000758:0003"},
            {"commit_lsn": "00000027:00000758:0005", "change_lsn": "00000027:00000758:000a"},
            {
                "commit_lsn": "00000027:00000758:0005",
                "change_lsn": "00000027:00000758:000A",
                "event_serial_no": 2,
            },
            {"commit_lsn": "00000027:00000ac0:0001", "change_lsn": "00000027:00000758:0003"},
            {"commit_lsn": "0000002f:00000000:0001", "change_lsn": "00000027:00000758:0003"},
        ],
        "mongodb": [
            {"ts_ms": 5_000, "ord": 0},
            {"ts_ms": 5_000, "ord": 9},
            {"ts_ms": 6_000, "ord": 1},
        ],
    }
    for connector, log in logs.items():
        found = [position(connector, **source) for source in log]
        assert found == sorted(set(found)), connector


def test_changes_of_a_row_are_in_the_order_of_their_commits() -> None:
    """The log has a change where it was made: before the snapshot that did not see it."""

    def position(op: str, **source: Any) -> Any:
        return one(event(op, None, ROW, **source))["position"]

    log = [
        position("r", lsn=200, sequence='[null,"200"]'),  # of the first snapshot
        position("u", lsn=260, sequence='["250","260"]'),
        position("r", lsn=None, sequence='["300","400"]'),  # of an incremental one
        position("u", lsn=350, sequence='["410","350"]'),  # of a transaction that began before it
        position("u", lsn=360, sequence='["410","360"]'),
        position("r", lsn=500, sequence='[null,"500"]'),  # of a later snapshot
        position("u", lsn=510, sequence='[null,"510"]'),
    ]
    assert log == sorted(set(log))


def test_rows_of_a_compressed_transaction_are_ordered_by_their_offsets() -> None:
    """MySQL gives its events one position, and each counts its rows from 0."""

    def position(row: int) -> Any:
        source = {"file": "bin.000001", "pos": 157, "row": row}
        return one(event("u", None, ROW, connector="mysql", **source))["position"]

    assert position(2) == position(0)


def test_a_change_of_mysql_without_a_file_has_no_position() -> None:
    source = {"file": "", "pos": 0, "row": 0}
    value = event("r", None, ROW, connector="mysql", **source)
    assert "field source.file: null, or no position" in reason(value)


class Order(msgspec.Struct):
    id: int
    day: dt.date | None = None
    at: dt.datetime | None = None
    time: dt.time | None = None
    span: dt.timedelta | None = None
    price: Decimal | None = None


TIME = "io.debezium.time."
CONNECT = "org.apache.kafka.connect.data."
DAY = (dt.date(2023, 11, 14), 19_675)
NOON = dt.time(12, 0, 0, 1000)


def _bytes(number: int, size: int = 2) -> str:
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


@pytest.mark.parametrize(
    ("name", "kind", "encoding", "value", "expected"),
    [
        ("day", "int32", f"{TIME}Date", DAY[1], DAY[0]),
        ("day", "int32", f"{CONNECT}Date", DAY[1], DAY[0]),
        ("day", "string", f"{TIME}IsoDate", "2023-11-14Z"[:10], DAY[0]),
        ("at", "int64", f"{TIME}Timestamp", MICROS // 1000, AT.replace(microsecond=123_000)),
        ("at", "int64", f"{CONNECT}Timestamp", MICROS // 1000, AT.replace(microsecond=123_000)),
        ("at", "int64", f"{TIME}MicroTimestamp", MICROS, AT),
        ("at", "int64", f"{TIME}NanoTimestamp", MICROS * 1000, AT),
        ("at", "string", f"{TIME}ZonedTimestamp", "2023-11-14T22:13:20.123456Z", AT),
        ("at", "string", f"{TIME}ZonedTimestamp", "2023-11-14T23:13:20.123456+01:00", AT),
        ("time", "int32", f"{TIME}Time", 43_200_001, NOON),
        ("time", "int32", f"{CONNECT}Time", 43_200_001, NOON),
        ("time", "int64", f"{TIME}MicroTime", 43_200_001_000, NOON),
        ("time", "int64", f"{TIME}NanoTime", 43_200_001_000_000, NOON),
        ("time", "string", f"{TIME}ZonedTime", "12:00:00.001Z", NOON),
        ("span", "int64", f"{TIME}MicroDuration", 5_000_000, dt.timedelta(seconds=5)),
        ("span", "int64", f"{TIME}NanoDuration", 5_000_000_000, dt.timedelta(seconds=5)),
        ("price", "bytes", f"{CONNECT}Decimal", _bytes(12345), Decimal("123.45")),
        ("price", "bytes", f"{CONNECT}Decimal", _bytes(-5), Decimal("-0.05")),
        (
            "price",
            "struct",
            "io.debezium.data.VariableScaleDecimal",
            {"scale": 3, "value": _bytes(1500)},
            Decimal("1.5"),
        ),
    ],
)
def test_each_encoding_of_a_schema_becomes_the_value(
    name: str, kind: str, encoding: str, value: object, expected: object
) -> None:
    scale = {"scale": "2"} if encoding.endswith("connect.data.Decimal") else {}
    schema = schema_of(field("id", "int64"), field(name, kind, encoding, **scale))
    row = {"id": 1, name: value}
    assert one(event("c", None, row, schema=schema), row=Order)[name] == expected
    deleted = one(event("d", row, None, schema=schema), row=Order)
    assert deleted["before"][name] == deleted[name] == expected


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (5, "schema: Expected `object"),
        ({"fields": 5}, "at `$.fields`"),
        ({"fields": ["x"]}, "at `$.fields[0]`"),
        (
            schema_of(field("price", "bytes", f"{CONNECT}Decimal", scale="x")),
            "schema: the scale of a decimal is no integer: 'x'",
        ),
    ],
)
def test_a_schema_that_is_none_fails_its_event_alone(schema: Any, reason: str) -> None:
    events = [event("c", None, ROW, schema=each) for each in (None, schema, {"type": "struct"})]
    rows, failures = decode(Debezium(Json(Customer)), *events)
    assert [row["id"] for row in rows if row["id"] is not None] == [1, 1]
    assert list(failures) == [1]
    assert reason in failures[1]


class Lists(msgspec.Struct):
    id: int
    days: list[dt.date | None] = []
    ats: list[dt.datetime] = []
    times: list[dt.time] = []
    prices: list[Decimal | None] = []
    numbers: list[int] = []


@pytest.mark.parametrize(
    ("name", "kind", "encoding", "value", "expected"),
    [
        ("days", "int32", f"{TIME}Date", [DAY[1], None], [DAY[0], None]),
        ("ats", "int64", f"{TIME}MicroTimestamp", [MICROS], [AT]),
        ("ats", "string", f"{TIME}ZonedTimestamp", ["2023-11-14T22:13:20.123456Z"], [AT]),
        ("times", "int64", f"{TIME}MicroTime", [43_200_001_000], [NOON]),
        ("prices", "bytes", f"{CONNECT}Decimal", [_bytes(5), None], [Decimal("0.05"), None]),
        ("numbers", "int64", f"{TIME}MicroTimestamp", [MICROS], [MICROS]),
        (
            "prices",
            "struct",
            "io.debezium.data.VariableScaleDecimal",
            [{"scale": 3, "value": _bytes(1500)}],
            [Decimal("1.5")],
        ),
    ],
)
def test_the_items_of_an_array_have_the_encoding_that_its_schema_names(
    name: str, kind: str, encoding: str, value: object, expected: object
) -> None:
    scale = {"scale": "2"} if encoding.endswith("connect.data.Decimal") else {}
    items = field("item", kind, encoding, **scale)
    described = {"type": "array", "field": name, "optional": True, "items": items}
    schema = schema_of(field("id", "int64"), described)
    found = one(event("c", None, {"id": 1, name: value}, schema=schema), row=Lists)
    assert found[name] == expected


def test_arrays_without_a_schema_need_the_settings_that_other_fields_need() -> None:
    assert "field after.ats[]: the unit" in reason(
        event("c", None, {"id": 1, "ats": [1]}), row=Lists
    )
    unknown = event("c", None, {"id": 1, "prices": ["1234"]})  # also base64 of another number
    assert "field after.prices[]: the scale" in reason(unknown, row=Lists)
    values = event("c", None, {"id": 1, "ats": [MICROS], "prices": [_bytes(5)]})
    found = one(values, row=Lists, encodings={"ats": "MicroTimestamp", "prices": "Decimal(2)"})
    assert (found["ats"], found["prices"]) == ([AT], [Decimal("0.05")])
    misfit = event("c", None, {"id": 1, "days": [1, 2**40], "times": [None]})
    assert "field after.days[]: Date 1099511627776" in reason(misfit, row=Lists)
    lacking = event("c", None, {"id": 1, "times": [None, "12:00:00"]})
    assert reason(lacking, row=Lists) == "field after.times[]: null"


@pytest.mark.parametrize(
    ("encoding", "value", "expected"),
    [
        (f"{TIME}Interval", "P0Y0M3DT4H5M6.78S", dt.timedelta(3, 14_706, 780_000)),
        (f"{TIME}Interval", "P0Y0M-3DT0H0M0.0S", dt.timedelta(-3)),
        (f"{TIME}Interval", "P1Y0M0DT0H0M0S", None),  # a year has no length
        (f"{TIME}Interval", "P0Y0M0DT0H0M0.0000001S", None),
        (f"{TIME}MicroTime", -838 * 3_600 * 10**6, dt.timedelta(hours=-838)),  # TIME of MySQL
    ],
)
def test_spans_are_durations_if_they_have_no_months(
    encoding: str, value: object, expected: dt.timedelta | None
) -> None:
    kind = "string" if isinstance(value, str) else "int64"
    schema = schema_of(field("id", "int64"), field("span", kind, encoding))
    event_ = event("c", None, {"id": 1, "span": value}, schema=schema)
    if expected is None:
        assert f"field after.span: Interval {value!r} does not fit" in reason(event_, row=Order)
    else:
        assert one(event_, row=Order)["span"] == expected


def test_bytes_that_a_connector_sends_as_text_are_read_as_it_is_told_and_not_guessed() -> None:
    class File(msgspec.Struct):
        id: int
        data: bytes

    schema = schema_of(field("id", "int64"), field("data", "string"))
    value = event("c", None, {"id": 1, "data": "deadbeef"}, schema=schema)
    assert "binary.handling.mode" in reason(value, row=File)
    assert one(value, row=File, encodings={"data": "Hex"})["data"] == b"\xde\xad\xbe\xef"
    assert one(value, row=File, encodings={"data": "Base64"})["data"] == base64.b64decode(
        "deadbeef"
    )
    bad = event("c", None, {"id": 1, "data": "xyz"}, schema=schema)
    assert "field after.data: Hex 'xyz'" in reason(bad, row=File, encodings={"data": "Hex"})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[str, str], {"__debezium_unavailable_value": "__debezium_unavailable_value"}),
        (str, '{"__debezium_unavailable_value":"__debezium_unavailable_value"}'),
        (str, b"__debezium_unavailable_value".hex()),
    ],
)
def test_hstore_and_bytes_in_hex_that_the_source_did_not_send_are_no_value(
    kind: Any, value: object
) -> None:
    cls = msgspec.defstruct("Large", [("id", int), ("x", kind)])
    assert "did not send it" in reason(event("u", None, {"id": 1, "x": value}), row=cls)
    if kind is not str:
        there = event("u", None, {"id": 1, "x": {"a": "b", "c": "d"}})
        assert one(there, row=cls)["x"] == [("a", "b"), ("c", "d")]


def test_a_schema_that_says_text_has_decimals_as_text() -> None:
    """As `decimal.handling.mode=string` sends them; other fields stay what they are."""
    schema = schema_of(field("id", "string"), field("price", "string"))
    value = event("c", None, {"id": 1, "price": "123.45"}, schema=schema)
    assert one(value, row=Order)["price"] == Decimal("123.45")
    value = event("c", None, {"id": "1", "price": "123.45"}, schema=schema)
    assert "field after.id: expected int" in reason(value, row=Order)


@pytest.mark.parametrize(
    ("options", "name", "value", "expected"),
    [
        ({}, "day", DAY[1], DAY[0]),
        ({}, "at", "2023-11-14T22:13:20.123456Z", AT),
        ({"times": "connect"}, "at", MICROS // 1000, AT.replace(microsecond=123_000)),
        ({"times": "microseconds"}, "at", MICROS, AT),
        ({"times": "nanoseconds"}, "at", MICROS * 1000, AT),
        ({"encodings": {"at": "MicroTimestamp"}}, "at", MICROS, AT),
        ({"times": "isostring"}, "day", "2023-11-14", DAY[0]),
        ({"times": "adaptive_time_microseconds"}, "time", 43_200_001_000, NOON),
        ({}, "span", 5_000_000, dt.timedelta(seconds=5)),
        ({"decimals": "string"}, "price", "123.45", Decimal("123.45")),
        ({"decimals": "double"}, "price", 123.45, Decimal("123.45")),
        ({}, "price", 7, Decimal(7)),
        ({"encodings": {"price": "Decimal(2)"}}, "price", _bytes(12345), Decimal("123.45")),
    ],
)
def test_without_a_schema_the_settings_of_the_connector_say_the_encoding(
    options: dict[str, Any], name: str, value: object, expected: object
) -> None:
    assert one(event("c", None, {"id": 1, name: value}), row=Order, **options)[name] == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("at", MICROS, "field after.at: the unit of the number is not known"),
        ("time", 5, "field after.time: the unit of the number is not known"),
        ("price", _bytes(12345), "field after.price: the scale of the decimal is not known"),
        ("day", 2**40, "field after.day: Date 1099511627776 does not fit"),
        ("at", "yesterday", "field after.at: Text"),
    ],
)
def test_a_value_of_an_unknown_encoding_fails_its_record(
    name: str, value: object, expected: str
) -> None:
    assert expected in reason(event("c", None, {"id": 1, name: value}), row=Order)


def test_digits_that_the_column_lacks_fail_the_record_and_fit_one_of_nanoseconds() -> None:
    value = event("c", None, {"id": 1, "at": MICROS * 1000 + 7})
    options: dict[str, Any] = {"encodings": {"at": "NanoTimestamp"}}
    assert "field after.at: NanoTimestamp" in reason(value, row=Order, **options)
    exact = pa.schema([("id", pa.int32()), ("at", pa.timestamp("ns", "UTC"))])
    columns, failures = Debezium(Json(exact), **options).decode(pa.array([value]))
    assert not failures
    assert columns.column("at").cast(pa.int64()).to_pylist() == [MICROS * 1000 + 7]


def test_events_with_and_without_schemas_and_of_other_encodings_may_follow_each_other() -> None:
    micro = schema_of(field("id", "int64"), field("at", "int64", f"{TIME}MicroTimestamp"))
    nano = schema_of(field("id", "int64"), field("at", "int64", f"{TIME}NanoTimestamp"))
    values = [
        event("c", None, {"id": 0, "at": MICROS}, schema=micro),
        event("c", None, {"id": 1, "at": MICROS * 1000}, schema=nano),
        event("c", None, {"id": 2, "at": "2023-11-14T22:13:20.123456Z"}),
        event("c", None, {"id": 3, "at": MICROS}, schema=micro),
        event("c", None, {"id": 4, "at": 5}),
        event("c", None, {"id": 5}),
    ]
    rows, failures = decode(Debezium(Json(Order)), *values)
    assert [row["at"] for row in rows] == [AT] * 4 + [None] * 2
    assert [row["id"] for row in rows] == [0, 1, 2, 3, None, 5]
    assert list(failures) == [4]


def test_an_odd_event_fails_none_of_the_others_of_its_batch_and_its_reason_names_its_field() -> (
    None
):
    class Product(msgspec.Struct):
        id: int
        price: Decimal | None = None

    after: list[Any] = [
        '{"id": 0}',  # a document in text, as MongoDB sends it
        {"id": 1},
        {"id": 2, "price": 1.5},
        {"id": "3"},
        {"id": 4, "price": {"scale": 2, "value": "BNI="}},
        [5],
        {"id": 6, "price": None},
    ]
    for values in (after, after[::-1]):
        rows, failures = decode(
            Debezium(Json(Product)), *(event("c", None, each) for each in values)
        )
        good = sorted((r["id"], r["price"]) for r in rows if r["id"] is not None)
        assert [each for each, _ in good] == [0, 1, 2, 4, 6]
        assert [float(price) for _, price in good if price is not None] == [1.5, 12.34]
        assert sorted(failures.values()) == [
            "field after.id: expected int | null, got str: '3'",
            "field after: expected object | null, got array: [5]",
        ]
    rows, failures = decode(
        Debezium(Json(Customer)), *(event("c", None, each) for each in ("{}", ROW, ROW | {"id": 2}))
    )
    assert [row["id"] for row in rows] == [None, 1, 2]
    assert failures == {0: "field after.id: null, or missing"}


def test_flattened_rows_use_the_fields_that_the_smt_adds() -> None:
    values = [
        b'{"id":1,"name":"Ann"}',
        b'{"id":1,"name":"Bea","__op":"c","__deleted":"false","__source_ts_ms":5,"__lsn":7}',
        b'{"id":1,"name":null,"__deleted":"true","__source_lsn":8,"__transaction_id":"9"}',
    ]
    rows, failures = decode(Debezium(Json(Customer), flattened=True), *values)
    assert failures == {}
    assert [row["op"] for row in rows] == ["u", "c", "d"]
    assert [row["name"] for row in rows] == ["Ann", "Bea", None]
    assert rows[1]["source_time"] == dt.datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=dt.UTC)
    assert rows[2]["transaction"] == "9"
    ordered = decode(Debezium(Json(Customer), flattened=True, order="position"), *values)
    assert [row["position"] and row["position"][:8] for row in ordered[0]] == [
        None,
        (7).to_bytes(8, "big"),
        (8).to_bytes(8, "big"),
    ]
    assert "source.lsn" in ordered[1][0]


def test_documents_of_mongodb_are_read_from_extended_json() -> None:
    class Account(msgspec.Struct):
        id: str = msgspec.field(name="_id")
        visits: int
        at: dt.datetime | None = None
        price: Decimal | None = None

    document = (
        '{"_id": {"$oid": "596e275826f08b2730779e1f"}, "visits": {"$numberLong": "7"}, '
        '"at": {"$date": 1700000000123}, "price": {"$numberDecimal": "1.50"}}'
    )
    found = one(event("u", None, document, connector="mongodb"), row=Account)
    assert found["id"] == "596e275826f08b2730779e1f"
    assert found["visits"] == 7
    assert found["at"] == AT.replace(microsecond=123_000)
    assert found["price"] == Decimal("1.5")
    assert "update_full" in reason(event("u", None, None, connector="mongodb"), row=Account)
    bad = event("u", None, '{"_id": "x", "visits": "many"}', connector="mongodb")
    assert "after.visits" in reason(bad, row=Account)

    class Measured(msgspec.Struct):
        x: float | None

    no_number = event("u", None, '{"x": {"$numberDouble": "NaN"}}', connector="mongodb")
    assert "field after.x" in reason(no_number, row=Measured)


class Keyed(TypedDict):
    id: int
    name: str


def test_a_per_record_map_gets_changes_with_objects_of_its_type() -> None:
    class Account(msgspec.Struct):
        id: UUID
        name: str = msgspec.field(name="full_name")
        at: dt.datetime | None = None

    key = "6f1c9a2e-0000-4000-8000-000000000001"
    full = {"id": key, "full_name": "Ann", "at": "2023-11-14T22:13:20.123456Z"}
    values = pa.array(
        [event("u", {"id": key}, full), event("d", {"id": key}, None), HEARTBEAT, b"{"],
        pa.binary(),
    )
    objects, failures = Debezium(Json(Account)).decode_objects(values)
    assert list(failures) == [3]
    updated, deleted, *others = objects
    assert others == [None, None]
    assert isinstance(updated, Change)
    assert updated.after == Account(UUID(key), "Ann", AT)
    assert updated.before == Account(UUID(key), None, None)  # type: ignore[arg-type]
    assert (deleted.op, deleted.after) == ("d", None)
    assert updated.position is not None
    plain = Debezium(Json(Keyed)).decode_objects(pa.array([event("c", None, ROW)]))
    assert plain.objects[0].after == {"id": 1, "name": "Ann"}


def test_a_change_of_another_row_keeps_what_it_is() -> None:
    change = Change(op="u", before=Customer(1, "Ann"), after=Customer(2, "Bea"), position=b"p")
    made = change.to(lambda row: {"key": row.id})
    assert made["key"] == 2
    assert made["before"] == {"key": 1}
    assert (made["op"], made["position"]) == ("u", b"p")
    with pytest.raises(StrategyError, match="column op"):
        change.to(lambda row: {"op": row.name})


def test_arguments_that_cannot_work_are_refused() -> None:
    class Taken(msgspec.Struct):
        id: int
        op: str

    with pytest.raises(StrategyError, match="column op"):
        Debezium(Json(Taken))
    with pytest.raises(StrategyError, match="no field of the row"):
        Debezium(Json(Customer), encodings={"nme": "Date"})
    with pytest.raises(StrategyError, match="no encoding 'Dat'"):
        Debezium(Json(Customer), encodings={"name": "Dat"})
    with pytest.raises(StrategyError, match="needs the scale"):
        Debezium(Json(Customer), encodings={"name": "Decimal"})
    with pytest.raises(StrategyError, match="times must be"):
        Debezium(Json(Customer), times="milliseconds")  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [None, "keyed"])
def test_keys_with_a_schema_name_the_row_that_is_deleted_as_keys_without_one_do(
    changes: Any,
) -> None:
    """The JSON converter sends a schema with keys, too, unless `schemas.enable` is false."""
    plain = [b'{"id":3}', b'{"id":4}', b'{"id":5}']
    wrapped = b'{"schema":{"type":"struct"},"payload":{"id":4}}'
    keys = [plain[0], wrapped, b'{"payload":{"id":5},"schema":null}']
    value = None if changes else event("d", None, None)
    records = [
        Record("t", 0, offset, key, value, 0, 0) for offset, key in enumerate([*plain, *keys])
    ]
    rows = run_strategy(
        Strategy(
            value=Debezium(Json(Order)),
            key=Json(pa.schema({"id": pa.int64()})),
            changes=changes,
            reduce=StreamWriter("stdout"),
            reduce_err=StreamWriter("stderr"),
        ),
        records,
    )
    assert [(row["op"], row["id"]) for row in rows.rows] == [("d", n) for n in (3, 4, 5, 3, 4, 5)]


@pytest.mark.parametrize("scale", [-(2**31), 2**31 - 1])
def test_a_scale_that_would_take_all_memory_fails_the_record(scale: int) -> None:
    found, reasons = Encoding.of("VariableScaleDecimal").decode(
        pa.array([{"scale": scale, "value": "AQ=="}]), pa.decimal128(38, 2), "after.price"
    )
    assert found.null_count == 1
    assert list(reasons) == [0]
