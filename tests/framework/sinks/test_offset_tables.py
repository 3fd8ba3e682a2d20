"""Rows are counted by offset in tables and files, and it is said where a count proves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import clickhouse_connect
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kmr.errors import SinkError
from kmr.record import TopicPartition
from kmr.sinks import ClickHouseWriter, ParquetWriter, PostgresWriter, StreamWriter
from kmr.sinks.offset_tables import NotCounted, OffsetTable, TableNotMade, offset_table
from kmr.sinks.parquet.files import open_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clickhouse_connect.driver.client import Client

P0 = TopicPartition("t", 0)
COLUMNS = "topic String, partition Int32, offset Int64"


@pytest.fixture
def client(clickhouse_url: str) -> Iterator[Client]:
    with clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False) as client:
        yield client


@pytest.fixture
def writer(
    client: Client, clickhouse_url: str, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], ClickHouseWriter]]:
    """Makes a table with these columns and this engine."""
    table = f"`counted{abs(hash(request.node.nodeid))}%`"

    def make(definition: str) -> ClickHouseWriter:
        client.command(f"DROP TABLE IF EXISTS {table}")
        client.command(f"CREATE TABLE {table} {definition}")
        return ClickHouseWriter(table.strip("`"), url=clickhouse_url)

    yield make
    client.command(f"DROP TABLE IF EXISTS {table}")


def test_offsets_are_found_with_their_rows(
    client: Client, writer: Callable[[str], ClickHouseWriter]
) -> None:
    made = writer(f"({COLUMNS}) ENGINE = MergeTree ORDER BY offset")
    client.command(
        f"INSERT INTO `{made.table}` VALUES ('t', 0, 1), ('t', 0, 1), ('t', 0, 4), ('u', 0, 2), ('t', 1, 3)"
    )
    check(offset_table(made, ["t", "u"]))


def check(table: OffsetTable) -> None:
    found = table.find(P0, 0, 10)
    assert (found.offsets.tolist(), found.rows.tolist()) == ([1, 4], [2, 1])
    assert table.perfect(P0, 4, 5, 10) == {0}
    assert table.perfect(P0, 0, 10, 10) == set()
    assert table.perfect(P0, 0, 6, 2) == set()
    assert table.perfect(P0, 3, 6, 1) == {1}
    assert not table.doubt


def test_offsets_are_found_with_their_rows_in_postgresql(postgres_url: str) -> None:
    writer = PostgresWriter("counted%", url=postgres_url)
    with pytest.raises(TableNotMade, match="has no table counted%"):
        offset_table(writer, ["t"])
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute('CREATE TABLE "counted%" (topic text, partition int, "offset" bigint)')
        connection.execute(
            "INSERT INTO \"counted%\" VALUES ('t', 0, 1), ('t', 0, 1), ('t', 0, 4), ('u', 0, 2), ('t', 1, 3)"
        )
        check(offset_table(writer, ["t", "u"]))
        connection.execute('ALTER TABLE "counted%" DROP COLUMN topic')
        with pytest.raises(NotCounted, match="no column topic, and there are several"):
            offset_table(writer, ["t", "u"])
        assert offset_table(writer, ["t"]).find(P0, 0, 10).rows.tolist() == [2, 1, 1]
        connection.execute('ALTER TABLE "counted%" DROP COLUMN "offset"')
        with pytest.raises(NotCounted, match="has no columns partition and offset"):
            offset_table(writer, ["t"])
    with pytest.raises(SinkError, match="PostgreSQL at"):
        offset_table(PostgresWriter("t", url="postgresql://x@127.0.0.1:1/x"), ["t"])


def test_a_table_that_follows_changes_has_not_each_row(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute('CREATE TABLE followed (partition int, "offset" bigint)')
    writer = PostgresWriter("followed", url=postgres_url, changes=True, key=["id"])
    assert "the last change of each key" in offset_table(writer, ["t"]).doubt


@pytest.mark.parametrize("partition_by", [(), ("topic",), ("day", "partition")])
def test_offsets_are_found_with_their_rows_in_files(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    writer = ParquetWriter(tmp_path, partition_by=partition_by)
    assert offset_table(writer, ["t", "u"]).find(P0, 0, 10).rows.tolist() == []
    directory = open_directory(str(tmp_path), partition_by=partition_by)
    kinds = {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "topic": pa.string(),
        "day": pa.string(),
    }
    for number, rows in enumerate(
        [[(0, 1, "t"), (0, 4, "t")], [(0, 1, "t"), (0, 2, "u"), (1, 3, "t")]]
    ):
        columns = [*zip(*((*row, "monday") for row in rows), strict=True)]
        table = pa.table(
            {
                name: pa.array(values, kinds[name])
                for name, values in zip(kinds, columns, strict=True)
            }
        )
        directory.write(f"file{number}", table)
    check(offset_table(writer, ["t", "u"]))


def test_files_without_offsets_cannot_be_counted_nor_what_is_no_file(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path)
    pq.write_table(pa.table({"partition": [0]}), tmp_path / "a.parquet")
    with pytest.raises(NotCounted, match="has no columns partition and offset"):
        offset_table(writer, ["t"])
    (tmp_path / "a.parquet").write_text("no file")
    with pytest.raises(SinkError, match="cannot be read"):
        offset_table(writer, ["t"])


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (
            "(offset Int64) ENGINE = MergeTree ORDER BY offset",
            "has no columns partition and offset",
        ),
        (f"({COLUMNS}) ENGINE = SummingMergeTree ORDER BY topic", "deletes or merges rows"),
        (f"({COLUMNS}) ENGINE = Null", "deletes or merges rows"),
    ],
)
def test_a_table_whose_rows_cannot_be_counted_says_why(
    writer: Callable[[str], ClickHouseWriter], definition: str, reason: str
) -> None:
    made = writer(definition)
    if "offset" in reason:
        with pytest.raises(NotCounted, match=reason):
            offset_table(made, ["t"])
    else:
        assert reason in offset_table(made, ["t"]).doubt


def test_other_sinks_are_not_counted_and_a_missing_table_is_an_error(clickhouse_url: str) -> None:
    with pytest.raises(NotCounted, match="StreamWriter is no table"):
        offset_table(StreamWriter("stdout"), ["t"])
    with pytest.raises(TableNotMade, match="has no table"):
        offset_table(ClickHouseWriter("never_made", url=clickhouse_url), ["t"])
