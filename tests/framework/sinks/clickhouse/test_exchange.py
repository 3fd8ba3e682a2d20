"""Tables that are exchanged while their writers run: every INSERT gets into its group's own table."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kmr.delivery.announcement import Announcement
from kmr.errors import StrategyError
from kmr.reducers.sink import Write
from kmr.sinks.clickhouse.exchange import ClickHouseExchange
from kmr.sinks.clickhouse.writer import ClickHouseWriter
from kmr.sinks.exchanging import VersionGroups
from kmr.sinks.offset_tables import NotCounted, offset_table
from tests.framework.flushes import Flushed
from tests.framework.sinks.clickhouse.writing import COUNTED, counted, flush
from tests.framework.sinks.conftest import Proxy, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from clickhouse_connect.driver.client import Client

    from kmr.reducers.reducer import Context, Retry
    from tests.framework.sinks.conftest import CreateTable

GROUPS = VersionGroups(("web2", "web2.backfill"), ("web", "web.backfill"))


class Two:
    """The tables of two versions, and their writers, as two workers have them."""

    def __init__(
        self, url: str, client: Client, context: Context, create_table: CreateTable, columns: str
    ) -> None:
        self.url, self.client, self.context = url, client, context
        self.old, self.new = create_table(columns), create_table(columns)
        self.opened: list[ClickHouseWriter] = []

    async def open(self, table: str, group: str, **options: Any) -> ClickHouseWriter:
        writer = copy.deepcopy(ClickHouseWriter(table, url=self.url, **options))
        self.opened.append(writer)
        await writer.open(replace(self.context, group=group))
        return writer

    def exchange(self, **options: Any) -> ClickHouseExchange:
        return ClickHouseExchange(
            ClickHouseWriter(self.new, url=self.url, **options), self.old, GROUPS
        )

    def found(self, table: str) -> list[int]:
        rows = self.client.query(f"SELECT offset FROM {table} ORDER BY offset").result_rows
        return [int(row[0]) for row in rows]

    async def write(
        self, writer: ClickHouseWriter, group: str, first: int, count: int, *, again: bool = False
    ) -> Flushed | Retry:
        """Write an announced range, as exactly once does; `again`: it may have been written before."""
        last = first + count - 1
        announcement = Announcement(first, last, f"{group}:topic:0:{first}-{last}", "w")
        write = Write(announcement, repeated=again)
        for _ in range(3):
            done = await flush(writer, counted(first, count), write=write)
            if isinstance(done, Flushed):
                break  # else it counted while the tables were exchanged
        return done


@pytest.fixture
async def two(
    clickhouse_url: str, client: Client, context: Context, create_table: CreateTable
) -> AsyncIterator[Two]:
    two = Two(clickhouse_url, client, context, create_table, COUNTED)
    yield two
    for writer in two.opened:
        await writer.close()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
async def test_an_exchange_that_ends_after_any_step_leaves_every_writer_its_own_table(
    two: Two, steps: int
) -> None:
    """A process that is killed after so many statements; then another one runs all of them."""
    old, new = await two.open(two.old, "web"), await two.open(two.new, "web2")
    for writer, group in ((old, "web"), (new, "web2")):
        await two.write(writer, group, 0, 10 if group == "web" else 8)
    statements = await two.exchange().statements()
    assert len(statements) == 3
    for statement in statements[:steps]:
        two.client.command(statement)
    is_exchanged = steps == 3
    tables = (
        {"web": two.new, "web2": two.old} if is_exchanged else {"web": two.old, "web2": two.new}
    )
    assert [len(two.found(tables[group])) for group in ("web", "web2")] == [10, 8]
    for writer, group, first in ((old, "web", 10), (new, "web2", 8)):
        assert await two.write(writer, group, first, 5) == Flushed()
    assert two.found(tables["web"]) == list(range(15))
    assert two.found(tables["web2"]) == list(range(13))
    facts = await two.exchange().look()
    assert [each.name for each in facts] == [two.old if is_exchanged else two.new, two.old]
    if not is_exchanged:
        await two.exchange().run()
    for writer, group, first in ((old, "web", 15), (new, "web2", 13)):
        assert await two.write(writer, group, first, 5) == Flushed()
    assert two.found(two.new) == list(range(20))
    assert two.found(two.old) == list(range(18))


async def test_a_writer_that_was_opened_before_does_not_count_the_other_groups_rows_as_its_own(
    two: Two,
) -> None:
    """Its range may be written: the table of its name has rows of the same offsets, of the other version."""
    old, new = await two.open(two.old, "web"), await two.open(two.new, "web2")
    await two.write(old, "web", 0, 20)
    await two.write(new, "web2", 0, 10)
    await two.exchange().run()
    assert await two.write(new, "web2", 10, 10, again=True) == Flushed()
    assert two.found(two.old) == list(range(20))
    assert two.found(two.new) == list(range(20))


async def test_a_late_insert_of_the_old_version_is_refused(two: Two) -> None:
    await two.exchange().run()
    late = f"INSERT INTO {two.old} SETTINGS insert_deduplication_token = 'web:topic:0:0-9' VALUES"
    other = late.replace("'web:", "'web3:")
    digest = late.replace("topic:0:0-9", "f" * 64 + "/0-5")
    joined = late.replace("topic:0:0-9", "1a2b")
    history = late.replace("'web:", "'web.backfill:")
    for statement in (late, digest, joined, history):
        with pytest.raises(Exception, match="is violated"):
            two.client.command(f"{statement} ('topic', 0, 1, 0)")
    two.client.command(f"{other} ('topic', 0, 1, 0)")
    two.client.command(f"INSERT INTO {two.old} VALUES ('topic', 0, 2, 0)")  # by hand
    assert two.found(two.old) == [1, 2]


@pytest.mark.parametrize("group", ["web", "web2"])
async def test_a_worker_that_starts_with_the_name_from_before_finds_its_table(
    two: Two, group: str
) -> None:
    await two.exchange().run()
    before, now = (two.old, two.new) if group == "web" else (two.new, two.old)
    writer = await two.open(before, group)
    assert str(writer) == f"default.{now}"
    assert await two.write(writer, group, 0, 5) == Flushed()
    assert (two.found(now), two.found(before)) == (list(range(5)), [])
    with pytest.raises(NotCounted, match=f"kmr cutover has exchanged {before}"):
        offset_table(ClickHouseWriter(before, url=two.url), ["topic"], group)
    assert offset_table(ClickHouseWriter(now, url=two.url), ["topic"], group).has_topic


async def test_a_worker_that_starts_with_the_new_name_stays_there(two: Two) -> None:
    await two.exchange().run()
    writer = await two.open(two.old, "web2")
    assert str(writer) == f"default.{two.old}"


async def test_no_table_is_created_in_place_of_one_that_was_exchanged(two: Two) -> None:
    """The user has dropped the old table, and the strategy has the name from before."""
    await two.exchange().run()
    two.client.command(f"DROP TABLE {two.new}")
    writer = await two.open(two.new, "web2", create=True)
    assert str(writer) == f"default.{two.old}"
    with pytest.raises(StrategyError, match=r"refuses rows of group web: .* dropped"):
        await two.open(two.old, "web")


async def test_an_exchange_is_undone_by_one_of_the_old_version(two: Two) -> None:
    old, new = await two.open(two.old, "web"), await two.open(two.new, "web2")
    await two.exchange().run()
    back = ClickHouseExchange(
        ClickHouseWriter(two.old, url=two.url), two.old, VersionGroups(GROUPS.old, GROUPS.new)
    )
    assert [each.name for each in await back.look()] == [two.new, two.old]
    await back.run()
    for writer, group in ((old, "web"), (new, "web2")):
        assert await two.write(writer, group, 0, 5 if group == "web" else 6) == Flushed()
    assert (len(two.found(two.old)), len(two.found(two.new))) == (5, 6)
    assert [each.name for each in await back.look()] == [two.old, two.old]
    await two.exchange().run()
    for writer, group in ((old, "web"), (new, "web2")):
        assert await two.write(writer, group, 10, 5) == Flushed()
    assert (len(two.found(two.old)), len(two.found(two.new))) == (11, 10)


async def test_writers_of_a_version_before_the_last_one_are_refused_too(
    two: Two, create_table: CreateTable
) -> None:
    first = await two.open(two.old, "web")
    await two.exchange().run()
    third = create_table(COUNTED)
    groups = VersionGroups(("web3",), GROUPS.new)
    await ClickHouseExchange(ClickHouseWriter(third, url=two.url), two.old, groups).run()
    assert await two.write(first, "web", 0, 5) == Flushed()
    assert two.found(two.old) == two.found(third) == []
    assert two.found(two.new) == list(range(5))


async def test_at_least_once_writes_into_its_own_table_too(two: Two) -> None:
    new = await two.open(two.new, "web2", delivery="at-least-once")
    await two.exchange().run()
    assert await flush(new, counted(0, 10)) == Flushed()
    assert (two.found(two.old), two.found(two.new)) == (list(range(10)), [])


def in_memory(two: Two) -> str:
    two.client.command(f"CREATE TABLE IF NOT EXISTS {two.old}_m AS {two.old} ENGINE = Memory")
    return f"{two.old}_m"


def with_view(two: Two) -> str:
    two.client.command(
        f"CREATE MATERIALIZED VIEW {two.old}_v ENGINE = MergeTree ORDER BY n AS SELECT n FROM {two.old}"
    )
    return two.old


REFUSALS: dict[str, Callable[[Two], str]] = {
    "there is no table default.absent": lambda two: "absent",
    "are in different databases": lambda two: f"other.{two.old}",
    "writes to .* itself": lambda two: two.new,
    "is a Memory": in_memory,
    "feeds the materialized view": with_view,
    "a table is named": lambda two: "a'b",
}


@pytest.mark.parametrize("reason", REFUSALS)
async def test_what_cannot_be_exchanged_is_refused(two: Two, reason: str) -> None:
    name = REFUSALS[reason](two)
    try:
        with pytest.raises(StrategyError, match=reason):
            await ClickHouseExchange(ClickHouseWriter(two.new, url=two.url), name, GROUPS).run()
    finally:
        for suffix in "mv":
            two.client.command(f"DROP TABLE IF EXISTS {two.old}_{suffix} SYNC")
    assert "CONSTRAINT" not in str(two.client.command(f"SHOW CREATE TABLE {two.new}"))


@pytest.mark.parametrize(
    ("engine", "reason"),
    [("Distributed", "tables of several servers"), ("ReplicatedMergeTree", "ON CLUSTER")],
)
async def test_tables_of_a_cluster_are_refused(two: Two, engine: str, reason: str) -> None:
    """The embedded engine has no cluster: a server in front of it says what the table is."""

    class Cluster(Proxy):
        def forwarded(self, path: str, body: bytes) -> tuple[str, bytes]:
            named = b"SELECT name, '" + engine.encode() + b"' AS engine,"
            return path, body.replace(b"SELECT name, engine,", named)

    async with serving(Cluster(two.url)) as cluster:
        writer = ClickHouseWriter(two.new, url=cluster.url)
        with pytest.raises(StrategyError, match=f"is {engine}: .*{reason}"):
            await ClickHouseExchange(writer, two.old, GROUPS).look()


async def test_changes_are_refused(two: Two) -> None:
    with pytest.raises(StrategyError, match="Stop both versions, run EXCHANGE TABLES"):
        two.exchange(changes=True, key=["n"])


async def test_a_database_without_an_atomic_exchange_is_refused(two: Two) -> None:
    two.client.command("CREATE DATABASE IF NOT EXISTS plain ENGINE = Memory")
    for name in ("a", "b"):
        two.client.command(f"CREATE TABLE plain.{name} (n Int8) ENGINE = MergeTree ORDER BY n")
    try:
        with pytest.raises(StrategyError, match="plain has the engine Memory; EXCHANGE TABLES"):
            await ClickHouseExchange(
                ClickHouseWriter("plain.a", url=two.url), "plain.b", GROUPS
            ).run()
    finally:
        two.client.command("DROP DATABASE plain")
