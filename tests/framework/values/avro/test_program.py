"""The columns of a schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.values.avro.program import SchemaPrograms
from kmr.values.avro.schema import parse

MAP = pa.map_(pa.string(), pa.list_(pa.int32()))


def type_of(schema: Any) -> Any:
    named: dict[str, Any] = {}
    return SchemaPrograms(parse(schema, named), named).schema.field("value").type


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ("null", pa.null()),
        ("int", pa.int32()),
        (["null", "long"], pa.int64()),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.timestamp("ns", "UTC")),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, pa.timestamp("ms")),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "int", "logicalType": "of our own"}, pa.int32()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 2)),
        ({"type": "fixed", "name": "F", "size": 3}, pa.binary(3)),
        ({"type": "map", "values": {"type": "array", "items": "int"}}, MAP),
    ],
)  # fmt: skip
def test_each_type_has_its_column(schema: Any, type_: pa.DataType) -> None:
    assert type_of(schema) == type_


def test_a_decimal_that_arrow_cannot_hold_is_refused() -> None:
    with pytest.raises(StrategyError, match="field value: a decimal has at most 76 digits"):
        type_of({"type": "bytes", "logicalType": "decimal", "precision": 77})


def test_fields_of_a_record_are_columns_and_nullable_as_in_the_schema() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["int", "null"]}],
    }
    columns = SchemaPrograms(schema, {}).schema
    assert [(each.name, each.nullable) for each in columns] == [("a", False), ("b", True)]
