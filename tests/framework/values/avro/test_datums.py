"""Rows become fastavro's datums, and what a schema cannot hold is refused."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.values.avro.avro_format import Avro
from kmr.values.avro.datums import encode_datums
from kmr.values.avro.schema import NamedTypes, parse
from kmr.values.value_format import RowsDoNotFit
from tests.examples import examples

from .generated import encoded, raw, read, same
from .test_kernel import drawn


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


def written_by(format_: Avro, rows: pa.Table) -> tuple[list[bytes], dict[int, str]]:
    """Encode rows; return their values, and the reasons of refused rows."""
    try:
        return format_.encode(rows, "t").to_pylist(), {}  # type: ignore[return-value]
    except RowsDoNotFit as refusal:
        refused = dict(refusal.failures)
    kept = [row for row in range(rows.num_rows) if row not in refused]
    return written_by(format_, rows.take(pa.array(kept, pa.int64())))[0], refused


@given(st.data())
@settings(max_examples=examples(150))
def test_what_is_read_by_any_schema_is_written_by_it_and_fastavro_reads_the_same(
    data: st.DataObject,
) -> None:
    schemas = drawn(data, evolved=False)
    named: NamedTypes = {}
    parsed = parse(schemas.resolved, named)
    values = data.draw(st.lists(encoded(parsed, named), min_size=1, max_size=4))
    format_ = Avro(schemas.resolved)
    rows, failures = format_.decode(pa.array(values, pa.binary()))
    assert failures == {}
    written, refused = written_by(format_, pa.Table.from_batches([rows]))
    assert all(re.search(_NOT_WRITTEN, reason) for reason in refused.values()), refused
    kept = [row for row in range(len(values)) if row not in refused]
    for row, value in zip(kept, written, strict=True):
        ours = {
            name: raw(column[row])
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        }
        theirs = read(value, schemas.reader)
        assert same(parsed, named, ours, theirs), (ours, theirs)


_NOT_WRITTEN = r"is there twice|\(uuid\) cannot hold"
"""Avro's decoder reads a map with a key twice and text that is no UUID; the encoder refuses both."""


def test_lists_and_maps_of_nulls_are_written() -> None:
    schema = record(
        many={"type": "array", "items": "null"}, named={"type": "map", "values": "null"}
    )
    kinds: Any = {"many": pa.list_(pa.null()), "named": pa.map_(pa.string(), pa.null())}
    rows = pa.table(
        {"many": [[None, None], []], "named": [[("a", None), ("b", None)], []]}, pa.schema(kinds)
    )
    assert read_back(schema, rows) == [
        {"many": [None, None], "named": {"a": None, "b": None}},
        {"many": [], "named": {}},
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


def test_an_object_that_is_no_branch_of_a_union_is_refused_and_does_not_become_null() -> None:
    branches = [{**record(x="int"), "name": "A"}, {**record(y="int"), "name": "B"}]
    for kind, rows in (
        (["null", *branches], [{"x": 1}]),
        ({"type": "array", "items": ["null", *branches]}, [[{"x": 1}]]),
    ):
        with pytest.raises(RowsDoNotFit, match=r"cannot hold \[?{'x': 1}"):
            read_back(record(u=kind), pa.table({"u": rows}))


def test_columns_that_are_lacking_have_the_defaults_of_the_schema() -> None:
    schema = record(a="int")
    schema["fields"] += [
        {"name": "b", "type": "bytes", "default": "\xff"},
        {"name": "c", "type": {"type": "map", "values": "bytes"}, "default": {"k": "\xff"}},
        {"name": "d", "type": ["null", "int"], "default": None},
    ]
    row = {"a": 1, "b": b"\xff", "c": {"k": b"\xff"}, "d": None}
    assert read_back(schema, pa.table({"a": [1]})) == [row]


def test_fields_of_nested_records_that_the_rows_lack_have_the_defaults_of_the_schema() -> None:
    inner = {**record(a="int"), "name": "In"}
    inner["fields"] += [
        {"name": "b", "type": "bytes", "default": "\xff"},
        {"name": "c", "type": ["null", "int"]},
    ]
    schema = record(one=inner, some={"type": "array", "items": "In"}, maybe=["null", "In"])
    full = {"a": 1, "b": b"\xff", "c": None}
    rows = pa.table({"one": [{"a": 1}], "some": [[{"a": 1}, {"a": 1}]], "maybe": [{"a": 1}]})
    assert read_back(schema, rows) == [{"one": full, "some": [full, full], "maybe": full}]
    given = rows.set_column(0, "one", pa.array([{"a": 1, "b": b"x", "c": 5}]))
    assert read_back(schema, given)[0]["one"] == {"a": 1, "b": b"x", "c": 5}


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ([{"b": "x"}], "field in.a: the rows lack it, and it has no default"),
        ([{"a": 1, "b": None}], "field in.b (string) cannot be null"),
        ([{"a": 1, "l": None}], "field in.l (array) cannot be null"),
    ],
)
def test_the_reason_names_the_field_and_the_value_and_not_an_error_of_the_library(
    column: list[Any], reason: str
) -> None:
    inner = {**record(a="int"), "name": "In"}
    inner["fields"] += [
        {"name": "b", "type": "string", "default": ""},
        {"name": "l", "type": {"type": "array", "items": "int"}, "default": []},
    ]
    rows = pa.table({"in": column, "u": [1]})
    with pytest.raises(RowsDoNotFit) as caught:
        read_back(record(**{"in": inner}, u=["int", "boolean"]), rows)
    assert caught.value.failures == {0: reason}


def test_a_plain_column_is_written_as_the_branch_that_fits() -> None:
    assert read_back(record(u=["int", "string"]), pa.table({"u": ["a"]})) == [{"u": "a"}]
    with pytest.raises(RowsDoNotFit) as caught:
        read_back(record(u=["int", "boolean"]), pa.table({"u": ["a"]}))
    assert caught.value.failures == {0: "field u ([int, boolean]) cannot hold 'a'"}


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
