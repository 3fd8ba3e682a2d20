"""Columns of every type into narrow columns of a table: each value is there as it is, or is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples

from .arrow_columns import columns
from .open_sinks import NarrowTable, clickhouse_table, postgres_table

pytestmark = pytest.mark.hypothesis  # the property is in `_try_all`, where no hook finds it

POSTGRES: Final = (
    *(
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "boolean",
        "numeric",
        "numeric(5,2)",
    ),
    *(
        "numeric(3,-2)",
        "numeric(2,4)",
        "text",
        "varchar(3)",
        "char(3)",
        '"char"',
        "name",
        "bytea",
        "date",
        "time",
    ),
    *(
        "time(3)",
        "timetz",
        "timestamp",
        "timestamptz",
        "timestamp(0)",
        "timestamptz(3)",
        "interval",
        "uuid",
    ),
    *(
        "interval day to second(0)",
        "inet",
        "cidr",
        "macaddr",
        "bit(3)",
        "varbit(3)",
        "json",
        "jsonb",
        "xml",
    ),
    *(
        "integer[]",
        "text[]",
        "mood",
        "small",
        "word",
        "int4range",
        "money",
        "oid",
        "point",
        "tsvector",
        "smalls",
    ),
)
_MADE: Final = (
    "CREATE TYPE mood AS ENUM ('a', 'b', '')",
    "CREATE DOMAIN small AS smallint CHECK (VALUE < 200)",
    "CREATE DOMAIN word AS varchar(3) CHECK (VALUE <> 'abc')",
    "CREATE DOMAIN smalls AS numeric(5,2)",
)
CLICKHOUSE: Final = (
    *(f"Nullable({kind})" for kind in (
        *("Int8", "Int16", "Int32", "Int64", "Int128", "Int256", "UInt8", "UInt16", "UInt32", "UInt64", "UInt256"),
        *("Float32", "Float64", "BFloat16", "Bool", "String", "FixedString(3)", "UUID", "IPv4", "IPv6", "Date"),
        *("Date32", "DateTime", "DateTime('America/New_York')", "DateTime64(0)", "DateTime64(3)", "DateTime64(9)"),
        *("DateTime64(6, 'Asia/Kolkata')", "Time", "Time64(3)", "Time64(9)", "Decimal(5, 2)", "Decimal(38, 38)"),
        *("Decimal(76, 0)", "Enum8('a' = 1, '' = 2, 'b' = -3)", "Enum16('a' = 1, 'abc' = 300)"),
        "Decimal(18, 0)",
    )),
    *("LowCardinality(Nullable(String))", "LowCardinality(Nullable(FixedString(3)))"),
    *("LowCardinality(Nullable(Int8))", "LowCardinality(Nullable(Date))"),
)  # fmt: skip
CLICKHOUSE_NESTED: Final = (
    *("Array(Nullable(Int8))", "Array(Array(Nullable(String)))", "Map(String, Nullable(Int8))", "Array(Date)"),
    *("Map(String, String)", "Map(Int64, Nullable(DateTime64(3)))", "Map(LowCardinality(String), Float32)"),
    *("Tuple(a Nullable(Int8), b Nullable(String))", "Tuple(Nullable(Int8), Nullable(String))"),
    *("Nested(a Nullable(Int8), b Nullable(String))", "Variant(Int64, String)", "Variant(Array(Int64), Date)"),
    *("JSON", "Dynamic", "Array(Map(String, Nullable(UInt8)))", "Array(LowCardinality(Nullable(String)))"),
    *("Array(Decimal(5, 2))", "Array(Tuple(a Nullable(Int8)))", "Array(Nullable(Bool))"),
)  # fmt: skip


_pa: Any = pa
_NULL_FIELDS: Final = pa.array([None, [{"a": None}], [None, {"a": None}]])
_DURATIONS: Final[Any] = pa.array(
    [None, {"a": [(0, None), (-1, None), (-(10**18), None)]}],
    pa.struct([("a", pa.map_(pa.duration("us"), pa.null()))]),
)
_EMPTY_OBJECTS: Final[Any] = pa.array(
    [{"a": [("x", {}), ("y", None)]}], pa.struct([("a", pa.map_(pa.string(), pa.struct([])))])
)
_NUMBER: Final[Any] = _pa.ExtensionArray.from_storage(_pa.json_(pa.string()), pa.array(["1"]))
FOUND: Final[dict[str, list[Any]]] = {
    "boolean": [pa.array([None, "TRUE", "f", "On"])],
    "Array(Date)": [pa.array([None, [0]], pa.list_(pa.int8()))],
    "Map(Int64, Nullable(DateTime64(3)))": [pa.array([[(1, 5)]], pa.map_(pa.int64(), pa.int64()))],
    "numeric(5,2)": [pa.array([False, True])],
    "interval": [pa.array(["0"])],
    "money": [pa.array(["0", "1,5"])],
    "bytea": [pa.array([bytes(16)], pa.uuid())],
    "jsonb": [_DURATIONS],
    "Nullable(Enum8('a' = 1, '' = 2, 'b' = -3))": [pa.array([1, 2, -3, 4], pa.int8()), pa.array([1.0]), _NUMBER],
    "Nullable(BFloat16)": [pa.array([Decimal("1E-38")], pa.decimal256(76, 38))],
    "real": [pa.array([Decimal("99999.9999"), Decimal("-1E-4")], _pa.decimal32(9, 4))],
    "JSON": [pa.array([{"a": {}, "b": 1}, {"a": None, "b": None}, {"b": 0}]), _EMPTY_OBJECTS],
    "Map(String, Nullable(Int8))": [pa.array([None, [], [{"a": None, "b": None}], [None]])],
    "Nullable(Time)": [pa.array([3_353_497]), pa.array([86_399_999_999_999], pa.time64("ns"))],
    "Array(Tuple(a Nullable(Int8)))": [_NULL_FIELDS, pa.array([[{"a": 1, "b": 2}]])],
    "Tuple(a Nullable(Int8), b Nullable(String))": [pa.array([{"a": 1, "c": None}, {"c": 2}])],
}  # fmt: skip
"""What the search found once, by the type of the column."""


def _try_all(table: NarrowTable, count: int, *, nested: bool) -> None:
    for kind in {*table.types} & {*FOUND}:
        for column in FOUND[kind]:
            assert not table.wrong(column, table.types.index(kind))

    @settings(max_examples=examples(count), suppress_health_check=[HealthCheck.too_slow])
    @given(columns(nested=nested), st.integers(0, len(table.types) - 1))
    def attempt(array: object, target: int) -> None:
        wrong = table.wrong(array, target)  # type: ignore[arg-type]
        assert not wrong, "\n".join(wrong)

    attempt()


def test_a_value_is_in_a_narrow_column_of_postgresql_as_it_is_or_is_refused(
    postgres_url: str,
) -> None:
    with postgres_table(postgres_url, POSTGRES, *_MADE) as table:
        _try_all(table, 300, nested=False)


def test_nested_values_are_in_columns_of_postgresql_as_they_are_or_are_refused(
    postgres_url: str,
) -> None:
    with postgres_table(postgres_url, ("json", "jsonb", "text", "integer[]", "integer")) as table:
        _try_all(table, 100, nested=True)


def test_a_value_is_in_a_narrow_column_of_clickhouse_as_it_is_or_is_refused(
    clickhouse_url: str,
) -> None:
    with clickhouse_table(clickhouse_url, CLICKHOUSE) as table:
        _try_all(table, 300, nested=False)


def test_nested_values_are_in_columns_of_clickhouse_as_they_are_or_are_refused(
    clickhouse_url: str,
) -> None:
    with clickhouse_table(clickhouse_url, CLICKHOUSE_NESTED) as table:
        _try_all(table, 150, nested=True)
