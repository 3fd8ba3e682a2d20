"""A repeated range is neither lost nor doubled, also in tables that delete, merge or sum rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from kmr.delivery.announcement import Announcement
from kmr.errors import StrategyError
from kmr.reducers.sink import Write
from kmr.sinks import ClickHouseWriter
from kmr.sinks.clickhouse.counting import Counting

from ...flushes import Flushed
from .writing import OpenWriter, flush, rows

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.record import Rows
    from tests.framework.sinks.conftest import CreateTable


def announced(last: int, *, repeated: bool = False) -> Write:
    return Write(Announcement(0, last, f"g:topic:0:0-{last}", "dead"), repeated=repeated)


def places(count: int, **columns: Any) -> Rows:
    """Rows without the coordinates of their records: those of the table are filled."""
    made = rows(0, count, **columns)
    return replace(made, table=made.table.drop_columns(["partition", "offset"]))


PLACE = "`x` UInt8, `topic` LowCardinality(String), `partition` UInt32, `offset` UInt64"
SUMS = "SummingMergeTree ORDER BY name"


@pytest.mark.parametrize(
    ("engine", "definition", "key", "expected"),
    [
        ("MergeTree", "MergeTree ORDER BY x SETTINGS a = 1", "x", (True, True, True)),
        ("ReplicatedMergeTree", "ReplicatedMergeTree('/x', 'TTL')", "", (True, True, True)),
        ("MergeTree", "MergeTree ORDER BY x TTL t + toIntervalDay(1)", "x", (True, False, False)),
        (
            "MergeTree",
            "MergeTree ORDER BY x TTL t TO DISK 'a', t TO VOLUME 'b'",
            "x",
            (True, True, True),
        ),
        (
            "MergeTree",
            "MergeTree ORDER BY x TTL t TO DISK 'a', t + 1 SETTINGS b = 1",
            "x",
            (True, False, False),
        ),
        ("SummingMergeTree", SUMS, "name", (False, False, True)),
        ("ReplacingMergeTree", "", "topic, partition, offset", (True, False, True)),
        ("ReplacingMergeTree", "", "topic, partition, offsets", (False, False, True)),
        ("Null", "Null", "", (False, False, False)),
        ("Distributed", "Distributed('a', 'b', 'MergeTree')", "", (False, False, False)),
    ],
)
def test_the_engine_decides(
    engine: str, definition: str, key: str, expected: tuple[bool, bool, bool]
) -> None:
    counting = Counting.of(engine, definition, key)
    assert (counting.found, counting.missing, counting.shows_inserts) == expected


async def test_a_range_that_has_expired_is_neither_missing_nor_written_again(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    old = "`at` DateTime DEFAULT toDateTime('2001-01-01 00:00:00')"
    table = create_table(
        f"{PLACE}, {old}", engine="MergeTree ORDER BY offset TTL at + INTERVAL 1 DAY"
    )
    writer = await open_writer(table)
    first = await flush(writer, places(50, x=[1] * 50), write=announced(49))
    assert first == Flushed(), "an expired range looks as if it had been dropped as a repetition"
    client.command(f"OPTIMIZE TABLE {table} FINAL")
    assert client.command(f"SELECT count() FROM {table}") == 0
    with capture_logs() as logs:
        again = await open_writer(table)
        assert (
            await flush(again, places(50, x=[1] * 50), write=announced(49, repeated=True))
            == Flushed()
        )
    assert not [log for log in logs if "again" in log["event"]]


async def test_sums_of_a_repeated_range_stay_as_they_are(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(f"{PLACE}, `name` String, `n` UInt64", engine=SUMS)
    writer = await open_writer(table)
    values = {"name": ["a"] * 100, "n": [1] * 100, "x": [1] * 100}
    assert await flush(writer, places(100, **values), write=announced(99)) == Flushed()
    client.command(f"OPTIMIZE TABLE {table} FINAL")
    again = await open_writer(table)
    repeated = announced(99, repeated=True)
    assert await flush(again, places(100, **values), write=repeated) == Flushed()
    assert client.command(f"SELECT sum(n) FROM {table}") == 100


async def test_a_range_whose_token_is_forgotten_is_counted_before_it_is_written(
    client: Client, create_table: CreateTable, open_writer: OpenWriter
) -> None:
    table = create_table(PLACE, window=5)
    writer = await open_writer(table)
    assert await flush(writer, places(100, x=[1] * 100), write=announced(99)) == Flushed()
    for n in range(10):
        client.command(f"INSERT INTO {table} VALUES (1, 'other', 9, {n})")
    again = await open_writer(table)
    with capture_logs() as logs:
        assert (
            await flush(again, places(100, x=[1] * 100), write=announced(99, repeated=True))
            == Flushed()
        )
    assert not [log for log in logs if "another number of rows" in log["event"]]
    assert client.command(f"SELECT count() FROM {table} WHERE topic != 'other'") == 100


async def test_deduplication_that_a_url_turns_off_is_on_for_our_inserts(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, clickhouse_url: str
) -> None:
    table = create_table("`n` UInt64")
    off = f"{clickhouse_url}?insert_deduplicate=0&deduplicate_insert=disable"
    for repeated in (False, True):
        writer = await open_writer(table, url=off)
        write = announced(9, repeated=repeated)
        assert await flush(writer, places(10, n=[1] * 10), write=write) == Flushed()
    assert client.command(f"SELECT count() FROM {table}") == 10


def test_a_table_and_a_database_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(StrategyError, match=r"'web.hits' names its database, and database='prod'"):
        ClickHouseWriter("web.hits", database="prod")
    with pytest.raises(StrategyError, match="sets deduplicate_insert itself"):
        ClickHouseWriter("hits", settings={"deduplicate_insert": "disable"})
