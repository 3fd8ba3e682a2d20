"""Rows become fastavro's datums, and what a schema cannot hold is refused."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kmr.values.avro.avro_format import encode_datums
from kmr.values.avro.schema import parse
from kmr.values.value_format import RowsDoNotFit


def read_back(schema: Any, rows: pa.Table) -> list[Any]:
    """Encode rows, and return what fastavro reads."""
    named: dict[str, Any] = {}
    parsed = parse(schema, named)

    def encode(datum: Any) -> bytes:
        into = BytesIO()
        fastavro.schemaless_writer(into, parsed, datum)
        return into.getvalue()

    values = encode_datums(rows, parsed, named, encode).to_pylist()
    return [fastavro.schemaless_reader(BytesIO(each or b""), parsed, None) for each in values]


def record(**types: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": type_} for name, type_ in types.items()],
    }


def test_records_with_lists_and_maps_are_read_back() -> None:
    schema = record(
        n="int",
        tags={"type": "array", "items": ["null", "string"]},
        counts={"type": "map", "values": "long"},
    )
    counts = pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64()))
    rows = pa.table({"n": [7], "tags": [["x", None]], "counts": counts})
    assert read_back(schema, rows) == [
        {"n": 7, "tags": ["x", None], "counts": {"a": 1, "b": 2}},
    ]


def test_a_schema_that_is_no_record_is_written_from_the_column_value() -> None:
    assert read_back({"type": "array", "items": "int"}, pa.table({"value": [[1, 2], []]})) == [
        [1, 2],
        [],
    ]


def test_a_struct_of_branches_chooses_the_branch_that_has_a_value() -> None:
    schema = record(u=["null", "int", "string"])
    kind = pa.struct([pa.field("int", pa.int32()), pa.field("string", pa.string())])
    given = [{"int": 1, "string": None}, {"int": None, "string": "a"}, None]
    rows = pa.table({"u": pa.array(given, kind)})
    assert read_back(schema, rows) == [{"u": 1}, {"u": "a"}, {"u": None}]
    both = pa.table({"u": pa.array([{"int": 1, "string": "a"}], kind)})
    with pytest.raises(RowsDoNotFit, match="field u: the union has values of int and string"):
        read_back(schema, both)


def test_a_plain_column_is_written_as_the_branch_that_fits() -> None:
    assert read_back(record(u=["int", "string"]), pa.table({"u": ["a"]})) == [{"u": "a"}]


def test_symbols_and_uuids_that_the_schema_cannot_hold_are_refused_by_row() -> None:
    schema = record(
        color={"type": "enum", "name": "Color", "symbols": ["RED"]},
        id={"type": "string", "logicalType": "uuid"},
    )
    good = "12345678-1234-1234-1234-1234567890ab"
    rows = pa.table({"color": ["RED", "BLUE", "RED"], "id": [good, good, "1234"]})
    with pytest.raises(RowsDoNotFit) as caught:
        read_back(schema, rows)
    assert caught.value.failures.keys() == {1, 2}
    assert caught.value.failures[1].startswith("field color (enum Color) cannot hold")
    assert caught.value.failures[2].startswith("field id (uuid) cannot hold")
