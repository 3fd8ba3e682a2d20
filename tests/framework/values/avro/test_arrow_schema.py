"""The Avro schema of Arrow columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.values.avro.schema import avro_schema


def of(type_: Any, name: str = "c") -> Any:
    field: pa.Field[Any] = pa.field(name, type_, nullable=False)
    return avro_schema(pa.schema([field]), "my-topic")["fields"][0]["type"]


@pytest.mark.parametrize(
    ("type_", "schema"),
    [
        (pa.int8(), "int"),
        (pa.uint32(), "long"),
        (pa.float32(), "float"),
        (pa.large_string(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.timestamp("ns"), {"type": "long", "logicalType": "local-timestamp-nanos"}),
        (pa.list_(pa.field("item", pa.int32(), nullable=False)), {"type": "array", "items": "int"}),
        (pa.binary(3), {"type": "fixed", "name": "my_topic_c", "size": 3}),
    ],
)
def test_each_column_has_its_type(type_: Any, schema: Any) -> None:
    assert of(type_) == schema


def test_a_nullable_column_is_a_union_with_null() -> None:
    schema = avro_schema(pa.schema({"a": pa.int64()}), "9")
    assert schema == {
        "type": "record",
        "name": "_9",
        "fields": [{"name": "a", "type": ["null", "long"], "default": None}],
    }


def test_columns_that_avro_cannot_have_are_refused() -> None:
    with pytest.raises(StrategyError, match="column c: Avro has no type for duration"):
        of(pa.duration("s"))
    with pytest.raises(StrategyError, match="column a-b: Avro's names have letters"):
        of(pa.int8(), "a-b")
