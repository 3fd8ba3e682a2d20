"""Confluent's wire format, on columns that are sliced, empty or have nulls."""

from __future__ import annotations

import pyarrow as pa

from kmr.values.registry.framing import (
    NO_SCHEMA_ID,
    NULL,
    OTHER_MESSAGE,
    UNFRAMED,
    message_prefix,
    prefix,
    prefix_sizes,
    raw_values,
    schema_ids,
    unframe,
)


def test_the_id_of_each_value_is_read() -> None:
    values = [b"left out", prefix(7) + b"x", None, prefix(2**31), b"\1\0\0\0\7", b"\0\0", b""]
    column: pa.BinaryArray = pa.array(values, pa.binary())[1:]
    raw = raw_values(column)
    assert schema_ids(raw).tolist() == [7, NULL, 2**31, UNFRAMED, UNFRAMED, UNFRAMED]
    assert bytes(raw.data[raw.offsets[0] : raw.offsets[1]]) == values[1]


def test_a_slice_of_a_column_has_its_own_bytes_only() -> None:
    raw = raw_values(pa.array([b"before", b"a", None, b"bc", b"after"], pa.binary())[1:4])
    assert bytes(raw.data) == b"abc"
    assert raw.offsets.tolist() == [0, 1, 1, 3]


def test_a_column_without_values_has_no_ids() -> None:
    assert schema_ids(raw_values(pa.array([], pa.binary()))).tolist() == []
    assert schema_ids(raw_values(pa.array([b"x"], pa.binary())[:0])).tolist() == []


def test_the_position_of_a_message_in_its_file_is_between_id_and_value() -> None:
    assert message_prefix([0]) == b"\0"
    assert message_prefix([1]) == b"\2\2"
    assert message_prefix([2, 100]) == b"\4\4\xc8\x01"
    values = [prefix(1) + each for each in (b"\0x", b"\2\0x", b"\2\2x", b"\4\4\xc8\x01", b"\4")]
    raw = raw_values(pa.array([*values, None, b"\0"], pa.binary()))
    other = OTHER_MESSAGE
    assert prefix_sizes(raw, [0]).tolist() == [6, 7, other, other, other, NULL, UNFRAMED]
    assert prefix_sizes(raw, [1]).tolist() == [other, other, 7, other, other, NULL, UNFRAMED]
    assert prefix_sizes(raw, [2, 100]).tolist() == [other] * 3 + [9, other, NULL, UNFRAMED]


def test_values_that_are_shorter_than_a_prefix_fail_and_the_others_are_read() -> None:
    rest, failures = unframe(pa.array([b"", b"?", None, prefix(7) + b"x", prefix(8)], pa.binary()))
    assert rest.to_pylist() == [None, None, None, b"x", b""]
    assert failures == dict.fromkeys((0, 1), NO_SCHEMA_ID)
    rest, failures = unframe(pa.array([None, None], pa.binary()))
    assert rest.to_pylist() == [None, None]
    assert not failures
