"""Deliveries that are counted in tables and files with gaps and doubles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kmr.errors import SinkError, StrategyError
from kmr.history.deliveries import CoordinateColumns, check, check_spark
from kmr.record import TopicPartition
from tests.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.framework.conftest import FillTable

PLAIN = "`partition` UInt32, `offset` UInt64"


def test_a_whole_delivery_is_clean(clickhouse_url: str, fill: FillTable) -> None:
    table = fill(PLAIN, (0, 5), (0, 6), (0, 7), (1, 0))
    result = check(url=clickhouse_url, table=table)
    assert result.clean
    assert (result.messages, result.missing, result.doubled) == (4, 0, 0)
    assert [(p.partition, p.first, p.last) for p in result.partitions] == [(0, 5, 7), (1, 0, 0)]


def test_gaps_are_missing_and_repetitions_are_doubled(clickhouse_url: str, fill: FillTable) -> None:
    table = fill(PLAIN, (0, 1), (0, 4), (0, 4), (0, 4), (1, 7), (1, 7), (1, 8))
    result = check(url=clickhouse_url, table=table)
    assert not result.clean
    zero, one = result.partitions
    assert (zero.missing, zero.doubled, zero.surplus, zero.example) == (2, 1, 2, 4)
    assert (one.missing, one.doubled, one.surplus, one.example) == (0, 1, 1, 7)
    assert (result.deliveries, result.messages, result.missing, result.doubled) == (7, 4, 2, 2)
    several = result.of_several_rows()
    assert (several.deliveries, several.messages, several.missing, several.doubled) == (7, 4, 2, 0)


def test_topics_are_counted_separately(clickhouse_url: str, fill: FillTable) -> None:
    table = fill("`topic` String, " + PLAIN, ("a", 0, 1), ("b", 0, 1), ("b", 0, 3))
    result = check(url=clickhouse_url, table=table)
    assert [(p.topic, p.missing) for p in result.partitions] == [("a", 0), ("b", 1)]
    assert result.doubled == 0


def test_columns_may_have_other_names(clickhouse_url: str, fill: FillTable) -> None:
    table = fill("`t x` String, `p` Int32, `kafka offset` Int64", ("a", 0, 1), ("b", 0, 3))
    found = partial(check, url=clickhouse_url, table=table)
    columns = CoordinateColumns(partition_column="p", offset_column="kafka offset")
    assert found(columns=columns).missing == 1
    assert found(columns=replace(columns, topic_column="t x")).clean


def test_an_expected_number_finds_messages_missing_at_the_ends(
    clickhouse_url: str, fill: FillTable
) -> None:
    table = fill(PLAIN, (0, 1), (0, 2))
    assert check(url=clickhouse_url, table=table, expected=2).clean
    assert check(url=clickhouse_url, table=table, expected=5).missing == 3
    assert not check(url=clickhouse_url, table=table, expected=1).clean
    empty = fill(PLAIN)
    assert check(url=clickhouse_url, table=empty).clean
    assert not check(url=clickhouse_url, table=empty, expected=1).clean


@settings(
    max_examples=examples(45),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=40))
def test_the_counts_are_those_of_a_naive_count(
    clickhouse_url: str, fill: FillTable, deliveries: list[tuple[int, int]]
) -> None:
    result = check(url=clickhouse_url, table=fill(PLAIN, *deliveries))
    partitions = {partition for partition, _ in deliveries}
    offsets = {p: [offset for q, offset in deliveries if p == q] for p in partitions}
    assert result.missing == sum(max(o) - min(o) + 1 - len(set(o)) for o in offsets.values())
    assert result.doubled == len({d for d in deliveries if deliveries.count(d) > 1})
    assert result.messages == len(set(deliveries))


def test_a_table_or_column_or_server_that_is_not_there_is_one_clear_line(
    clickhouse_url: str, fill: FillTable
) -> None:
    with pytest.raises(SinkError, match=r"has no table default\.nowhere$"):
        check(url=clickhouse_url, table="nowhere")
    with pytest.raises(SinkError, match=r"has no column offset \(it has a, partition\)"):
        check(url=clickhouse_url, table=fill("`a` UInt8, `partition` UInt8"))
    with pytest.raises(
        SinkError, match=r"http://127\.0\.0\.1:1 does not answer: Connection refused$"
    ):
        check(url="http://user:secret@127.0.0.1:1", table="t")
    with pytest.raises(SinkError, match="no ClickHouse directory /nowhere"):
        check(url="chdb:///nowhere", table="t")
    with pytest.raises(StrategyError, match="ClickHouse URL"):
        check(url="kafka://host", table="t")


# On Spark.

GAPS_AND_DOUBLES: dict[str, Any] = {
    "topic": ["a", "a", "a", "a", "a", "b"],
    "partition": [0, 0, 0, 0, 1, 0],
    "offset": [3, 4, 4, 7, 0, 4],
}


def files_of(directory: Path, **columns: Any) -> str:
    """Every row in a file of its own, as many flushes leave them."""
    directory.mkdir()
    table = pa.table(columns)
    for row in range(table.num_rows):
        pq.write_table(table.slice(row, 1), directory / f"{row}.parquet")
    return str(directory)


@pytest.mark.slow
def test_missing_and_doubled_messages_are_counted_per_topic_and_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    result = check_spark(files_of(tmp_path / "t", **GAPS_AND_DOUBLES))
    assert not result.clean
    assert (result.deliveries, result.messages, result.missing, result.doubled) == (6, 5, 2, 1)
    first = result.partitions[0]
    assert (first.topic, first.partition, first.first, first.last) == ("a", 0, 3, 7)
    assert (first.missing, first.doubled, first.surplus, first.example) == (2, 1, 1, 4)
    committed = {TopicPartition("a", 0): (3, 10), TopicPartition("c", 0): (0, 2)}
    filtered = check_spark(str(tmp_path / "t"), committed=committed)
    assert [(p.topic, p.partition, p.filtered) for p in filtered.partitions] == [
        ("a", 0, 4),
        ("a", 1, None),
        ("b", 0, None),
        ("c", 0, 2),
    ]


@pytest.mark.slow
def test_a_table_with_other_column_names_is_checked_by_them(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE others (p INT, `o}f` BIGINT) USING parquet")
    try:
        spark.sql("INSERT INTO others VALUES (0, 1), (0, 2), (1, 0)")
        result = check_spark(
            "others",
            columns=CoordinateColumns(partition_column="p", offset_column="o}f"),
            expected=4,
        )
        assert (result.messages, result.missing, result.doubled) == (3, 1, 0)
        with pytest.raises(
            SinkError, match=r"others has no column partition, offset \(it has p, o}f"
        ):
            check_spark("others")
    finally:
        spark.sql("DROP TABLE others")


@pytest.mark.slow
def test_what_is_not_there_is_one_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"Spark cannot read nowhere: .*TABLE_OR_VIEW_NOT_FOUND"):
        check_spark("nowhere")
    with pytest.raises(SinkError, match=r"Spark cannot read .*PATH_NOT_FOUND"):
        check_spark(str(tmp_path / "nowhere"))
