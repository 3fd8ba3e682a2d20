"""Changes in a ReplacingMergeTree: versions decide, whatever the order of the inserts."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kmr.errors import StrategyError
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import Write
from kmr.sinks import ClickHouseWriter
from tests.framework.sinks.histories import History, announced, rows_of

from .writing import flush, reasons

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.record import Rows
    from tests.framework.sinks.conftest import CreateTable, Proxy

    from .writing import OpenWriter

NOW = "SELECT id, name FROM {} FINAL ORDER BY id"
CHANGES: dict[str, Any] = {"changes": True, "key": ["id"]}
COLUMNS = "id Int64, name String, note Nullable(String), _version UInt256, _is_deleted UInt8"
ENGINE = "ReplacingMergeTree(_version, _is_deleted) ORDER BY id"


def customers(*changes: tuple[str, int, str | None], first: int = 0, partition: int = 0) -> Rows:
    """Changes of one partition, each with the next position."""
    history = History(1, lsn=100 + first * 8)
    for op, key, name in changes:
        history.lsn += 8
        if name is not None:
            history.table[key] = name
        before = {"id": key} if op == "d" else None
        history.send(key, op, before, None if op in "dt" else key)
    return rows_of(history.topic[0], first, partition)


def now(client: Client, table: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in client.query(NOW.format(table)).result_rows]


async def test_a_table_is_made_for_changes(open_writer: OpenWriter, client: Client) -> None:
    client.command("DROP TABLE IF EXISTS made_of_changes")
    schema = customers().table.schema
    writer = await open_writer("made_of_changes", create=schema, **CHANGES)
    assert writer.capabilities.delivery == "exactly-once"
    await flush(writer, customers(("c", 1, "a"), ("c", 2, "b"), ("d", 1, None)))
    assert now(client, "made_of_changes") == [(2, "b")]
    made = client.command("SHOW CREATE TABLE made_of_changes")
    assert "ReplacingMergeTree(_version, _is_deleted)" in str(made)
    client.command("DROP TABLE made_of_changes")


async def test_an_older_change_that_is_written_late_changes_nothing(
    open_writer: OpenWriter, client: Client, create_table: CreateTable
) -> None:
    table = create_table(COLUMNS, ENGINE)
    writer = await open_writer(table, **CHANGES)
    old = customers(("c", 1, "old"), ("c", 2, "b"))
    await flush(writer, customers(("u", 1, "new"), ("d", 2, None), first=2))
    await flush(writer, old, write=replace(announced(old), repeated=True))
    assert now(client, table) == [(1, "new")]


async def test_a_key_whose_changes_are_in_two_partitions_has_the_last_by_position(
    open_writer: OpenWriter, client: Client, create_table: CreateTable
) -> None:
    """As after partitions were added: the offsets of the new one begin at 0."""
    table = create_table(COLUMNS, ENGINE)
    writer = await open_writer(table, **CHANGES)
    before = customers(("c", 1, "before"), first=1000)
    history = History(1, lsn=1_000_000, table={1: "after"})
    history.send(1, "u", None, 1)
    after = rows_of(history.topic[0], 0, 1)
    for order in ((before, after), (after, before)):
        client.command(f"TRUNCATE TABLE {table}")
        for rows in order:
            await flush(writer, rows, write=Write(repeated=True))
        assert now(client, table) == [(1, "after")]


async def test_a_truncate_deletes_what_is_older_and_nothing_else(
    open_writer: OpenWriter, client: Client, create_table: CreateTable
) -> None:
    table = create_table(COLUMNS, ENGINE)
    writer = await open_writer(table, **CHANGES)
    await flush(writer, customers(("c", 1, "a"), ("c", 2, "b")))
    rows = customers(("c", 3, "c"), ("t", 0, None), ("c", 2, "new"), first=2)
    for repeated in (False, True):
        await flush(writer, rows, write=announced(rows, repeated=repeated))
        assert now(client, table) == [(2, "new")]


async def test_a_range_that_the_server_forgot_is_written_again(
    proxy: Proxy, open_writer: OpenWriter, client: Client, create_table: CreateTable
) -> None:
    """The server dies after it has stored the token: it knows the token and has no rows."""
    table = create_table(COLUMNS, ENGINE)
    writer = await open_writer(table, url=proxy.url, **CHANGES)
    rows = customers(("c", 1, "a"))
    proxy.faults = ["forget"]
    assert isinstance(await flush(writer, rows, write=announced(rows)), Retry)
    other = await open_writer(table, url=proxy.url, **CHANGES)
    await flush(other, rows, write=announced(rows, repeated=True))
    assert now(client, table) == [(1, "a")]


async def test_a_value_that_the_table_needs_is_refused_in_an_upsert_alone(
    open_writer: OpenWriter, client: Client, create_table: CreateTable
) -> None:
    table = create_table(COLUMNS + ", more Int32", ENGINE)
    writer = await open_writer(table, **CHANGES)
    result = await flush(writer, customers(("c", 1, "a"), ("d", 2, None)))
    assert reasons(result) == ["column more (Int32) cannot be null"]
    assert now(client, table) == []


@pytest.mark.parametrize(
    ("columns", "engine", "reason"),
    [
        (COLUMNS, "MergeTree ORDER BY id", "cannot take changes"),
        (COLUMNS, "ReplacingMergeTree(_version) ORDER BY id", "cannot take changes"),
        (COLUMNS.replace("UInt256", "UInt64"), ENGINE, "cannot take changes"),
        (COLUMNS, ENGINE.replace("BY id", "BY (id, name)"), "ordered by id, name"),
    ],
)
async def test_a_table_that_would_not_replace_rows_is_refused_at_start(
    open_writer: OpenWriter, create_table: CreateTable, columns: str, engine: str, reason: str
) -> None:
    with pytest.raises(StrategyError, match=reason):
        await open_writer(create_table(columns, engine), **CHANGES)


def test_arguments_that_do_not_fit_changes_are_refused() -> None:
    with pytest.raises(StrategyError, match="remove engine="):
        ClickHouseWriter("t", engine="MergeTree", **CHANGES)
    with pytest.raises(StrategyError, match="order_by must have the columns of key"):
        ClickHouseWriter("t", order_by=["id", "name"], **CHANGES)
    assert ClickHouseWriter("t", cluster="c", **CHANGES).layout.engine == (
        "ReplicatedReplacingMergeTree(_version, _is_deleted)"
    )


@pytest.mark.parametrize("seed", range(10))
async def test_changes_in_any_order_and_any_partition_end_as_the_source(
    open_writer: OpenWriter, client: Client, create_table: CreateTable, seed: int
) -> None:
    chance = random.Random(seed)
    table = create_table(COLUMNS, ENGINE)
    writer = await open_writer(table, **CHANGES)
    history = History(1)
    ranges = []
    offsets = [0, 0, 0]
    for _ in range(20):
        kind, partition = chance.choice(["put", "put", "delete"]), chance.randrange(3)
        history.apply((kind, chance.randrange(4), chance.choice("abc")))
        if not history.topic[0]:
            continue
        value = history.topic[0][0]
        history.topic[0].clear()
        ranges.append(rows_of([value], offsets[partition], partition))
        offsets[partition] += 1
    chance.shuffle(ranges)
    for rows in ranges:
        await flush(writer, rows, write=announced(rows))
    assert now(client, table) == sorted(history.table.items())


async def test_rows_without_position_and_offset_stop_the_worker(
    open_writer: OpenWriter, create_table: CreateTable
) -> None:
    writer = await open_writer(create_table(COLUMNS, ENGINE), **CHANGES)
    rows = customers(("c", 1, "a"))
    made = replace(rows, table=rows.table.drop_columns(["position"]), offsets=None)
    with pytest.raises(StrategyError, match="neither a position nor an offset"):
        await flush(writer, made)


async def test_the_view_of_the_guide_has_the_rows_of_the_source(
    open_writer: OpenWriter, client: Client
) -> None:
    page = Path(__file__).parents[4] / "docs" / "changes.md"
    view = page.read_text(encoding="utf-8").partition("```sql\n")[2].partition("```")[0]
    client.command("DROP TABLE IF EXISTS customers")
    client.command("DROP VIEW IF EXISTS customers_now")
    writer = await open_writer("customers", create=customers().table.schema, **CHANGES)
    await flush(writer, customers(("c", 1, "a"), ("c", 2, "b"), ("u", 2, "c"), ("d", 1, None)))
    client.command(view)
    rows = client.query("SELECT * FROM customers_now").result_rows
    assert [tuple(row) for row in rows] == [(2, "c", None)]
    client.command("DROP VIEW customers_now")
    client.command("DROP TABLE customers")
