"""Which tables can be counted by offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import clickhouse_connect
import pytest

from kmr.errors import SinkError
from kmr.history.tables import NotCounted, table_of
from kmr.record import TopicPartition
from kmr.sinks import ClickHouseWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    table = f"counted{abs(hash(request.node.nodeid))}"

    def make(definition: str) -> ClickHouseWriter:
        client.command(f"DROP TABLE IF EXISTS {table}")
        client.command(f"CREATE TABLE {table} {definition}")
        return ClickHouseWriter(table, url=clickhouse_url)

    yield make
    client.command(f"DROP TABLE IF EXISTS {table}")


def test_offsets_are_found_with_their_rows(
    client: Client, writer: Callable[[str], ClickHouseWriter]
) -> None:
    made = writer(f"({COLUMNS}) ENGINE = MergeTree ORDER BY offset")
    client.command(
        f"INSERT INTO {made.table} VALUES ('t', 0, 1), ('t', 0, 1), ('t', 0, 4), ('u', 0, 2), ('t', 1, 3)"
    )
    table = table_of(made)
    found = table.find(P0, 0, 10)
    assert (found.offsets.tolist(), found.rows.tolist()) == ([1, 4], [2, 1])
    assert table.perfect(P0, 4, 5, 10) == {0}
    assert table.perfect(P0, 0, 10, 10) == set()
    assert table.perfect(P0, 0, 6, 2) == set()


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
    with pytest.raises(NotCounted, match=reason):
        table_of(writer(definition))


def test_other_sinks_are_not_counted_and_a_missing_table_is_an_error(clickhouse_url: str) -> None:
    with pytest.raises(NotCounted, match="StreamWriter is no table"):
        table_of(StreamWriter("stdout"))
    with pytest.raises(SinkError, match="has no table"):
        table_of(ClickHouseWriter("never_made", url=clickhouse_url))
