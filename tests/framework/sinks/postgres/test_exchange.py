"""Tables of PostgreSQL that are exchanged while their writers run."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import psycopg
import pytest

from kmr.errors import SinkError, StrategyError
from kmr.sinks import PostgresWriter
from kmr.sinks.exchanging import VersionGroups
from kmr.sinks.offset_tables import NotCounted, offset_table
from kmr.sinks.postgres import exchange as module
from kmr.sinks.postgres.exchange import PostgresExchange
from tests.framework.flushes import Flushed
from tests.framework.sinks.postgres.writing import OFFSETS, WRITERS, flush, query, rows

if TYPE_CHECKING:
    from kmr.reducers.reducer import Context, Retry

GROUPS = VersionGroups(("web2", "web2.backfill"), ("web", "web.backfill"))
pytestmark = pytest.mark.usefixtures("closed_at_the_end")


class Two:
    """The tables of two versions, and their writers, as two workers have them."""

    def __init__(self, url: str, context: Context) -> None:
        self.url, self.context = url, context

    async def open(self, table: str, group: str) -> PostgresWriter:
        writer = PostgresWriter(table, url=self.url, create=OFFSETS)
        await writer.open(replace(self.context, group=group))
        WRITERS.append(writer)
        return writer

    def exchange(self, new: str = "hits2", old: str = "hits") -> PostgresExchange:
        return PostgresExchange(PostgresWriter(new, url=self.url), old, GROUPS)

    def found(self, table: str) -> list[int]:
        return query(self.url, f'SELECT "offset" FROM {table} ORDER BY 1')

    def run(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())


async def write(
    writer: PostgresWriter, first: int, last: int, *, again: bool = False
) -> Flushed | Retry:
    for _ in range(3):
        done = await flush(writer, rows(first, last), replayed=again)
        if isinstance(done, Flushed):
            break  # else its table was exchanged
    return done


@pytest.fixture
async def two(postgres_url: str, context: Context) -> Two:
    two = Two(postgres_url, context)
    for table, group in (("hits", "web"), ("hits2", "web2")):
        await two.open(table, group)
    return two


@pytest.mark.parametrize("step", range(8))
async def test_an_exchange_that_ends_before_its_commit_changes_nothing(
    two: Two, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The connection is lost before a statement, or, with the last number, nothing happens."""
    old, new = await two.open("hits", "web"), await two.open("hits2", "web2")
    await write(old, 0, 9)
    await write(new, 0, 7)
    exchange = two.exchange()
    statements = await exchange.statements()
    assert len(statements) == 8
    assert any("RENAME TO" in each for each in statements)
    broken = [*statements[:step], "SELECT pg_terminate_backend(pg_backend_pid())"]
    with monkeypatch.context() as patch:
        patch.setattr(module.PostgresExchange, "_statements", lambda *_: broken)
        with pytest.raises(SinkError, match="the tables were not exchanged"):
            await exchange.run()
    await write(old, 10, 14)
    await write(new, 8, 12)
    assert two.found("hits") == list(range(15))
    assert two.found("hits2") == list(range(13))
    await two.exchange().run()
    await write(old, 15, 19)
    await write(new, 13, 17)
    assert two.found("hits2") == list(range(20))
    assert two.found("hits") == list(range(18))


async def test_a_range_that_was_written_before_is_found_and_one_that_was_not_is_written(
    two: Two,
) -> None:
    old, new = await two.open("hits", "web"), await two.open("hits2", "web2")
    await write(old, 0, 19)
    await write(new, 0, 9)
    await two.exchange().run()
    assert await write(new, 0, 9, again=True) == Flushed()
    assert await write(new, 10, 19, again=True) == Flushed()
    assert await write(old, 0, 19, again=True) == Flushed()
    assert two.found("hits") == two.found("hits2") == list(range(20))


@pytest.mark.parametrize("group", ["web", "web2"])
async def test_a_worker_that_starts_with_the_name_from_before_finds_its_table(
    two: Two, group: str
) -> None:
    await two.exchange().run()
    before, now = ("hits", "hits2") if group == "web" else ("hits2", "hits")
    writer = await two.open(before, group)
    assert await write(writer, 0, 4) == Flushed()
    assert (two.found(now), two.found(before)) == (list(range(5)), [])
    with pytest.raises(NotCounted, match=f"kmr cutover has exchanged {before}"):
        offset_table(PostgresWriter(before, url=two.url), ["t"], group)
    stays = await two.open(now, group)
    assert await write(stays, 5, 9) == Flushed()
    assert (two.found(now), two.found(before)) == (list(range(10)), [])


async def test_an_exchange_is_undone_by_one_of_the_old_version(two: Two) -> None:
    old, new = await two.open("hits", "web"), await two.open("hits2", "web2")
    await two.exchange().run()
    assert [each.name for each in await two.exchange().look()] == ["hits", "hits"]
    back = VersionGroups(GROUPS.old, GROUPS.new)
    await PostgresExchange(PostgresWriter("hits", url=two.url), "hits", back).run()
    assert await write(old, 0, 4) == Flushed()
    assert await write(new, 0, 5) == Flushed()
    assert (len(two.found("hits")), len(two.found("hits2"))) == (5, 6)
    await two.exchange().run()
    assert await write(old, 5, 9) == Flushed()
    assert await write(new, 6, 9) == Flushed()
    assert (len(two.found("hits")), len(two.found("hits2"))) == (10, 10)


async def test_a_write_that_is_under_way_is_waited_for(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction has entered its range; the exchange begins; then it copies its rows."""
    new = await two.open("hits2", "web2")
    copying, go_on = anyio.Event(), threading.Event()
    original = new._insert

    async def slow(*arguments: Any) -> dict[int, str]:
        copying.set()
        await anyio.to_thread.run_sync(go_on.wait)
        return await original(*arguments)

    monkeypatch.setattr(new, "_insert", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write, new, 0, 9)
        await copying.wait()
        tasks.start_soon(two.exchange().run)
        await anyio.sleep(0.5)
        go_on.set()
    assert (two.found("hits"), two.found("hits2")) == (list(range(10)), [])


async def test_a_lock_of_a_reader_is_not_waited_for_without_end(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.3)
    with psycopg.connect(two.url) as reader:
        reader.execute("SELECT count(*) FROM hits")
        with pytest.raises(SinkError, match="holds a lock on the tables"):
            await two.exchange().run()
    await two.exchange().run()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DROP TABLE hits", "there is no table"),
        ("CREATE VIEW seen AS SELECT * FROM hits", "the view seen belongs to the table"),
        (
            """ALTER TABLE hits ADD UNIQUE ("offset");
            CREATE TABLE of_hits (o bigint REFERENCES hits ("offset"))""",
            "the foreign key of of_hits belongs",
        ),
        ("GRANT SELECT ON hits TO pg_monitor", r"run: GRANT SELECT ON .*hits2.* TO pg_monitor"),
        ("DROP TABLE hits; CREATE VIEW hits AS SELECT 1 AS one", "hits is not a table"),
    ],
)
async def test_what_cannot_be_exchanged_is_refused(two: Two, statement: str, reason: str) -> None:
    two.run(statement)
    with pytest.raises(StrategyError, match=reason):
        await two.exchange().run()


async def test_names_that_cannot_be_exchanged_are_refused(two: Two) -> None:
    with pytest.raises(StrategyError, match=r"writes to .* itself"):
        await two.exchange(old="hits2").look()
    two.run("CREATE SCHEMA IF NOT EXISTS beside_us; CREATE TABLE beside_us.hits (o int)")
    try:
        with pytest.raises(StrategyError, match="are in different schemas"):
            await two.exchange(old="beside_us.hits").look()
    finally:
        two.run("DROP SCHEMA beside_us CASCADE")
