"""A time with more digits of a second than Python has, and a whole number that is no float, fail alone."""

from __future__ import annotations

import datetime as dt  # noqa: TC003  msgspec reads the annotations
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kmr import Json, MessagePack
from kmr.values.value_format import RowsDoNotFit

FINE = "2026-01-02T03:04:05.9999999Z"  # of .NET
SIX = "2026-01-02T03:04:05.1234560Z"


class Inner(msgspec.Struct):
    at: dt.datetime


class Row(msgspec.Struct):
    at: dt.datetime | None = None
    clock: dt.time | None = None
    span: dt.timedelta | None = None
    text: str | None = None
    number: float = 0
    inner: Inner | None = None
    items: list[Inner] = []
    times: dict[str, dt.datetime] = {}
    by_clock: dict[dt.time, int] = {}
    renamed: dt.datetime | None = msgspec.field(name="@at", default=None)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"at": FINE}, "at"),
    ({"clock": "03:04:05.1234567"}, "clock"),
    ({"span": "PT1.1234567S"}, "span"),
    ({"inner": {"at": FINE}}, "inner.at"),
    ({"items": [{"at": SIX}, {"at": FINE}]}, "items[].at"),
    ({"times": {"a": FINE}}, "times[]"),
    ({"by_clock": {"03:04:05.1234567": 1}}, "by_clock[]"),
    ({"@at": FINE, "text": FINE}, "@at"),
]
KEPT: list[dict[str, Any]] = [
    {"at": SIX},
    {"text": FINE, "at": SIX},
    {"number": 1.123456789, "clock": "03:04:05"},
]


@pytest.mark.parametrize("make", [Json, MessagePack])
def test_digits_that_would_be_rounded_refuse_the_record_and_name_field_and_value(make: Any) -> None:
    encode = msgspec.json.encode if make is Json else msgspec.msgpack.encode
    raw = [encode(value) for value in (*(value for value, _ in REFUSED), *KEPT)]
    values = pa.array([b"", *raw, None], pa.binary()).slice(1)
    columns, failures = make(Row).decode(values)
    assert sorted(failures) == list(range(len(REFUSED)))
    for row, (_, field) in enumerate(REFUSED):
        assert failures[row].startswith(f"field {field}: '")
        assert "more than 6 digits of a second" in failures[row]
    kept = columns.to_pylist()[len(REFUSED) : -1]
    assert kept[0]["at"].microsecond == 123_456
    assert kept[1]["text"] == FINE
    assert kept[2]["number"] == 1.123456789
    assert make(Row).decode_objects(values).failures == failures


def test_a_timestamp_of_messagepack_with_nanoseconds_refuses_its_record() -> None:
    def short(nanoseconds: int) -> bytes:
        return b"\xd7\xff" + (nanoseconds << 34 | 1_767_225_600).to_bytes(8)

    long = b"\xc7\x0c\xff" + (1).to_bytes(4) + (-62_135_596_800).to_bytes(8, signed=True)
    raw = [
        b"\x81\xa2at" + short(999_999_999),
        b"\x81\xa2at" + long,
        b"\x81\xa5times\x81\xa1a" + short(1),
        b"\x81\xa2at" + short(123_456_000),
        b"\x81\xa1z\xc4\x0a" + short(1),  # bytes of a field that the type does not have
    ]
    columns, failures = MessagePack(Row).decode(pa.array(raw, pa.binary()))
    assert sorted(failures) == [0, 1, 2]
    assert failures[0].startswith("field at: '2026-01-01T00:00:00.999999999Z' has more than 6")
    assert failures[1].startswith("field at: '0001-01-01T00:00:00.000000001Z' has more than 6")
    assert failures[2].startswith("field times[]: ")
    assert columns.column("at")[3].as_py().microsecond == 123_456


@pytest.mark.parametrize("make", [Json, MessagePack])
@pytest.mark.parametrize("kind", [pa.timestamp("ns", "UTC"), pa.time64("ns"), pa.duration("ns")])
def test_nanoseconds_are_written_as_they_are_or_refused(make: Any, kind: Any) -> None:
    rows = pa.table({"x": pa.array([0, 1_000, None], kind), "of": pa.array([[5_000], [], None])})
    rows = rows.set_column(1, "of", rows.column("of").cast(pa.list_(kind)))
    again = make(rows.schema).decode(make(rows.schema).encode(rows, "t"))
    assert pa.Table.from_batches([again.columns]) == rows
    fine = pa.table({"x": pa.array([0, 1], kind)})
    with pytest.raises(RowsDoNotFit, match=r"field x: '.*1Z?S?' has more than 6 digits") as error:
        make(fine.schema).encode(fine, "t")
    assert list(error.value.failures) == [1]


@pytest.mark.parametrize("make", [Json, MessagePack])
def test_a_value_that_has_no_text_in_the_encoding_refuses_its_row_by_name(make: Any) -> None:
    rows = pa.table({"of": pa.array([[[(True, 1)]]], pa.list_(pa.map_(pa.bool_(), pa.int8())))})
    if make is Json:
        with pytest.raises(RowsDoNotFit, match="of"):
            make(rows.schema).encode(rows, "t")
    else:
        made = make(rows.schema).encode(rows, "t")
        assert make(rows.schema).decode(made).columns.to_pylist() == rows.to_pylist()


def test_a_map_whose_keys_are_days_that_python_does_not_have_is_written_or_refused_by_name() -> (
    None
):
    days = pa.array([[[(-106_639_854, 1)]]], pa.list_(pa.map_(pa.int32(), pa.int8())))
    rows = pa.table({"of": days.cast(pa.list_(pa.map_(pa.date32(), pa.int8())))})
    with pytest.raises(RowsDoNotFit, match="of"):
        Json(rows.schema).encode(rows, "t")


class Numbers(msgspec.Struct):
    number: float = 0
    inner: dict[str, float] = {}
    items: list[float] = []
    either: int | float = 0
    whole: int = 0
    nested: Numbers2 | None = None


class Numbers2(msgspec.Struct):
    deep: float = 0


NO_FLOATS = [
    ('{"number":%s}', "number"),
    ('{"inner":{"a":%s}}', "inner[]"),
    ('{"items":[1.5,%s]}', "items[]"),
    ('{"nested":{"deep":%s}}', "nested.deep"),
    ('{"n\\u0075mber": %s}', "number"),
    ('{"whole":9223372036854775807,"number" : %s}', "number"),
]
LOST = ["9007199254740993", "-9223372036854775809", "12345678901234567890123"]
LOST_IN_JSON = [
    "9007199254740993.0",
    "1e-400",
    "-1.5E-99999999999999999999",
    "0." + "0" * 330 + "1",
    "-2.5E-0333",
    "0." + "0" * 25 + "1e-299",
]
FLOATS = [
    "9007199254740992",
    "1152921504606846976",
    "1.2345678901234567e+300",
    "0.1",
    "5e-324",
    "1e-120",
]
FLOATS += ["0." + "0" * 330, "0.12345678901234567890123", "-0.0", "9007199254740993.5"]
FLOATS += ["0." + "0" * 19 + "1e-299"]


def as_messagepack(text: str) -> bytes:
    return msgspec.msgpack.encode(msgspec.json.decode(text))


@pytest.mark.parametrize("make", [Json, MessagePack])
@pytest.mark.parametrize(("form", "field"), NO_FLOATS)
def test_a_number_that_is_no_float_refuses_its_record_and_those_beside_it_are_kept(
    make: Any, form: str, field: str
) -> None:
    json = make is Json
    lost = [*LOST, *LOST_IN_JSON] if json else [each for each in LOST if len(each) < 20]
    encode = str.encode if json else as_messagepack
    texts = [form % each for each in (*lost, *FLOATS)]
    values = pa.array([encode(each) for each in texts], pa.binary())
    for found in (
        make(Numbers).decode(values).failures,
        make(Numbers).decode_objects(values).failures,
    ):
        assert sorted(found) == list(range(len(lost)))
        for row, number in enumerate(lost):
            assert found[row].startswith(f"field {field}: a double cannot hold ")
            assert number in found[row] or row >= len(LOST)


def test_an_integer_of_a_narrow_float_or_of_a_union_keeps_its_value_or_is_refused() -> None:
    narrow = pa.schema([("x", pa.float32())])
    values = [b'{"x":16777217}', b'{"x":16777216}', b'{"x":16777217.5}', b'{"x":0.1}']
    for made, raw in (
        (Json(narrow), values),
        (MessagePack(narrow), [as_messagepack(each.decode()) for each in values]),
    ):
        assert list(made.decode(pa.array(raw, pa.binary())).failures) == [0]
    text = pa.array([b'{"either":9007199254740993}'], pa.binary())
    objects, failures = Json(Numbers).decode_objects(text)
    assert objects[0].either == 2**53 + 1
    assert not failures
    assert list(Json(Numbers).decode(text).failures) == [0]


def test_an_unknown_field_that_is_not_utf8_beside_a_large_number_fails_alone() -> None:
    values = [b"\x82\xa6number\xcf\0\x20\0\0\0\0\0\0\xa1\xaa\1", b"\x81\xa6number\1"]
    columns, failures = MessagePack(Row).decode(pa.array(values))
    assert columns.column("number").to_pylist()[1] == 1.0
    assert failures == {0: "value: invalid UTF-8"}


def test_an_unknown_field_of_json_that_is_not_utf8_beside_a_large_number_is_ignored() -> None:
    values: Any = pa.array(
        [b'{"number": 9007199254740992, "\xaa": "\xaa"}', b'{"number":9007199254740993,"\xaa":1}']
    )
    for found in (Json(Row).decode(values), Json(Row).decode_objects(values)):
        assert list(found.failures) == [1]
        assert found.failures[1].startswith("field number: a double cannot hold 9007199254740993")
