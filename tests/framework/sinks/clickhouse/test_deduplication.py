"""What tables remember of their inserts: the check at start, replicated tables, materialized views.

The embedded engine leaves replicated tables read-only, so they are not run: a server in front of it says
that a plain table is replicated, and behaves as ClickHouse's documentation says of these.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from kmr.delivery.announcement import Announcement
from kmr.errors import SinkError
from kmr.record import TopicPartition
from kmr.reducers.reducer import Context, Retry
from kmr.reducers.sink import Write
from kmr.sinks.clickhouse import deduplication
from kmr.sinks.clickhouse.deduplication import ENOUGH_SECONDS, InsertMemory, target_of
from kmr.sinks.clickhouse.writer import ClickHouseWriter
from tests.framework.sinks.conftest import Proxy, serving

from ...flushes import Flushed, outcome
from .writing import COUNTED, OFFSETS, OpenWriter, counted, flush, rows, written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from clickhouse_connect.driver.client import Client

    from kmr.record import Rows
    from tests.framework.sinks.conftest import CreateTable

TARGET = "`partition` UInt32, `offset` UInt64"


def test_a_table_of_another_engine_cannot_be_mended() -> None:
    assert InsertMemory("d", "t", "Memory", None).remedy is None
    for engine, behind in (("Distributed", "it distributes to"), ("Null", "its views fill")):
        assert behind in str(InsertMemory("d", "t", engine, None).advice())


async def test_a_small_deduplication_window_is_logged_with_the_statement_that_enlarges_it(
    clickhouse_url: str, create_table: CreateTable, open_writer: OpenWriter, context: Context
) -> None:
    with capture_logs() as logs:
        await open_writer(create_table(OFFSETS))
        assert logs == []
        small = create_table(OFFSETS, window=5)
        writer = ClickHouseWriter(small, url=clickhouse_url)
        for each in (copy.deepcopy(writer), copy.deepcopy(writer)):
            await each.open(context)
            await each.close()
        await open_writer(create_table(OFFSETS, engine="Memory"))
    advice = [entry["advice"] for entry in logs]
    assert len(advice) == 2, "the copies of a stage warn once"
    assert f"ALTER TABLE `default`.`{small}` MODIFY SETTING" in advice[0]
    assert "non_replicated_deduplication_window = 10000" in advice[0]
    assert "Memory" in advice[1]


@dataclass
class Replica(Proxy):
    """One replica of a table, as its documentation describes it, in front of a plain table.

    Attributes:
        kind: `Replicated`, or `Shared` as in ClickHouse Cloud.
        forgets: it has forgotten all tokens.
        unfetched: a statement that writes rows which another replica has accepted; `SYSTEM SYNC REPLICA`
            waits for them.
        statements: the statements about consistency, in order.
    """

    kind: str = "Replicated"
    forgets: bool = False
    unfetched: str = ""
    client: Client | None = None
    statements: list[str] = field(default_factory=list)

    def forwarded(self, path: str, body: bytes) -> tuple[str, bytes]:
        text = body.decode(errors="replace")
        if "SYSTEM SYNC REPLICA" in text:
            self.statements.append(" ".join(text.split()))
            if self.unfetched and self.client is not None:
                self.client.command(self.unfetched)
            return path, b"SELECT 1"
        if "select_sequential_consistency" in text:
            self.statements.append("select_sequential_consistency = 1")
            return path, body.replace(b"SETTINGS select_sequential_consistency = 1", b"")
        if " FROM system.tables" in text and "MaterializedView" not in text:
            text = text.replace(
                "SELECT engine", f"SELECT concat('{self.kind}', t.engine) AS engine"
            )
            text = text.replace(
                "engine_full",
                "replaceAll(t.engine_full, 'non_replicated_', 'replicated_') AS engine_full",
            )
            return path, text.replace("FROM system.tables", "FROM system.tables AS t").encode()
        if self.forgets and "insert_deduplication_token=" in path:
            where, _, query = path.partition("?")
            parameters = {name: value[0] for name, value in parse_qs(query).items()}
            parameters["insert_deduplication_token"] += "/forgotten"
            return f"{where}?{urlencode(parameters)}", body
        return path, body


@pytest.fixture
async def replica(clickhouse_url: str, client: Client) -> AsyncIterator[Replica]:
    async with serving(Replica(clickhouse_url, client=client)) as server:
        assert isinstance(server, Replica)
        yield server


async def replay(writer: ClickHouseWriter, part: Rows, generation: int = 0) -> Flushed | Retry:
    """One round of calls for a range that another process announced, and may have written."""
    writer.reset()
    last = part.ranges[0].last
    announced = Announcement(0, last, f"g:topic:0:0-{last}", "dead", generation=generation)
    writer.add(part)
    return await outcome(writer, Write(announced, repeated=True))


async def test_a_range_that_a_replica_has_is_not_written_again_though_its_token_is_forgotten(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, replica: Replica
) -> None:
    table = create_table(COUNTED)
    writer = await open_writer(table, url=replica.url)
    await flush(writer, counted(0, 10))
    replica.forgets = True
    assert await replay(writer, counted(0, 10)) == Flushed()
    assert written(client, table) == list(range(10))
    assert replica.statements == [f"SYSTEM SYNC REPLICA `default`.`{table}` LIGHTWEIGHT"]


async def test_after_a_reset_old_rows_do_not_keep_a_range_from_being_written(
    client: Client, create_table: CreateTable, replica: Replica, context: Context
) -> None:
    table = create_table(OFFSETS)
    client.command(f"INSERT INTO {table} SELECT 0, number FROM numbers(10)")
    writer = copy.deepcopy(ClickHouseWriter(table, url=replica.url))
    await writer.open(context.with_sinks(generations={TopicPartition("topic", 0): 7}))
    assert await replay(writer, rows(0, 10), generation=7) == Flushed()
    await writer.close()
    assert written(client, table) == sorted([*range(10)] * 2)


async def test_a_range_that_only_another_replica_has_is_fetched_before_it_is_counted(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, replica: Replica
) -> None:
    table = create_table(COUNTED)
    writer = await open_writer(table, url=replica.url)
    replica.unfetched = f"INSERT INTO {table} SELECT 'topic', 0, number, 0 FROM numbers(10)"
    replica.forgets = True
    assert await replay(writer, counted(0, 10)) == Flushed()
    assert written(client, table) == list(range(10))


async def test_a_column_of_the_rows_that_is_named_as_a_coordinate_is_data_and_proves_nothing(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, replica: Replica
) -> None:
    table = create_table(COUNTED)
    writer = await open_writer(table, url=replica.url)
    replica.forgets = True

    def of_offset(offset: int) -> Rows:
        """One record whose row says that it is of offset 7."""
        made = pa.table({"topic": ["topic"], "partition": [0], "offset": [7], "n": [offset]})
        return replace(counted(offset, 1), table=made)

    with capture_logs() as logs:
        await flush(writer, of_offset(3))
    (warning,) = [log for log in logs if log["event"] == "a repeated range is not counted"]
    assert "columns offset, partition, topic of their own" in warning["reason"]
    assert await replay(writer, of_offset(7)) == Flushed()
    assert written(client, table, "n") == [3, 7]


async def test_a_count_without_the_topic_proves_nothing(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, replica: Replica
) -> None:
    table = create_table("`partition` UInt32, `offset` UInt64, `n` UInt8")
    writer = await open_writer(table, url=replica.url)
    replica.forgets = True
    client.command(f"INSERT INTO {table} SELECT 0, number, 1 FROM numbers(10)")  # another topic's
    with capture_logs() as logs:
        assert await replay(writer, counted(0, 10)) == Flushed()
    (warning,) = [log for log in logs if log["event"] == "a repeated range is not counted"]
    assert "ADD COLUMN topic LowCardinality(String)" in warning["reason"]
    assert written(client, table) == sorted([*range(10)] * 2)


async def test_a_range_that_no_replica_has_is_written_with_its_token(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, replica: Replica
) -> None:
    table = create_table(OFFSETS)
    writer = await open_writer(table, url=replica.url)
    assert await replay(writer, rows(0, 10)) == Flushed()
    assert replica.tokens == ["g:topic:0:0-9"]
    assert written(client, table) == list(range(10))


async def test_rows_that_do_not_fit_are_poison_also_where_the_others_are_there_already(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, replica: Replica
) -> None:
    table = create_table(COUNTED + ", `x` UInt8")
    writer = await open_writer(table, url=replica.url)
    part = counted(0, 3, x=[1, 300, 3])
    first = await flush(writer, part)
    replica.forgets = True
    assert await replay(writer, part) == first
    assert isinstance(first, Flushed)
    assert len(first.refusals) == 1
    assert written(client, table) == [0, 2]


async def test_in_clickhouse_cloud_the_count_itself_is_consistent(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, replica: Replica
) -> None:
    replica.kind = "Shared"
    table = create_table(COUNTED)
    writer = await open_writer(table, url=replica.url)
    await flush(writer, counted(0, 10))
    replica.forgets = True
    assert await replay(writer, counted(0, 10)) == Flushed()
    assert written(client, table) == list(range(10))
    assert replica.statements == ["select_sequential_consistency = 1"]


@pytest.mark.parametrize(("code", "outcome"), [(159, Retry), (497, SinkError)])
async def test_a_replica_that_cannot_be_synchronized_is_waited_for_or_named(
    client: Client,
    create_table: CreateTable,
    open_writer: OpenWriter,
    replica: Replica,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    outcome: type,
) -> None:
    table = create_table(COUNTED)
    custom = {"allow_custom_error_code_in_throwif": 1}
    writer = await open_writer(table, url=replica.url, settings=custom)

    def refuse(path: str, body: bytes) -> tuple[str, bytes]:
        if b"SYSTEM SYNC REPLICA" in body:
            return path, b"SELECT throwIf(1, 'no', toInt16(%d))" % code
        return path, body

    monkeypatch.setattr(replica, "forwarded", refuse)
    if outcome is Retry:
        result = await replay(writer, counted(0, 10))
        assert isinstance(result, Retry)
        assert not result.may_double
    else:
        with pytest.raises(SinkError, match="The server refused: SYSTEM SYNC REPLICA"):
            await replay(writer, counted(0, 10))
    assert replica.tokens == []
    assert written(client, table) == []


async def test_a_replicated_table_must_remember_inserts_long_enough_too(
    client: Client, create_table: CreateTable, replica: Replica, context: Context
) -> None:
    table = create_table(OFFSETS)
    remedy = f"MODIFY SETTING replicated_deduplication_window_seconds = {ENOUGH_SECONDS}"
    for prepare, warnings in ((False, 1), (True, 0)):
        writer = copy.deepcopy(ClickHouseWriter(table, url=replica.url))
        with capture_logs() as logs:
            await writer.open(context.with_sinks(prepare=prepare))
        await writer.close()
        advice = [log["advice"] for log in logs if log["log_level"] == "warning"]
        assert len(advice) == warnings
        assert all("the last 10000 inserts only, for 3600 s" in each for each in advice)
        assert all(remedy in each for each in advice)
    assert f"{ENOUGH_SECONDS}" in str(client.command(f"SHOW CREATE TABLE {table}"))


@pytest.mark.parametrize(
    ("inserts", "seconds", "settings"),
    [
        (10_000, 604_800, None),
        (10_000, None, None),  # a server that knows no age
        (100, 604_800, "replicated_deduplication_window = 10000"),
        (10_000, 3600, "replicated_deduplication_window_seconds = 604800"),
    ],
)
def test_the_remedy_has_each_window_that_is_too_small(
    inserts: int, seconds: int | None, settings: str | None
) -> None:
    memory = InsertMemory("d", "t", "ReplicatedMergeTree", inserts, seconds)
    expected = None if settings is None else f"ALTER TABLE `d`.`t` MODIFY SETTING {settings}"
    assert memory.remedy == expected
    assert (memory.advice() is None) == (expected is None)


def views_of(client: Client, create_table: CreateTable, *, window: int) -> tuple[str, str]:
    """A table with a materialized view; return both its name and that of the view's target."""
    table = create_table(OFFSETS)
    target = create_table(TARGET, window=window)
    client.command(f"DROP VIEW IF EXISTS {table}_view")
    client.command(f"CREATE MATERIALIZED VIEW {table}_view TO {target} AS SELECT * FROM {table}")
    return table, target


async def test_a_repeated_insert_doubles_nothing_in_the_target_of_a_materialized_view(
    client: Client, create_table: CreateTable, open_writer: OpenWriter, proxy: Proxy
) -> None:
    table, target = views_of(client, create_table, window=10_000)
    with capture_logs() as logs:
        writer = await open_writer(table, url=proxy.url)
    assert logs == []
    proxy.faults = ["lose"]
    assert isinstance(await flush(writer, rows(0, 10)), Retry)
    assert await outcome(writer) == Flushed()
    assert written(client, table) == written(client, target) == list(range(10))


async def test_a_view_whose_target_remembers_nothing_is_named_with_the_remedy(
    client: Client, create_table: CreateTable, context: Context, clickhouse_url: str
) -> None:
    table, target = views_of(client, create_table, window=0)
    for prepare, warnings in ((False, 1), (True, 0)):
        writer = copy.deepcopy(ClickHouseWriter(table, url=clickhouse_url))
        with capture_logs() as logs:
            await writer.open(context.with_sinks(prepare=prepare))
        await writer.close()
        advice = [log["advice"] for log in logs if log["log_level"] == "warning"]
        assert len(advice) == warnings
        for each in advice:
            assert f"the target of the view default.{table}_view" in each
            assert re.search(rf"ALTER TABLE `default`.`{target}` MODIFY SETTING non_repl", each)


@pytest.mark.parametrize("hidden", ["view", "target"])
async def test_a_view_or_a_target_that_the_user_must_not_see_is_named(
    client: Client,
    create_table: CreateTable,
    context: Context,
    clickhouse_url: str,
    monkeypatch: pytest.MonkeyPatch,
    hidden: str,
) -> None:
    """An embedded ClickHouse has no user that sees less, so what one would not see is left out here."""
    table, target = views_of(client, create_table, window=10_000)
    unseen = f"{table}_view" if hidden == "view" else target
    for name in ("_TABLE_SQL", "_VIEW_SQL"):
        monkeypatch.setattr(
            deduplication, name, f"{getattr(deduplication, name)} AND name != '{unseen}'"
        )
    writer = copy.deepcopy(ClickHouseWriter(table, url=clickhouse_url))
    with capture_logs() as logs:
        await writer.open(context)
    await writer.close()
    (advice,) = [log["advice"] for log in logs if log["log_level"] == "warning"]
    assert f"our user does not see default.{unseen}: whether an INSERT" in advice
    assert advice.endswith(f"; run GRANT SHOW ON `default`.`{unseen}` TO our user")
    assert writer.capabilities.delivery == "exactly-once"


UUID = "ec144310-72a7-4c26-8650-5e5d780cf47c"
NO_UUID = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("uuid", "definition", "target"),
    [
        (UUID, "CREATE MATERIALIZED VIEW d.v TO e.`my t` (`n` Int64) AS SELECT n", ("e", "my t")),
        (UUID, "CREATE MATERIALIZED VIEW d.v (`n` Int64) ENGINE = MergeTree ORDER BY n", None),
        (UUID, "CREATE MATERIALIZED VIEW d.v ENGINE = Log AS SELECT ' TO e.t' AS n", None),
        (NO_UUID, "CREATE MATERIALIZED VIEW d.v ENGINE = Log AS SELECT 1", ("d", ".inner.v")),
    ],
)
def test_the_target_of_a_view_is_named_in_its_definition_or_is_its_own_table(
    uuid: str, definition: str, target: tuple[str, str] | None
) -> None:
    assert target_of("d", "v", uuid, definition) == (target or ("d", f".inner_id.{UUID}"))
