"""The loop agrees with google.protobuf: on generated messages, in any order, and on damaged bytes."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.values.protobuf import kernel
from kmr.values.protobuf.protobuf_format import Protobuf
from kmr.values.value_format import RowsDoNotFit
from tests.examples import examples

from . import generated
from .generated import UNKNOWN, messages, raw, types
from .types import SCALARS, All, all_kinds, class_of, field

FORMAT = Protobuf(All)
_BITS = {
    name: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if signed
    else st.integers(0, 2**bits - 1)
    for name, bits, signed in [
        ("int64", 64, True), ("uint64", 64, False), ("int32", 32, True), ("uint32", 32, False),
        ("sint64", 64, True), ("sint32", 32, True), ("fixed64", 64, False), ("sfixed64", 64, True),
        ("fixed32", 32, False), ("sfixed32", 32, True),
    ]
}  # fmt: skip
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **_BITS,
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}
_INNER = st.fixed_dictionaries(
    {}, optional={"n": _BITS["int32"], "tags": st.lists(st.text(max_size=3), max_size=3)}
)
_COLORS = st.sampled_from(["NONE", "RED", "DARK"])
_TIMES = st.datetimes(
    dt.datetime(1, 1, 2),  # noqa: DTZ001  hypothesis wants naive ones
    dt.datetime(9999, 1, 1),  # noqa: DTZ001
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        **{f"f_{name}": _VALUES[name] for name in SCALARS},
        **{f"r_{name}": st.lists(_VALUES[name], max_size=3) for name in SCALARS},
        "color": _COLORS,
        "colors": st.lists(_COLORS, max_size=3),
        "inner": _INNER,
        "inners": st.lists(_INNER, max_size=3),
        "at": _TIMES.map(lambda time: time.replace(tzinfo=dt.UTC)),
        "wrapped": _BITS["int64"].map(lambda n: {"value": n}),
        "counts": st.dictionaries(st.text(max_size=2), _BITS["int64"], max_size=3),
        "a": st.text(max_size=3),
        "maybe": _BITS["int32"],
    },
)


def decode(*values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    decoded = FORMAT.decode(pa.array(values, pa.binary()))
    decoded.columns.validate(full=True)
    rows = decoded.columns.to_pylist()
    for row in rows:
        row["counts"] = None if row["counts"] is None else dict(row["counts"])
    return rows, decoded.failures


def read(data: bytes) -> dict[str, Any]:
    """Decode a value by google.protobuf, as Arrow's Python values."""
    message: Any = All()
    message.ParseFromString(data)
    names = {number: value.name for number, value in _colors().items()}
    row = {name: getattr(message, name) for name in _plain()}
    row["color"] = names[message.color]
    row["colors"] = [names[number] for number in message.colors]
    row["inner"] = _inner(message.inner) if message.HasField("inner") else None
    row["inners"] = [_inner(each) for each in message.inners]
    row["at"] = message.at.ToDatetime(dt.UTC) if message.HasField("at") else None
    row["wrapped"] = message.wrapped.value if message.HasField("wrapped") else None
    row["counts"] = dict(message.counts)
    for name in ("a", "b", "maybe"):
        row[name] = getattr(message, name) if message.HasField(name) else None
    return {
        name: list(row[name]) if name.startswith("r_") else row[name]
        for name in FORMAT.schema.names
    }


def _plain() -> list[str]:
    return [f"{kind}_{name}" for kind in "fr" for name in SCALARS]


def _colors() -> Any:
    return All.DESCRIPTOR.fields_by_name["color"].enum_type.values_by_number  # type: ignore[union-attr]


def _inner(message: Any) -> dict[str, Any]:
    return {"n": message.n, "tags": list(message.tags)}


@given(st.lists(MESSAGES, max_size=3))
@settings(max_examples=examples(90))
def test_messages_are_what_google_protobuf_reads(messages: list[Any]) -> None:
    encoded = [All(**each).SerializeToString() for each in messages]
    rows, failures = decode(*encoded, None)
    assert rows == [*map(read, encoded), dict.fromkeys(FORMAT.schema.names)]
    assert failures == {}


@given(st.lists(MESSAGES, min_size=2, max_size=3), st.integers(0, 2**63))
@settings(max_examples=examples(90))
def test_messages_written_in_pieces_are_merged(messages: list[Any], b: int) -> None:
    encoded = [All(**each).SerializeToString() for each in messages]
    choice = All(b=b % 2**63).SerializeToString()
    joined = [b"".join(encoded), b"".join([*encoded, choice]), choice + encoded[0]]
    assert decode(*joined) == ([read(each) for each in joined], {})


@given(MESSAGES, st.data())
@settings(max_examples=examples(150))
def test_of_damaged_values_those_that_pass_are_what_google_protobuf_reads(
    message: Any, data: st.DataObject
) -> None:
    good = All(**message).SerializeToString()
    at = data.draw(st.integers(0, len(good)))
    patch = data.draw(st.binary(max_size=4))
    damaged = [good[:at], good[:at] + patch + good[at + len(patch) :], patch, good + patch]
    rows, failures = decode(good, *damaged, good)
    assert rows[0] == rows[-1] == read(good)
    assert not {0, len(rows) - 1} & failures.keys()
    for number, value in enumerate(damaged, 1):
        try:
            expected = read(value)
        except (DecodeError, KeyError, ValueError, OverflowError):
            # Not valid, or an enum's value, or a time that we refuse too.
            assert number in failures or rows[number]["at"] is not None
        else:
            assert failures.get(number) is None
            assert rows[number] == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x08", "field f_int64: the value ends inside it, or it is longer than 10 bytes"),
        (b"\0\1", "the value: there is no field number where one should be"),
        (b"\x72\x05a", "field f_string: its length (5) is beyond the end of the message"),
        (b"\x72\x01\xff", "field f_string: the text is not UTF-8"),
        (b"\xa0\x01\x07", "field color: the enum has no value 7"),
        (b"\xaa\x01\x01\x07", "field colors: the enum has no value 7"),
        (b"\xff\x7f", "the value: wire type 7 does not exist"),
        (b"\xfb\x7f", "the value: a group does not end"),
        (
            b"\xc2\x01\x0b\x10" + b"\xff" * 9 + b"\x01",
            "field at: the timestamp of 0 s and -1 ns is out of range of us",
        ),
    ],
)  # fmt: skip
def test_a_damaged_value_fails_with_its_field(value: bytes, reason: str) -> None:
    rows, failures = decode(b"", value, b"")
    assert failures == {1: reason}
    assert set(rows[1].values()) == {None}
    assert rows[0] == rows[2] == read(b"")


def check(make: Any, data: list[bytes]) -> dict[int, str]:
    """Compare with google.protobuf; return the reasons of the values that failed."""
    decoded = Protobuf(make).decode(pa.array([*data, None], pa.binary()))
    decoded.columns.validate(full=True)
    names, columns = decoded.columns.schema.names, decoded.columns.columns
    assert not any(column[len(data)].is_valid for column in columns)
    for number, value in enumerate(data):
        row = {name: raw(column[number]) for name, column in zip(names, columns, strict=True)}
        if number in decoded.failures:
            assert decoded.failures[number].startswith(("field f", "the value: "))
            assert set(row.values()) == {None}
            continue
        assert row == generated.read(make, value)
    return decoded.failures


def check_failures(make: Any, data: list[bytes]) -> None:
    """Compare with google.protobuf, also what fails."""
    for number, reason in check(make, data).items():
        try:
            generated.read(make, data[number])
        except (DecodeError, generated.Unreadable):
            continue
        assert any(each in reason for each in _STRICTER), reason


@given(st.data())
@settings(max_examples=examples(200))
def test_messages_of_any_type_are_what_google_protobuf_reads(data: st.DataObject) -> None:
    made = data.draw(types())
    values = [
        each.SerializePartialToString() + data.draw(UNKNOWN)
        for each in data.draw(st.lists(messages(made.whole), max_size=3))
    ]
    for make in (made.read, made.evolved):
        check_failures(make, values)
    if made.lacks_columns:
        with pytest.raises(StrategyError, match=r"contains itself|a group has no columns"):
            Protobuf(made.whole)


@given(st.data())
@settings(max_examples=examples(200))
def test_damaged_messages_of_any_type_are_what_google_protobuf_reads_or_fail(
    data: st.DataObject,
) -> None:
    made = data.draw(types())
    make = data.draw(st.sampled_from([made.read, made.evolved]))
    one, other = (data.draw(messages(made.whole)).SerializePartialToString() for _ in range(2))
    at = data.draw(st.integers(0, len(one)))
    patch = data.draw(st.binary(max_size=4))
    values = [one, one[:at], one[:at] + patch + one[at + len(patch) :], patch, one + other, one]
    check_failures(make, values)


@given(st.data())
@settings(max_examples=examples(150))
def test_what_is_read_by_any_type_is_written_by_it_and_google_protobuf_reads_the_same(
    data: st.DataObject,
) -> None:
    make = data.draw(types()).read
    values = [
        each.SerializePartialToString()
        for each in data.draw(st.lists(messages(make), min_size=1, max_size=3))
    ]
    format_ = Protobuf(make)
    rows, failures = format_.decode(pa.array(values, pa.binary()))
    kept = [row for row in range(len(values)) if row not in failures]
    table = pa.Table.from_batches([rows]).take(pa.array(kept, pa.int64()))
    try:
        written = format_.encode(table, "t").to_pylist()
    except RowsDoNotFit as refusal:
        assert all(re.search(_NOT_WRITTEN, each) for each in refusal.failures.values())  # noqa: PT017
        return
    for row, value in zip(kept, written, strict=True):
        assert generated.read(make, value) == generated.read(make, values[row])  # type: ignore[arg-type]


_NOT_WRITTEN = "a Timestamp is of the years 1 to 9999"
_STRICTER = (
    "the oneof is set more than once",
    "the enum has no value",
    "UTF-8",
    "a group does not",
    "the timestamp of",
)
"""Reasons for what google.protobuf reads."""


def test_an_entry_of_a_map_without_its_message_has_an_empty_one() -> None:
    file = all_kinds()
    entry = file.message_type[1].nested_type.add(name="ByNameEntry")
    entry.options.map_entry = True
    field(entry, "key", "string", 1)
    field(entry, "value", "message", 2, of=".t.Inner")
    made = file.message_type.add(name="Map")
    made.nested_type.add().CopyFrom(entry)
    field(made, "f", "message", 1, of=".t.Map.ByNameEntry", label=3)
    del file.message_type[1].nested_type[:]
    make = class_of(file, "t.Map")
    for value in (b"\x0a\x03\x0a\x01a", b"\x0a\x00", b"\x0a\x07\x12\x02\x08\x05\x12\x01\x00"[:9]):
        check(make, [value])
    check_failures(make, [b"\x0a\x05\x0a\x01a\x20\x00", b"\x0a\x03\x0a\x01\xff"])
    known, unknown = b"\x0a\x07\x0a\x01a\x12\x02\x08\x05", b"\x0a\x05\x0a\x01a\x20\x00"
    check(make, [known + unknown, unknown + known])
    decoded = Protobuf(make).decode(pa.array([b"\x0a\x03\x0a\x01a"], pa.binary()))
    assert decoded.columns.to_pylist() == [{"f": [("a", {"n": 0, "tags": []})]}]


def test_an_empty_message_is_there_or_null_and_is_written_as_it_was() -> None:
    file = all_kinds()
    file.message_type.add(name="Nothing")
    made = file.message_type.add(name="Holder")
    field(made, "one", "message", 1, of=".t.Nothing")
    field(made, "many", "message", 2, of=".t.Nothing", label=3)
    format_ = Protobuf(class_of(file, "t.Holder"))
    values = [b"\x0a\0\x12\0\x12\0", b""]
    decoded = format_.decode(pa.array(values, pa.binary()))
    assert decoded.columns.to_pylist() == [{"one": {}, "many": [{}, {}]}, {"one": None, "many": []}]
    assert format_.encode(pa.Table.from_batches([decoded.columns]), "t").to_pylist() == values


def test_a_message_without_fields_has_no_columns() -> None:
    file = all_kinds()
    file.message_type.add(name="Empty")
    with pytest.raises(StrategyError, match=r"t\.Empty has no fields"):
        Protobuf(class_of(file, "t.Empty"))


def test_unknown_fields_are_skipped() -> None:
    unknown = [
        b"\xf8\x7f\x01", b"\xf9\x7f" + b"x" * 8, b"\xfd\x7fxxxx", b"\xfa\x7f\x02ab",
        b"\xfb\x7f\x08\x01\x13\x14\xfc\x7f", b"\x0a\x01a",
    ]  # fmt: skip
    assert decode(*(each + b"\x18\x05" for each in unknown)) == ([read(b"\x18\x05")] * 6, {})


def test_long_lists_make_room_for_themselves() -> None:
    values = [
        All(r_int64=list(range(3000)), inners=[{"tags": ["x"] * 2000}] * 2).SerializeToString()
    ]
    assert decode(*values * 2) == ([read(values[0])] * 2, {})


def test_every_status_has_a_reason() -> None:
    assert len(kernel.REASONS) == kernel.BAD_MERGE + 1
