"""The reference library reads what an encoder wrote, or the encoder refuses it and names field and value."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from kmr import Avro, Json, MessagePack, Protobuf
from kmr.columns.casting import Misfit
from kmr.columns.fitting import fit, known_to_kernels
from kmr.columns.kinds import has_values, is_list
from kmr.errors import StrategyError
from kmr.values.avro.schema import avro_schema
from kmr.values.value_format import RowsDoNotFit, ValueFormat
from tests.examples import examples

from .arrow_columns import columns
from .plain_values import Struct, is_same, plain
from .readers import FIELD
from .test_avro import logical, without_logical, written
from .test_protobuf import expected_of, messages

if TYPE_CHECKING:
    from collections.abc import Mapping

SLOW: Final = [HealthCheck.too_slow]


def encoded(form: ValueFormat, rows: pa.Table) -> tuple[list[Any], Mapping[int, str]]:
    """The values of the rows that can be written, in order, and the reasons of the others."""
    failures: dict[int, str] = {}
    kept = list(range(rows.num_rows))
    while kept:
        try:
            return form.encode(rows.take(kept), "t").to_pylist(), failures
        except RowsDoNotFit as error:
            failures |= {kept[row]: reason for row, reason in error.failures.items()}
            kept = [row for row in kept if row not in failures]
    return [], failures


def read_avro(raw: bytes, schema: Any) -> str:
    """What fastavro reads: with the branch of each union, without logical types; NaN is equal to itself."""
    left = io.BytesIO(raw)
    parsed = fastavro.parse_schema(without_logical(schema))
    value = fastavro.schemaless_reader(left, parsed, None, return_record_name=True)
    assert not left.read()
    return repr(value)


def rows_of(array: pa.Array[Any]) -> pa.Table:
    return known_to_kernels(pa.table({FIELD: array}))


def check_refused(array: pa.Array[Any], refused: Mapping[int, str]) -> None:
    values = plain(array)
    for row, reason in refused.items():
        assert FIELD in reason, reason
        assert values[row] is not None, reason


@settings(max_examples=examples(120))
@given(written())
def test_what_was_read_by_a_random_avro_schema_is_written_as_it_was(made: Any) -> None:
    schema, values = made
    note(str(schema))
    decoded = Avro(schema).decode(pa.array([raw for raw, _ in values], pa.binary()))
    found, refused = encoded(Avro(schema), pa.table(decoded.columns))
    assert not refused
    for (raw, _), again in zip(values, found, strict=True):
        assert read_avro(again, schema) == read_avro(raw, schema)


@settings(max_examples=examples(150), suppress_health_check=SLOW)
@given(columns())
def test_a_column_of_any_type_is_an_avro_value_as_it_is_or_is_refused(
    array: pa.Array[Any],
) -> None:
    rows = rows_of(array)
    try:
        schema = avro_schema(rows.schema, "t")
        form = Avro(schema)
    except StrategyError:
        return  # Avro has no such type, or name
    found, refused = encoded(form, rows)
    check_refused(array, refused)
    for raw in found:
        read_avro(raw, schema)
    decoded = form.decode(pa.array(found, pa.binary()))
    kind = rows.schema.field(0).type
    assert not decoded.failures or (is_list(kind) and not has_values(kind))
    again = plain(pa.table(decoded.columns).column(0))
    expected = [value for row, value in enumerate(plain(array)) if row not in refused]
    for row, reason in decoded.failures.items():  # a list of more nulls than the value has bytes
        assert "number of items" in reason
        expected[row] = None
    assert all(map(is_same, expected, again))


AVRO: Final = (
    *("int", "long", "float", "double", "boolean", "string", "bytes"),
    logical("int", "date"),
    logical("int", "time-millis"),
    logical("long", "time-micros"),
    logical("long", "timestamp-millis"),
    logical("long", "timestamp-micros"),
    logical("long", "timestamp-nanos"),
    logical("long", "local-timestamp-millis"),
    logical("bytes", "decimal", precision=5, scale=2),
    logical("bytes", "decimal", precision=38, scale=0),
    {"type": "fixed", "name": "three", "size": 3},
    {"type": "fixed", "name": "number", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 1},
)  # fmt: skip


@settings(max_examples=examples(200), suppress_health_check=SLOW)
@given(columns(nested=False), st.sampled_from(AVRO))
def test_a_value_is_in_a_narrow_field_of_avro_as_it_is_or_is_refused(
    array: pa.Array[Any], kind: Any
) -> None:
    field = {"name": FIELD, "type": ["null", kind]}
    form = Avro({"type": "record", "name": "t", "fields": [field]})
    check_narrow(form, array, lambda raw: read_avro(raw, form.reader_schema))


def check_narrow(form: ValueFormat, array: pa.Array[Any], read: Any) -> None:
    """Each value is written as what `fit` makes of it, or refused exactly where that does not fit."""
    rows = rows_of(array)
    found, refused = encoded(form, rows)
    check_refused(array, refused)
    for raw in found:
        read(raw)
    try:
        made = fit(rows.column(0).combine_chunks(), form.schema.field(FIELD).type)
    except Misfit:
        assert len(refused) == len(array) - array_nulls(array)
        return
    wrong = np.zeros(len(array), np.bool_)
    for mask in (made.bad, made.cut):
        if mask is not None:
            wrong |= mask
    assert set(np.flatnonzero(wrong).tolist()) <= set(refused)
    again = plain(pa.table(form.decode(pa.array(found, pa.binary())).columns).column(0))
    expected = [value for row, value in enumerate(plain(made.array)) if row not in refused]
    assert all(map(is_same, expected, again))


def array_nulls(array: pa.Array[Any]) -> int:
    return sum(value is None for value in plain(array))


@settings(max_examples=examples(120))
@given(messages())
def test_what_was_read_as_a_random_message_is_written_as_it_was(made: Any) -> None:
    kind, values = made
    note(f"{kind.DESCRIPTOR.file.serialized_pb!r} {values}")
    decoded = Protobuf(kind).decode(pa.array(values, pa.binary()))
    sound = [row for row in range(len(values)) if row not in decoded.failures]
    found, refused = encoded(
        Protobuf(kind), pa.table(decoded.columns).take(pa.array(sound, pa.int64()))
    )
    assert all(
        "is there twice" in reason or "is required, and null" in reason
        for reason in refused.values()
    ), refused
    read = [kind.FromString(values[row]) for at, row in enumerate(sound) if at not in refused]
    for before, after in zip(read, found, strict=True):
        assert in_order(expected_of(kind.FromString(after))) == in_order(expected_of(before))


def in_order(value: Any) -> str:
    """A value as text: entries of maps are sorted, NaN is equal to itself."""
    if isinstance(value, dict):
        return f"{{{sorted((repr(key), in_order(each)) for key, each in value.items())}}}"
    if isinstance(value, Struct):
        return f"({[(name, in_order(each)) for name, each in value.fields]})"
    return f"[{[in_order(each) for each in value]}]" if isinstance(value, tuple) else repr(value)


def narrow_message() -> Any:
    """A message with an optional field of each scalar type, of which a test writes one."""
    kinds = [
        name.removeprefix("TYPE_").lower()
        for name, _ in descriptor_pb2.FieldDescriptorProto.Type.items()
        if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
    ]
    file = descriptor_pb2.FileDescriptorProto(name="narrow.proto", syntax="proto2")
    for kind in kinds:
        message = file.message_type.add(name=f"of_{kind}")
        field = message.field.add(name=FIELD, number=1, label=1)
        field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"of_{kind}")) for kind in kinds
    ]


@settings(max_examples=examples(150), suppress_health_check=SLOW)
@given(columns(nested=False), st.sampled_from(narrow_message()))
def test_a_value_is_in_a_narrow_field_of_a_message_as_it_is_or_is_refused(
    array: pa.Array[Any], kind: Any
) -> None:
    check_narrow(Protobuf(kind), array, kind.FromString)


@settings(max_examples=examples(150), suppress_health_check=SLOW)
@given(columns(), st.sampled_from([Json, MessagePack]))
def test_a_column_of_any_type_is_a_typed_value_as_it_is_or_is_refused(
    array: pa.Array[Any], make: Any
) -> None:
    rows = rows_of(array)
    try:
        form = make(rows.schema)
    except StrategyError:
        return  # no Python type is of this column
    found, refused = encoded(form, rows)
    check_refused(array, refused)
    read = msgspec.json.decode if make is Json else msgspec.msgpack.decode
    assert all(set(read(raw)) <= {FIELD} for raw in found)
    decoded = form.decode(pa.array(found, pa.binary()))
    assert not decoded.failures
    again = plain(pa.table(decoded.columns).column(0))
    expected = [value for row, value in enumerate(plain(array)) if row not in refused]
    assert all(map(is_same, expected, again))
