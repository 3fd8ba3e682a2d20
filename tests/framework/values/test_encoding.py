"""Rows for encoders: cast to a format's columns, and encoded one by one."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kmr import Avro, Json, MessagePack
from kmr.errors import StrategyError
from kmr.values.encoding import DoesNotFit, dict_of, encode_each, fit_rows, plain_rows
from kmr.values.value_format import RowsDoNotFit, ValueFormat

if TYPE_CHECKING:
    from collections.abc import Callable

FIELDS: list[pa.Field[Any]] = [
    pa.field("n", pa.int8(), nullable=False),
    pa.field("text", pa.string()),
]
SCHEMA = pa.schema(FIELDS)


def test_rows_are_cast_and_columns_that_they_lack_stay_out() -> None:
    fitted = fit_rows(pa.table({"n": pa.array([1, -128], pa.int64())}), SCHEMA, "Test")
    assert fitted.schema.types == [pa.int8()]
    assert fitted.to_pylist() == [{"n": 1}, {"n": -128}]


def test_lists_and_maps_of_nulls_beside_a_time_are_rows_of_python_objects() -> None:
    kinds: Any = {
        "at": pa.date32(),
        "many": pa.list_(pa.null()),
        "named": pa.map_(pa.string(), pa.null()),
    }
    value = {"at": dt.date(1970, 1, 2), "many": [None] * 3, "named": [("a", None), ("b", None)]}
    rows = pa.table({"of": pa.array([value, None], pa.struct(list(kinds.items())))})
    assert plain_rows(rows) == [{"of": {**value, "at": 1}}, {"of": None}]


def test_a_column_that_the_format_lacks_is_refused() -> None:
    with pytest.raises(StrategyError, match="Test has no field other"):
        fit_rows(pa.table({"n": [1], "other": [2]}), SCHEMA, "Test")


def test_values_out_of_range_and_nulls_where_there_are_none_are_refused_by_row() -> None:
    with pytest.raises(RowsDoNotFit) as caught:
        fit_rows(pa.table({"n": [1, 128, None, -128]}), SCHEMA, "Test")
    assert caught.value.failures.keys() == {1, 2}


def test_a_field_of_a_nested_object_that_the_format_lacks_refuses_its_row_unless_it_is_null() -> (
    None
):
    narrow = pa.struct([("x", pa.int64())])
    kinds: Any = {
        "one": narrow,
        "many": pa.list_(narrow),
        "named": pa.map_(pa.string(), pa.struct([("of", narrow)])),
    }
    more = {"x": 1, "z": 5}
    same = {
        "one": {"x": 1, "z": None},
        "many": [{"x": 2}, None],
        "named": [("a", {"of": {"x": 3}})],
    }
    rows = [same, {**same, "one": more}, {**same, "many": [{"x": 1}, more]}, same,
            {**same, "named": [("a", {"of": more})]}]  # fmt: skip
    wide = pa.struct([("x", pa.int64()), ("z", pa.int64())])
    given: Any = {
        "one": wide,
        "many": pa.list_(wide),
        "named": pa.map_(pa.string(), pa.struct([("of", wide)])),
    }
    with pytest.raises(RowsDoNotFit) as caught:
        fit_rows(pa.Table.from_pylist(rows, pa.schema(given)), pa.schema(kinds), "Test")
    assert list(caught.value.failures) == [1, 2, 4]
    assert "cannot hold {'x': 1, 'z': 5}" in caught.value.failures[1]
    fitted = fit_rows(pa.Table.from_pylist([same], pa.schema(given)), pa.schema(kinds), "Test")
    assert fitted.to_pylist() == [{**same, "one": {"x": 1}}]


def test_each_row_that_cannot_be_encoded_has_its_reason() -> None:
    def encode(number: int) -> bytes:
        if number > 255:
            raise DoesNotFit(f"{number} is too large")
        return bytes([number])

    assert encode_each([1, 255], encode).to_pylist() == [b"\1", b"\xff"]
    with pytest.raises(RowsDoNotFit) as caught:
        encode_each([1, 256, 2, -1], encode)
    assert caught.value.failures.keys() == {1, 3}
    assert caught.value.failures[1] == "256 is too large"
    assert caught.value.failures[3].startswith("ValueError(")


def test_times_at_any_depth_are_integers_and_maps_are_pairs() -> None:
    day, moment = dt.date(1970, 1, 3), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    kind = pa.timestamp("ms", "UTC")
    rows = pa.table(
        {
            "day": pa.array([day], pa.date32()),
            "list": pa.array([[moment, None]], pa.list_(kind)),
            "struct": pa.array([{"at": moment}], pa.struct([pa.field("at", kind)])),
            "map": pa.array([[("a", moment)]], pa.map_(pa.string(), kind)),
        }
    )
    assert plain_rows(rows) == [
        {"day": 2, "list": [1000, None], "struct": {"at": 1000}, "map": [("a", 1000)]}
    ]


def test_a_key_that_is_twice_in_a_map_does_not_fit() -> None:
    assert dict_of([("a", 1), ("b", 2)], "m") == {"a": 1, "b": 2}
    with pytest.raises(DoesNotFit, match="field m: its key 'a' is there twice"):
        dict_of([("a", 1), ("a", 1)], "m")


FORMATS: dict[str, Callable[[pa.Schema], ValueFormat]] = {
    "JSON": Json,
    "MessagePack": MessagePack,
    "Avro": lambda schema: Avro(
        {
            "type": "record",
            "name": "Wide",
            "fields": [{"name": name, "type": "double"} for name in schema.names],
        }
    ),
}


def encode_fields(make: Callable[[pa.Schema], ValueFormat], count: int) -> float:
    """Return the processor time for encoding a row of so many fields, the least of some calls."""
    fields: list[pa.Field[Any]] = [
        pa.field(f"field_{at}", pa.float64(), nullable=False) for at in range(count)
    ]
    rows = pa.table({field.name: [1.5] for field in fields})
    encoder = make(pa.schema(fields))
    encoder.encode(rows, "t")
    times = []
    for _ in range(5):
        begin = time.thread_time()
        encoder.encode(rows, "t")
        times.append(time.thread_time() - begin)
    return min(times)


@pytest.mark.parametrize("make", FORMATS.values(), ids=list(FORMATS))
def test_the_time_for_a_row_grows_with_its_fields_and_not_with_their_square(
    make: Callable[[pa.Schema], ValueFormat],
) -> None:
    # Ten times as many take 10 to 15 times as long; by the square it was 70 to 80 times.
    assert encode_fields(make, 1_000) < 30 * encode_fields(make, 100)
