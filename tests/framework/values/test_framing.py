"""Confluent's wire format, on columns that are sliced, empty or have nulls."""

from __future__ import annotations

import pyarrow as pa

from kmr.values.framing import NULL, UNFRAMED, prefix, raw_values, schema_ids


def test_the_id_of_each_value_is_read() -> None:
    values = [b"left out", prefix(7) + b"x", None, prefix(2**31), b"\1\0\0\0\7", b"\0\0", b""]
    column: pa.BinaryArray = pa.array(values, pa.binary())[1:]
    raw = raw_values(column)
    assert schema_ids(raw).tolist() == [7, NULL, 2**31, UNFRAMED, UNFRAMED, UNFRAMED]
    assert bytes(raw.data[raw.offsets[0] : raw.offsets[1]]) == values[1]
    assert not raw.data.flags.writeable
    assert not raw.offsets.flags.writeable


def test_a_column_without_values_has_no_ids() -> None:
    assert schema_ids(raw_values(pa.array([], pa.binary()))).tolist() == []
    assert schema_ids(raw_values(pa.array([b"x"], pa.binary())[:0])).tolist() == []
