"""`kmr cutover`: workers of two versions run during the exchange, and each table has its own rows."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import psycopg
import pytest

from kmr.errors import StrategyError
from kmr.history.cutover import CutoverStanding, CutoverWait, exchange_of
from kmr.record import TopicPartition
from kmr.sinks import ClickHouseWriter, StreamWriter
from kmr.strategy import Strategy
from tests.framework.history.conftest import KMR, QUICK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from anyio.abc import Process

    from kmr.broker import Broker
    from tests.framework.conftest import CreateTopic, Produce

PARTITIONS = 3
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)

STRATEGIES = """
import pyarrow as pa

from kmr import Strategy
from kmr.mapping.functions import map_record
from kmr.sinks import {writer}

COLUMNS = pa.schema([pa.field("version", pa.int64()), pa.field("number", pa.int64())])


@map_record(schema=COLUMNS)
def first(record):
    return {{"version": 1, "number": int(record.value)}}


@map_record(schema=COLUMNS)
def second(record):
    return {{"version": 2, "number": int(record.value)}}


def into(table):
    return {writer}(table, create=True, max_rows=400, max_age=0.2)


old = Strategy(map=first, reduce=into("hits"))
new = Strategy(map=second, reduce=into("hits2"))
renamed = Strategy(map=second, reduce=into("hits"))
"""


@dataclass
class Site:
    """A topic that grows, and the commands that read it into two tables."""

    broker: Broker
    folder: Path
    environment: dict[str, str]
    produce: Produce
    sent: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))

    async def send(self, count: int) -> None:
        for partition, first in self.sent.items():
            values = [str(n).encode() for n in range(first, first + count)]
            self.sent[partition] = first + count  # before a worker can have written them
            with anyio.CancelScope(shield=True):
                await self.produce("t", values, partition)

    async def grow(self) -> None:
        """Send records until cancelled."""
        while True:
            await self.send(20)
            await anyio.sleep(0.3)

    def command(self, *words: str) -> list[str]:
        return [str(KMR), *words, "--bootstrap-servers", self.broker.bootstrap_servers]

    @asynccontextmanager
    async def running(self, strategy: str, group: str) -> AsyncIterator[Process]:
        """Run a worker until the end of the block; it drains then."""
        words = ("run", f"two:{strategy}", "--topic", "t", "--group", group)
        path = self.folder / f"{strategy}.log"
        with path.open("ab") as log:
            begun = path.read_text().count("assigned")
            async with await anyio.open_process(
                self.command(*words, *QUICK),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            ) as process:
                try:
                    with anyio.fail_after(180):
                        while path.read_text().count("assigned") == begun:  # noqa: ASYNC110  a file
                            await anyio.sleep(0.2)
                    yield process
                    assert process.returncode in (None, -signal.SIGKILL), path.read_text()
                finally:
                    if process.returncode is None:
                        process.send_signal(signal.SIGTERM)
                        with anyio.move_on_after(120, shield=True):
                            assert await process.wait() == 0

    async def run(self, *words: str) -> tuple[int, str]:
        """Run a command to its end; return its exit code, and what it printed."""
        with anyio.fail_after(300):
            done = await anyio.run_process(
                self.command(*words), cwd=self.folder, env=self.environment, check=False
            )
        return done.returncode, done.stdout.decode() + done.stderr.decode()

    async def cutover(
        self, *flags: str, strategy: str = "new", group: str = "web2"
    ) -> tuple[int, str]:
        other = "web" if group == "web2" else "web2"
        which = (f"two:{strategy}", "--group", group, "--old-group", other, "--replaces", "hits")
        return await self.run("cutover", *which, *flags)

    async def backfill(self) -> None:
        code, out = await self.run("backfill", "two:new", "--topic", "t", "--group", "web2")
        assert code == 0, out

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def found(self, table: str) -> list[tuple[int, int, int]]:
        """Return version, partition and offset of each row."""
        ordered = f'SELECT version, "partition", "offset" FROM {table} ORDER BY 1, 2, 3'
        return [(int(a), int(b), int(c)) for a, b, c in self.rows(ordered)]

    def everything(self, version: int) -> list[tuple[int, int, int]]:
        return [(version, p, n) for p, end in self.sent.items() for n in range(end)]

    def count(self, table: str) -> int:
        rows = self.rows(f"SELECT count(*) FROM {table}")
        return int(rows[0][0]) if rows else 0

    async def until_more(self, *tables: str) -> None:
        """Return when each table has more rows than now."""
        for table in tables:
            before = self.count(table)
            with anyio.fail_after(180):
                while self.count(table) <= before:  # noqa: ASYNC110  polls the table
                    await anyio.sleep(0.2)

    async def until_there(self, version: int, table: str) -> None:
        with anyio.fail_after(180):
            while self.count(table) < sum(self.sent.values()):  # noqa: ASYNC110  polls the table
                await anyio.sleep(0.2)
        assert self.found(table) == self.everything(version)


class ClickHouseSite(Site):
    def rows(self, query: str) -> list[tuple[Any, ...]]:
        import clickhouse_connect

        url = self.environment["KMR_CLICKHOUSE_URL"]
        with clickhouse_connect.get_client(dsn=url, autogenerate_session_id=False) as client:
            try:
                return [tuple(row) for row in client.query(query).result_rows]
            except clickhouse_connect.driver.exceptions.DatabaseError as error:
                assert "UNKNOWN_TABLE" in str(error)  # noqa: PT017  the worker has not made it yet
                return []


class PostgresSite(Site):
    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.environment["KMR_POSTGRES_URL"], autocommit=True) as connection:
            try:
                return connection.execute(query.encode()).fetchall()
            except psycopg.errors.UndefinedTable:  # the worker has not made it yet
                return []


@pytest.fixture(params=["clickhouse", "postgres"])
async def site(
    request: pytest.FixtureRequest,
    broker: Broker,
    tmp_path: Path,
    create_topic: CreateTopic,
    produce: Produce,
) -> AsyncIterator[Site]:
    await create_topic("t", PARTITIONS)
    writer = "ClickHouseWriter" if request.param == "clickhouse" else "PostgresWriter"
    (tmp_path / "two.py").write_text(STRATEGIES.format(writer=writer))
    made = ClickHouseSite if request.param == "clickhouse" else PostgresSite
    url = request.getfixturevalue(f"{request.param}_url")
    variable = f"KMR_{request.param.upper()}_URL"
    environment = {**os.environ, variable: url, "COLUMNS": "200"}
    site = made(broker, tmp_path, environment, produce)
    yield site
    if request.param == "clickhouse":
        import clickhouse_connect

        with clickhouse_connect.get_client(dsn=url, autogenerate_session_id=False) as client:
            for table in ("hits", "hits2"):
                client.command(f"DROP TABLE IF EXISTS {table} SYNC")


async def test_workers_of_both_versions_run_through_the_exchange_and_each_table_has_each_record_once(
    site: Site,
) -> None:
    """The topic grows all the time; the new version is killed after the exchange, and both restart."""
    await site.send(1500)
    async with anyio.create_task_group() as tasks, site.running("old", "web"):
        await site.until_there(1, "hits")
        tasks.start_soon(site.grow)
        await site.backfill()
        async with site.running("new", "web2") as new:
            code, out = await site.cutover("--await")
            assert code == 0, out
            assert "exchanged: hits has the rows of group web2, " in out
            assert {version for version, *_ in site.found("hits")} == {2}
            await site.until_more("hits", "hits2")
            new.kill()
            await new.wait()
            async with site.running("new", "web2"):
                await site.until_more("hits")
            assert "kmr cutover has exchanged" in (site.folder / "new.log").read_text()
            async with site.running("renamed", "web2"), site.running("old", "web"):
                await site.until_more("hits", "hits2")
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await site.until_there(2, "hits")
                    await site.until_there(1, "hits2")


@pytest.mark.parametrize("site", ["clickhouse"], indirect=True)
async def test_a_dry_run_prints_the_plan_and_a_refusal_says_what_to_wait_for(site: Site) -> None:
    await site.send(600)
    code, out = await site.cutover()
    assert code == 1
    assert "there is no table" in out
    async with site.running("old", "web"):
        await site.until_there(1, "hits")
    code, out = await site.run(
        "backfill", "two:new", "--topic", "t", "--group", "web2", "--until", "0:600,1:600,2:0"
    )
    assert code == 0, out
    code, out = await site.cutover("--dry-run")
    assert code == 0, out
    assert "group web2 is 600 offsets behind group web in 1 partition" in out
    assert "group web2 has no members" in out
    assert "EXCHANGE TABLES" in out
    assert out.endswith("dry run: nothing was changed\n")
    code, out = await site.cutover()
    assert code == 1
    assert "group web2 is 600 offsets behind (t-2: 600)" in out
    assert {version for version, *_ in site.found("hits")} == {1}
    async with site.running("new", "web2"):
        code, out = await site.cutover("--await")
        assert code == 0, out
    assert site.found("hits") == site.everything(2)
    assert site.found("hits2") == site.everything(1)
    code, out = await site.cutover()
    assert (code, out) == (0, "hits is the table of group web2 already: nothing to do\n")
    code, out = await site.cutover(strategy="old", group="web")
    assert code == 0, out
    assert site.found("hits") == site.everything(1)


@pytest.mark.parametrize("site", ["clickhouse"], indirect=True)
async def test_groups_that_do_not_fit_are_refused(site: Site, create_topic: CreateTopic) -> None:
    await create_topic("u")
    await site.produce("u", [b"1"], 0)
    await site.send(10)
    async with site.running("old", "web"), site.running("new", "web2"):
        await site.until_there(1, "hits")
        await site.until_there(2, "hits2")
    words = ("run", "two:old", "--group", "web", "--topic", "u", "--until-caught-up")
    code, out = await site.run(*words)
    assert code == 0, out
    code, out = await site.cutover("--await")
    assert code == 1
    assert "group web2 does not read u, which group web reads" in out
    flags = ("--group", "web2", "--replaces", "hits")
    code, out = await site.run("cutover", "two:new", "--old-group", "nobody", *flags)
    assert code == 1
    assert "group nobody has no committed offsets" in out
    code, out = await site.run("cutover", "two:new", "--old-group", "web2", *flags)
    assert code == 1
    assert "each needs its own" in out


def standing(old: tuple[int, int], new: tuple[int, int], left: int = 0) -> CutoverStanding:
    before, now = (dict(zip((P0, P1), offsets, strict=True)) for offsets in (old, new))
    return CutoverStanding(before, now, left, has_history=True, members=1)


def test_the_new_version_needs_what_the_old_one_had_some_seconds_ago() -> None:
    wait = CutoverWait()
    assert not wait.is_over(standing((100, 100), (100, 90)), 0)
    assert not wait.is_over(standing((120, 120), (120, 99)), 5)
    assert wait.is_over(standing((140, 140), (130, 100)), 10)
    assert not wait.is_over(standing((160, 160), (130, 100)), 11)
    assert not wait.is_over(standing((160, 160), (160, 160), left=1), 20)
    assert wait.is_over(standing((160, 160), (160, 160)), 21)


def test_without_waiting_nothing_may_be_missing() -> None:
    standing((100, 100), (100, 120)).refuse("web2")
    with pytest.raises(StrategyError, match=r"web2 is 15 offsets behind \(t-1: 10\)"):
        standing((100, 100), (95, 90)).refuse("web2")
    with pytest.raises(StrategyError, match="backfill of group web2 has 7 offsets left"):
        standing((100, 100), (100, 100), left=7).refuse("web2")


def test_a_strategy_without_one_table_is_refused() -> None:
    branches = Strategy(map=_both, reduce={"a": ClickHouseWriter("a"), "b": ClickHouseWriter("b")})
    with pytest.raises(StrategyError, match=r"has 2 tables \(a, b\)"):
        exchange_of(branches, "hits", "web2", "web")
    with pytest.raises(StrategyError, match="StreamWriter has no table that can be exchanged"):
        exchange_of(Strategy(map=_both, reduce=StreamWriter(sys.stdout)), "hits", "web2", "web")


def _both(record: Any) -> Any:
    return record
