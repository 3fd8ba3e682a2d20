"""The columns of message types."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from kmr.errors import StrategyError
from kmr.values.protobuf.messages import MessageColumns

from .types import All

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

DESCRIPTOR = cast("Descriptor", All.DESCRIPTOR)


def test_each_field_has_its_column() -> None:
    schema = MessageColumns(DESCRIPTOR).schema
    assert schema.names == [field.name for field in All.DESCRIPTOR.fields]
    types = {field.name: field.type for field in schema}
    inner = pa.struct([pa.field("n", pa.int32()), pa.field("tags", pa.list_(pa.string()))])
    expected: dict[str, pa.DataType] = {
        "f_uint64": pa.uint64(),
        "f_sfixed32": pa.int32(),
        "f_float": pa.float32(),
        "f_bytes": pa.binary(),
        "r_bool": pa.list_(pa.bool_()),
        "color": pa.string(),
        "inner": inner,
        "inners": pa.list_(inner),
        "at": pa.timestamp("us", "UTC"),
        "wrapped": pa.int64(),
        "counts": pa.map_(pa.string(), pa.int64()),
    }
    assert {name: types[name] for name in expected} == expected


def test_fields_with_presence_are_nullable() -> None:
    nullable = {field.name for field in MessageColumns(DESCRIPTOR).schema if field.nullable}
    assert nullable == {"inner", "at", "wrapped", "a", "b", "maybe"}


def test_a_message_that_contains_itself_has_no_columns() -> None:
    with pytest.raises(StrategyError, match=r"google.protobuf.DescriptorProto contains itself"):
        MessageColumns(descriptor_pb2.DescriptorProto.DESCRIPTOR)


def test_tables_are_sorted_by_field_number() -> None:
    tables, _ = MessageColumns(timestamp_pb2.Timestamp.DESCRIPTOR).tables()
    assert tables.fields[:, 0].tolist() == [1, 2]
    assert tables.messages.tolist() == [[0, 2, 0, 2]]
