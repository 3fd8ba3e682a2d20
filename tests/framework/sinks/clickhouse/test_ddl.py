"""Statements made of Arrow schemas, run by the embedded ClickHouse; rows of every type fit their table."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from kmr.errors import StrategyError
from kmr.sinks.clickhouse.ddl import TableLayout, add_columns, column_type, create_table

from ...flushes import Flushed
from .writing import OpenWriter, flush, poisoned_offsets, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clickhouse_connect.driver.client import Client

COORDINATES: list[pa.Field[Any]] = [
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
]
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
VALUES: list[tuple[pa.DataType, str, Any]] = [
    (pa.int8(), "Int8", -7),
    (pa.uint64(), "UInt64", 2**64 - 1),
    (pa.float16(), "Float32", 1.5),
    (pa.float64(), "Float64", 0.1),
    (pa.bool_(), "Bool", True),
    (pa.string(), "String", "ü"),
    (pa.large_string(), "String", "text"),
    (pa.binary(), "String", b"bytes"),
    (pa.binary(3), "FixedString(3)", b"abc"),
    (pa.uuid(), "UUID", UUID(int=5).bytes),
    (pa.dictionary(pa.int32(), pa.string()), "LowCardinality(String)", "often"),
    (pa.dictionary(pa.int8(), pa.int64()), "Int64", 5),
    (pa.date32(), "Date32", date(1969, 7, 20)),
    (pa.timestamp("s"), "DateTime64(0, 'UTC')", NOW.replace(microsecond=0, tzinfo=None)),
    (pa.timestamp("us", "Europe/Berlin"), "DateTime64(6, 'UTC')", NOW),
    (pa.timestamp("ns", "UTC"), "DateTime64(9, 'UTC')", NOW),
    (pa.time64("us"), "String", time(1, 2, 3)),
    (pa.duration("ms"), "Int64", timedelta(seconds=2)),
    (pa.decimal128(20, 4), "Decimal(20, 4)", Decimal("12.3456")),
    (pa.decimal256(70, 2), "Decimal(70, 2)", Decimal("12.34")),
    (pa.decimal128(3, -2), "Decimal(5, 0)", Decimal("12300")),
    (pa.list_(pa.string()), "Array(Nullable(String))", ["a", None]),
    (pa.large_list(pa.field("item", pa.int32(), nullable=False)), "Array(Int32)", [1, 2]),
    (pa.map_(pa.string(), pa.float64()), "Map(String, Nullable(Float64))", [("a", 1.0), ("b", None)]),
    (
        pa.struct([pa.field("x", pa.int64()), pa.field("it's", pa.list_(pa.string()))]),
        "Tuple(`x` Nullable(Int64), `it\\'s` Array(Nullable(String)))",
        {"x": None, "it's": ["a"]},
    ),
    (
        pa.list_(pa.struct([pa.field("k", pa.string(), nullable=False)])),
        "Array(Tuple(`k` Nullable(String)))",
        [{"k": "v"}],
    ),
]  # fmt: skip


@pytest.fixture
def name(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a table that the test creates; dropped after it."""
    name = f"d{abs(hash(request.node.nodeid))}"
    yield name
    client.command(f"DROP TABLE IF EXISTS {name}")


def test_each_arrow_type_has_the_clickhouse_type_that_holds_its_values() -> None:
    for kind, expected, _ in VALUES:
        assert column_type(kind) == expected
    assert column_type(pa.int64(), nullable=True) == "Nullable(Int64)"
    many = pa.dictionary(pa.int32(), pa.string())
    assert column_type(many, nullable=True) == "LowCardinality(Nullable(String))"


async def test_values_and_nulls_of_every_type_fit_the_table_that_is_made_for_them(
    client: Client, open_writer: OpenWriter, name: str
) -> None:
    fields = [pa.field(f"c{at}", kind) for at, (kind, _, _) in enumerate(VALUES)]
    columns: dict[str, Any] = {
        field.name: pa.array([value, None], field.type)
        if not isinstance(field.type, pa.UuidType)
        else pa.ExtensionArray.from_storage(field.type, pa.array([value, None], pa.binary(16)))
        for field, (_, _, value) in zip(fields, VALUES, strict=True)
    }
    writer = await open_writer(name, create=pa.schema([*COORDINATES, *fields]))
    part = rows(0, 2, **columns)
    assert await flush(writer, part) == Flushed()
    found = client.query(f"SELECT * FROM {name} ORDER BY offset").result_rows
    assert len(found) == 2
    by_name = dict(zip(part.table.column_names, found[0], strict=True))
    assert by_name["c1"] == 2**64 - 1
    assert by_name["c9"] == UUID(int=5)
    assert by_name[f"c{len(VALUES) - 1}"] == [{"k": "v"}]
    assert [
        value for value in found[1][2:] if value not in (None, [], {}, {"x": None, "it's": []})
    ] == []


async def test_a_table_that_is_made_remembers_what_exactly_once_needs(
    open_writer: OpenWriter, name: str
) -> None:
    with capture_logs() as logs:
        await open_writer(name, delivery="exactly-once", create=pa.schema(COORDINATES))
    assert [entry["event"] for entry in logs] == ["table created"]


def test_rows_are_sorted_by_their_coordinates_or_by_a_time_that_is_never_null() -> None:
    def key(*fields: pa.Field[Any], **layout: Any) -> str:
        statement = create_table("d", "t", pa.schema(fields), TableLayout(**layout))
        return statement.partition("ORDER BY ")[2].splitlines()[0]

    ts = pa.field("ts", pa.timestamp("us", "UTC"), nullable=False)
    path = pa.field("path", pa.string())
    assert key(path, *COORDINATES, ts) == "(`partition`, `offset`)"
    assert key(path, ts) == "(`ts`)"
    assert key(path, pa.field("ts", ts.type)) == "tuple()"
    assert key(path, ts, order_by=("toDate(ts)", "path")) == "(toDate(ts), `path`)"
    statement = create_table("d", "t", pa.schema([path]), TableLayout(order_by=("path",)))
    assert "`path` String\n" in statement, "a sorting key cannot be null"


def test_options_and_a_cluster_are_in_statements_that_clickhouse_parses(client: Client) -> None:
    schema = pa.schema([pa.field("ts", pa.timestamp("us"), nullable=False), *COORDINATES])
    layout = TableLayout(
        partition_by="toYYYYMM(ts)", ttl="ts + INTERVAL 1 DAY", cluster="two racks"
    )
    statement = create_table("d", "t", schema, layout)
    parsed = str(client.query("SELECT formatQuery({q:String})", {"q": statement}).result_rows[0][0])
    for part in (
        "CREATE TABLE IF NOT EXISTS d.t ON CLUSTER `two racks`",
        "ENGINE = ReplicatedMergeTree",
        "PARTITION BY toYYYYMM(ts)",
        "TTL ts + toIntervalDay(1)",
        "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800",
    ):
        assert part in parsed
    altered = add_columns("`d`.`t`", [pa.field("a b", pa.int8(), nullable=False)], layout)
    parsed = str(client.query("SELECT formatQuery({q:String})", {"q": altered}).result_rows[0][0])
    assert "ALTER TABLE d.t ON CLUSTER `two racks`" in parsed
    assert "ADD COLUMN IF NOT EXISTS `a b` Nullable(Int8)" in parsed


def test_a_field_may_state_its_type() -> None:
    field = pa.field("status", pa.string(), metadata={"clickhouse": "Enum8('ok' = 1, 'bad' = 2)"})
    assert "`status` Enum8('ok' = 1, 'bad' = 2)\n" in create_table(
        "d", "t", pa.schema([field]), TableLayout()
    )


def test_a_type_or_an_engine_that_cannot_be_is_refused() -> None:
    with pytest.raises(StrategyError, match=r"column x: ClickHouse has no type for Arrow's null"):
        create_table("d", "t", pa.schema([pa.field("x", pa.null())]), TableLayout())
    with pytest.raises(StrategyError, match="no columns"):
        create_table("d", "t", pa.schema([]), TableLayout())
    with pytest.raises(StrategyError, match="does not recognise a repeated INSERT"):
        TableLayout(engine="Memory")


async def test_failed_records_that_are_written_again_merge_in_a_replacing_table(
    client: Client, open_writer: OpenWriter, name: str
) -> None:
    """After a crash, failed records are written again, in flushes that are cut at other offsets."""
    failed = pa.schema([*COORDINATES, pa.field("reason", pa.string())])
    for parts in ((0, 3), (3, 1)), ((0, 1), (1, 4)):
        writer = await open_writer(
            name,
            create=failed,
            engine="ReplacingMergeTree",
        )
        for first, count in parts:
            await flush(writer, rows(first, count, reason=["bad"] * count))
    assert client.command(f"SELECT count() FROM {name}") == 9
    assert client.command(f"SELECT count() FROM {name} FINAL") == 5


async def test_a_null_array_inside_a_tuple_is_refused_with_its_row(
    open_writer: OpenWriter, name: str
) -> None:
    nested = pa.struct([pa.field("tags", pa.list_(pa.string()))])
    writer = await open_writer(name, create=pa.schema([*COORDINATES, pa.field("x", nested)]))
    values = pa.array([{"tags": ["a"]}, {"tags": None}, None], nested)
    assert poisoned_offsets(await flush(writer, rows(0, 3, x=values))) == [1]
