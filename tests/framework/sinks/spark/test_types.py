"""Arrow columns in Spark's types, and rows cast to an existing schema."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kmr.sinks.spark.types import spark_type, to_spark


@pytest.mark.parametrize(
    ("array", "kind", "values"),
    [
        (pa.array([255], pa.uint8()), pa.int16(), [255]),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
        (pa.array([1.5], pa.float16()), pa.float32(), [1.5]),
        (pa.array(["a", "a"]).dictionary_encode(), pa.string(), ["a", "a"]),
        (pa.array(["a"], pa.string_view()), pa.string(), ["a"]),
        (pa.array([86_400_000], pa.date64()), pa.date32(), [date(1970, 1, 2)]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.array([[1]], pa.large_list(pa.uint16())), pa.list_(pa.int32()), [[1]]),
        (pa.array([{"a": 1}], pa.struct([("a", pa.uint8())])), pa.struct([("a", pa.int16())]), [{"a": 1}]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.uint8())), pa.map_(pa.string(), pa.int16()), None),
    ],
)  # fmt: skip
def test_a_type_that_spark_does_not_have_becomes_the_next_wider_one(
    array: Any, kind: pa.DataType, values: list[Any] | None
) -> None:
    column = to_spark(pa.table({"c": array})).table.column("c")
    assert column.type == kind
    if values is not None:
        assert column.to_pylist() == values


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("us", "UTC")),
    ],
)
def test_timestamps_become_microseconds_of_the_same_instant(
    kind: pa.TimestampType[Any, Any], expected: pa.DataType
) -> None:
    per_second = 1_000_000_000 if kind.unit == "ns" else 1
    array = pa.array([7 * per_second + per_second // 3], kind)
    column = to_spark(pa.table({"c": array})).table.column("c")
    assert column.type == expected
    microseconds: Any = column.cast(pa.int64()).to_pylist()
    assert microseconds[0] // 1_000_000 == 7


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("us"),
        pa.time64("us"),
        pa.decimal256(50, 0),
        pa.struct([("id", pa.int8()), ("Id", pa.int8())]),
    ],
)
def test_values_of_a_type_without_a_counterpart_are_refused_with_the_name_of_the_column(
    kind: Any,
) -> None:
    assert spark_type(kind) is None
    value = {"id": 1, "Id": 2} if pa.types.is_struct(kind) else pa.array([1]).cast(kind)[0]
    column = pa.array([value, None], kind)
    fitted = to_spark(pa.table({"c": column, "d": [1, 2]}))
    assert list(fitted.refused) == [0]
    assert fitted.refused[0].startswith("column c of Spark: Spark has no type for Arrow's")
    assert fitted.kept().to_pylist() == [{"d": 2}]


def test_a_map_with_a_key_twice_is_refused_at_any_depth_and_its_neighbours_are_not() -> None:
    kind = pa.map_(pa.string(), pa.int8())
    maps = [[("a", 1), ("a", 2)], [("a", 1), ("b", 1)], None]
    nested = [{"m": [each]} for each in maps]
    table = pa.table(
        {"v": pa.array(maps, kind), "n": pa.array(nested, pa.struct([("m", pa.list_(kind))]))}
    )
    for name in table.column_names:
        fitted = to_spark(table.select([name]))
        assert list(fitted.refused) == [0]
        assert f"column {name} " in fitted.refused[0]
