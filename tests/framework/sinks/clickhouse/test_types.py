"""Casting Arrow columns to ClickHouse's types: the values, and the rows that do not fit."""

# ruff: noqa: DTZ001  times without a zone are among the cases

from __future__ import annotations

import io
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmr.columns.casting import Misfit
from kmr.sinks.clickhouse.types import cast_to, stored_type, type_of
from tests.examples import examples

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from tests.framework.sinks.conftest import CreateTable

UUID = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"


def bad_rows(array: Any, type_name: str, **options: bool) -> list[int]:
    bad = cast_to(array, type_of(type_name), **options).bad
    return [] if bad is None else np.flatnonzero(bad).tolist()


# type, values, Arrow type (None: inferred), the rows that do not fit
EMPTY = pa.struct([("a", pa.list_(pa.null())), ("b", pa.map_(pa.string(), pa.null()))])
CASES: list[tuple[str, list[Any], pa.DataType | None, list[int]]] = [
    ("UInt8", [0, 255, 256, -1, None], None, [2, 3, 4]),
    ("Nullable(UInt8)", [0, None, 256], None, [2]),
    ("Int64", [2**63 - 1, 2**63], pa.uint64(), [1]),
    ("UInt64", [0, -1, 2**62], None, [1]),
    ("Int32", [1.0, 1.5, math.nan, math.inf, -(2.0**31), 2.0**31], None, [1, 2, 3, 5]),
    ("Int32", ["12", "-3", "1.0", "", "99999999999", "x"], None, [2, 3, 4, 5]),
    ("UInt64", [b"12", b"x"], None, [1]),
    ("Int8", [Decimal("1.5"), Decimal("2.0")], None, [0]),
    ("UInt8", [True, False], None, []),
    ("Int128", ["1", "x", str(2**100)], None, [1]),
    ("UInt256", [Decimal(10) ** 40], None, []),
    ("Float64", [2**60 + 1, 2**60, 1], None, [0]),
    ("Float32", ["1.5", "x"], None, [1]),
    ("Decimal(5, 2)", [999, 1000], None, [1]),
    ("Decimal(5, 2)", ["1.25", "1.255", "1000", "x"], None, [1, 2, 3]),
    ("Decimal(60, 2)", [Decimal("1.5")], None, []),
    ("Bool", [0, 1, 2], None, [2]),
    ("Bool", ["true", "false", "perhaps"], None, [2]),
    ("String", ["a", None], None, [1]),
    ("String", [b"\xff\x00"], None, []),
    ("String", ["a"], pa.string_view(), []),
    ("String", [1.5], None, []),
    ("FixedString(2)", ["ab", "abc", "ä", ""], None, [1]),
    ("LowCardinality(Nullable(String))", ["a", None], None, []),
    ("Enum8('a' = 1, 'b' = 2)", ["a", "c", "b"], None, [1]),
    ("Enum16('a' = 1, 'b' = 300)", [1, 300, 2, 70_000], None, [2, 3]),
    ("Nullable(Enum8('a' = 1))", ["a", None], None, []),
    ("Enum16('a' = -1, 'b' = 2)", ["a", "-1", "2", "3", ""], None, [3, 4]),
    ("UUID", [UUID, UUID.replace("-", ""), "x"], None, [2]),
    ("IPv4", ["1.2.3.4", "256.1.1.1", "1.2.3"], None, [1, 2]),
    ("IPv4", [2**32 - 1, 2**32], None, [1]),
    ("IPv4", ["1.2.3.4", "16909060", "4294967296", "-1", None], None, [2, 3, 4]),
    (
        "Date",
        [date(1970, 1, 1), date(2149, 6, 6), date(2149, 6, 7), date(1969, 12, 31)],
        None,
        [2, 3],
    ),
    ("Date", ["2020-02-29", "2021-02-29"], None, [1]),
    ("Date", [65_535, 65_536], None, [1]),
    (
        "Date32",
        [date(1900, 1, 1), date(1899, 12, 31), date(2299, 12, 31), date(2300, 1, 1)],
        None,
        [1, 3],
    ),
    ("DateTime", [datetime(2106, 2, 7, 6, 28, 15), datetime(2106, 2, 7, 6, 28, 16)], None, [1]),
    ("DateTime", [0, 2**32 - 1, 2**32, -1], None, [2, 3]),
    ("DateTime", ["2020-01-01 00:00:00", "2020-01-01T00:00:00Z", "later", ""], None, [2, 3]),
    (
        "DateTime('Europe/Berlin')",
        [
            "2024-03-31 01:59:59",
            "2024-03-31 02:30:00",
            "2024-03-31T02:30:00Z",
            "2024-10-27 02:30:00",
        ],
        None,
        [1],  # the clocks go from 2:00 to 3:00
    ),
    ("DateTime64(3)", [datetime(1900, 1, 1), datetime(1899, 12, 31)], None, [1]),
    ("DateTime64(9)", [datetime(2262, 1, 1), datetime(2263, 1, 1)], None, [1]),
    ("DateTime64(6)", [0, 2**62], None, [1]),
    ("Array(UInt8)", [[1, 256], [2], [], None, [3, -1]], None, [0, 3, 4]),
    ("Array(Array(DateTime))", [[[1], [-1]], [[2]], []], None, [0]),
    ("Array(Nullable(String))", [["a", None]], None, []),
    ("Array(String)", [["a", None], ["b"]], None, [0]),
    ("Array(UInt8)", [[1, 2], [3, 300]], pa.list_(pa.int64(), 2), [1]),
    ("Map(String, UInt8)", [[("a", 1)], [("b", 300)], []], pa.map_(pa.string(), pa.int64()), [1]),
    (
        "Map(UInt8, String)",
        [[(1, "a")], [(300, "b"), (2, "c")]],
        pa.map_(pa.int64(), pa.string()),
        [1],
    ),
    ("Map(String, UInt8)", [{"a": 1}, {"b": 300, "a": 2}, {}], None, [1]),
    ("Tuple(a UInt8, b String)", [{"a": 1, "b": "x"}, {"a": 300, "b": "y"}], None, [1]),
    ("Tuple(UInt8, String)", [{"x": 1, "y": "x"}], None, []),
    ("SimpleAggregateFunction(anyLast, Nullable(UInt8))", [None, 1, 300], None, [2]),
    ("JSON", ['{"a": 1}'], None, []),
    ("DateTime64(3)", [0.0, 1.5, math.nan, math.inf, 1e300], None, [1, 2, 3, 4]),
    ("DateTime64(3)", [5, 2**64 - 1], pa.uint64(), [1]),
    ("Time", [0, 3_599_999, 3_600_000, -1], None, [2]),
    ("Time64(3)", ["12:30:00.5", "25:00:00", "x"], None, [1, 2]),
    ("Time64(6)", [0, 86_399_999_999], pa.time64("us"), []),
    ("BFloat16", [256, 257, -32_767, -1, 0], None, [1, 2]),
    ("BFloat16", [1.5, 0.1, math.nan, 1e300], None, [3]),
    ("BFloat16", ["256", "257", "257.0", "0.1"], None, [1, 2]),
    ("BFloat16", [Decimal("256"), Decimal("257"), Decimal("0.1")], None, [1]),
    ("Time", ["12:30:00", "00:00", "25:00:00"], None, [2]),
    ("UInt256", ["-0", "+1", "-1"], None, [2]),
    ("IntervalSecond", [1, 2**63], pa.uint64(), [1]),
    ("Dynamic", [0, 2**62], pa.timestamp("us", "UTC"), [1]),
    ("Variant(Date32, String)", [0, -25_568], pa.date32(), [1]),
    ("Array(UInt8)", [[], []], None, []),
    ("Array(Map(String, UInt8))", [[], [None]], None, [1]),
    ("Array(Nullable(UInt8))", [[], [None]], None, []),
    ("Map(String, String)", [[], [("a", None)]], pa.map_(pa.string(), pa.null()), [1]),
    ("Map(String, Nullable(Int8))", [[], [{"a": None, "b": None}]], None, [1]),
    ("Map(String, Map(String, Int8))", [[]], pa.map_(pa.string(), pa.null()), []),
    ("Map(String, Nullable(Int8))", [[("a", None)]], pa.map_(pa.string(), pa.null()), []),
    ("Tuple(a Array(Int8), b Map(String, Tuple(c Int8)))", [{"a": [], "b": {}}], EMPTY, []),
    ("Map(Int32, String)", [{"3": "x"}, {"x": "x"}, {}], None, [1]),
    ("Map(Enum8('a' = 1), String)", [{"a": "x"}, {"z": "x"}, {"a": "y", "z": "q"}], None, [1, 2]),
    ("JSON", [{"a": 1}, {"": 1}, {}, {"a": 2, "": None}], None, [1]),
    ("JSON", [{"l": [{"": 1, "a": 1}]}, {"l": [{"a": 1}]}, {"l": []}], None, [0]),
]


@pytest.mark.parametrize(("type_name", "values", "arrow_type", "expected"), CASES)
def test_the_rows_that_do_not_fit_are_named(
    type_name: str, values: list[Any], arrow_type: pa.DataType | None, expected: list[int]
) -> None:
    array = pa.array(values, arrow_type)
    assert bad_rows(array, type_name) == expected
    padded = pa.concat_arrays([array.slice(0, 1), array, array.slice(0, 1)])
    assert bad_rows(padded.slice(1, len(array)), type_name) == expected, "a slice is no different"
    assert len(cast_to(array, type_of(type_name)).array) == len(array)


@pytest.mark.parametrize(("type_name", "values", "arrow_type", "expected"), CASES)
def test_the_server_takes_every_row_that_fits(
    client: Client,
    create_table: CreateTable,
    type_name: str,
    values: list[Any],
    arrow_type: pa.DataType | None,
    expected: list[int],
) -> None:
    client.set_client_setting("enable_time_time64_type", 1)
    table = create_table(f"`n` UInt8, `x` {type_name}")
    cast = cast_to(pa.array(values, arrow_type), type_of(type_name))
    fits = [n for n in range(len(values)) if n not in expected]
    rows = pa.table({"n": pa.array(range(len(values)), pa.uint8()), "x": cast.array}).take(fits)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    client.raw_insert(table, ["n", "x"], sink.getvalue(), fmt="ArrowStream")
    assert client.query(f"SELECT n FROM {table} ORDER BY n").result_columns == (
        [fits] if fits else []
    )


@pytest.mark.parametrize(
    ("type_name", "value", "expected"),
    [
        ("DateTime", datetime(2020, 1, 1, 0, 0, 0, 999_999), 1_577_836_800),
        ("DateTime", datetime(2020, 1, 1, tzinfo=UTC), 1_577_836_800),
        ("DateTime", "2020-01-01T01:00:00+01:00", 1_577_836_800),
        ("DateTime('America/New_York')", "2020-01-01 00:00:00", 1_577_836_800 + 5 * 3600),
        ("DateTime('America/New_York')", datetime(2020, 1, 1), 1_577_836_800),
        ("DateTime", date(2020, 1, 1), 1_577_836_800),
        (
            "DateTime64(3)",
            "2020-01-01 00:00:00.123456789",
            datetime(2020, 1, 1, 0, 0, 0, 123_000, UTC),
        ),
        ("DateTime64(3)", 1_577_836_800, datetime(2020, 1, 1, tzinfo=UTC)),
        ("Date", datetime(2020, 1, 1, 23, 59), 18_262),
        ("Decimal(5, 2)", 1, Decimal("1.00")),
        ("String", 5, "5"),
        ("UInt8", "7", 7),
        ("IPv4", "16909060", "1.2.3.4"),
        ("Enum8('a' = 1)", "1", "a"),
    ],
)
def test_values_keep_their_meaning(type_name: str, value: Any, expected: Any) -> None:
    cast = cast_to(pa.array([value]), type_of(type_name))
    assert cast.bad is None
    assert cast.array.to_pylist() == [expected]


@pytest.mark.parametrize(
    ("type_name", "array"),
    [
        ("UInt8", pa.array([[1]])),
        ("String", pa.array([[1]])),
        ("String", pa.array([{"a": 1}])),
        ("Array(UInt8)", pa.array(["text"])),
        ("Map(String, UInt8)", pa.array([1])),
        ("Tuple(a UInt8, b UInt8)", pa.array([{"a": 1, "c": 2}])),
        ("DateTime", pa.array([True])),
        ("Time", pa.array([datetime(2020, 1, 1)])),
        ("IntervalSecond", pa.array([1.5])),
    ],
)
def test_a_type_that_cannot_be_cast_is_a_misfit(type_name: str, array: Any) -> None:
    with pytest.raises(Misfit):
        cast_to(array, type_of(type_name))


def test_null_fits_a_column_with_a_default() -> None:
    assert bad_rows(pa.array([1, None]), "UInt8", has_default=True) == []
    assert bad_rows(pa.array([[1], None]), "Array(UInt8)", has_default=True) == []
    assert bad_rows(pa.array([[None], None]), "Array(UInt8)", has_default=True) == [0]


def test_a_type_that_the_client_does_not_know_is_left_to_the_server() -> None:
    column = pa.array([1, None])
    assert cast_to(column, type_of("Novelty(8)")).array is column
    assert bad_rows(column, "Novelty(8)") == []


def test_dictionaries_and_extension_types_are_unwrapped() -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    assert cast_to(words, type_of("LowCardinality(String)")).array.to_pylist() == ["a", "b", "a"]
    uuids = pa.array([b"0123456789abcdef"], pa.uuid())
    assert cast_to(uuids, type_of("UUID")).array.to_pylist() == [b"0123456789abcdef"]


def test_a_uuid_is_text_in_a_string_and_its_bytes_in_a_fixed_string() -> None:
    uuids = pa.array([b"0" * 16, b"\xff" * 16], pa.uuid())
    text = ["30303030-3030-3030-3030-303030303030", "ffffffff-ffff-ffff-ffff-ffffffffffff"]
    assert cast_to(uuids, type_of("String")).array.to_pylist() == text
    assert cast_to(uuids, type_of("FixedString(16)")).array.to_pylist() == [
        b"0" * 16,
        b"\xff" * 16,
    ]


HIDDEN = [
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([7, None])),
    pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), pa.array([7, None, 8])),
]


@pytest.mark.parametrize("array", HIDDEN)
@pytest.mark.parametrize("type_name", ["UInt8", "String", "DateTime", "Decimal(5, 2)"])
def test_a_null_among_the_values_of_a_dictionary_or_of_runs_is_null(
    type_name: str, array: Any
) -> None:
    assert bad_rows(array, type_name) == [1]
    assert bad_rows(array, f"Nullable({type_name})") == []


def test_what_is_no_text_does_not_fit_a_fixed_string() -> None:
    beyond_a_day = pa.array([0, 86_400, -1], pa.int32()).view(pa.time32("s"))
    assert bad_rows(beyond_a_day, "FixedString(8)") == [1, 2]


def test_times_that_the_server_would_change_do_not_fit_json_at_any_depth() -> None:
    far = pa.array([0, 2**62, None], pa.timestamp("us", "UTC"))
    assert bad_rows(pa.StructArray.from_arrays([far], ["t"]), "JSON") == [1]
    assert bad_rows(pa.array([[0], [1, 2**62], None], pa.list_(far.type)), "Nullable(JSON)") == [1]
    maps = pa.array([[("a", 0)], [("b", 2**62)]], pa.map_(pa.string(), far.type))
    assert bad_rows(maps, "JSON") == [1]


@pytest.mark.parametrize("type_name", ["UInt8", "DateTime", "Array(UInt8)", "Map(String, UInt8)"])
@pytest.mark.parametrize("length", [0, 3])
def test_columns_of_nulls_fit_any_type(type_name: str, length: int) -> None:
    assert bad_rows(pa.nulls(length), type_name) == list(range(length))
    assert bad_rows(pa.nulls(length), type_name, has_default=True) == []


INTEGERS = {
    f"{sign}Int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if not sign else (0, 2**bits - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}


@given(
    type_name=st.sampled_from(list(INTEGERS)),
    values=st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1),
    form=st.sampled_from(["int64", "text"]),
)
def test_integers_fit_exactly_if_the_type_has_them(
    type_name: str, values: list[int | None], form: str
) -> None:
    low, high = INTEGERS[type_name]
    array: Any = pa.array(values, pa.int64())
    if form == "text":
        array = array.cast(pa.string())
    expected = [n for n, value in enumerate(values) if value is None or not low <= value <= high]
    assert bad_rows(array, type_name) == expected
    cast = cast_to(array, type_of(type_name)).array.to_pylist()
    assert [v for n, v in enumerate(cast) if n not in expected] == [
        v for n, v in enumerate(values) if n not in expected
    ]


@example([datetime(1969, 12, 31, 23, 59, 59, 1)])
@given(st.lists(st.datetimes(datetime(1800, 1, 1), datetime(2400, 1, 1)), min_size=1))
def test_times_fit_exactly_if_they_are_seconds_of_32_bits(times: list[datetime]) -> None:
    epoch = datetime(1970, 1, 1)
    seconds = [(time - epoch) // timedelta(seconds=1) for time in times]
    expected = [n for n, s in enumerate(seconds) if not 0 <= s < 2**32]
    array = pa.array(times, pa.timestamp("us"))
    assert bad_rows(array, "DateTime") == expected
    cast = cast_to(array, type_of("DateTime")).array.to_pylist()
    assert all(cast[n] == s for n, s in enumerate(seconds) if n not in expected)


@settings(max_examples=examples(150))
@given(st.lists(st.one_of(st.just("x"), st.integers(0, 255).map(str)), min_size=1, max_size=300))
def test_bisecting_finds_every_value_that_cannot_be_cast_and_keeps_the_others(
    texts: list[str],
) -> None:
    array = pa.array([text.encode() for text in texts], pa.binary())
    cast = cast_to(array, type_of("UInt8"))
    assert bad_rows(array, "UInt8") == [n for n, text in enumerate(texts) if text == "x"]
    assert cast.array.to_pylist() == [None if text == "x" else int(text) for text in texts]


def test_items_of_nested_objects_are_cast_as_those_of_tuples() -> None:
    items = pa.array([[{"a": 1, "b": "x"}], [{"a": 300, "b": "y"}]])
    assert bad_rows(items, "Nested(a UInt8, b Nullable(String))") == [1]


def test_maps_and_32_bit_floats_are_known_at_any_depth() -> None:
    maps: Any = pa.map_
    name = "Tuple(m Map(LowCardinality(String), Nullable(Float32)), n Nested(f Float32))"
    item = pa.list_(pa.struct([("f", pa.float32())]))
    expected = pa.struct([("m", maps(pa.string(), pa.float32())), ("n", item)])
    assert stored_type(type_of(name)) == expected
    assert stored_type(type_of("SimpleAggregateFunction(max, Float32)")) == pa.float32()
