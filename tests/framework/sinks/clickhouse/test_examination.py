"""What `kmr doctor` finds at a ClickHouse table; it creates and alters nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kmr.errors import SinkError, StrategyError
from kmr.record import of_records
from kmr.sinks.clickhouse.client import ClickHouseConnection
from kmr.sinks.clickhouse.writer import ClickHouseWriter

from .writing import COUNTED

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

    from kmr.reducers.finding import Finding
    from kmr.reducers.reducer import Context
    from tests.framework.sinks.conftest import CreateTable

DECLARED = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture
def declaring(context: Context) -> Context:
    return context.with_sinks(schema_of=lambda _: DECLARED)


async def examined(
    url: str, context: Context, table: str, **options: Any
) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {"ok": [], "warning": [], "problem": []}
    for finding in await ClickHouseWriter(table, url=url, **options).examine(context):
        found[finding.level].append(finding)
    return found


async def test_a_table_that_fits_has_no_problems(
    clickhouse_url: str, create_table: CreateTable, declaring: Context
) -> None:
    found = await examined(clickhouse_url, declaring, create_table("n Int64"))
    assert found["warning"] == found["problem"] == []
    texts = " ".join(each.text for each in found["ok"])
    assert "its clock agrees with ours" in texts
    assert "delivery is exactly-once" in texts
    assert "the 1 declared columns fit" in texts


async def test_a_table_whose_partitions_take_turns_says_for_how_many_max_age_is_kept(
    clickhouse_url: str, client: Client, create_table: CreateTable, declaring: Context
) -> None:
    def turns(found: dict[str, list[Finding]]) -> list[str]:
        return [each.text for each in found["ok"] if "INSERTs of its own" in each.text]

    divided = create_table(COUNTED)
    client.command(f"DROP TABLE {divided}")
    client.command(
        f"CREATE TABLE {divided} ({COUNTED}) ENGINE = MergeTree ORDER BY offset PARTITION BY n "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    (told,) = turns(await examined(clickhouse_url, declaring, divided, max_age=5))
    assert "4 a second in a worker" in told
    assert "more than 20 partitions" in told
    assert not turns(await examined(clickhouse_url, declaring, create_table(COUNTED)))
    at_least = await examined(clickhouse_url, declaring, divided, delivery="at-least-once")
    assert not turns(at_least)


async def test_a_missing_table_is_a_problem_unless_it_will_be_created(
    clickhouse_url: str, client: Client, declaring: Context
) -> None:
    (problem,) = (await examined(clickhouse_url, declaring, "absent"))["problem"]
    assert problem.text == "there is no table default.absent: the worker will not start"
    assert "CREATE TABLE IF NOT EXISTS `default`.`absent`" in problem.remedy
    found = await examined(clickhouse_url, declaring, "absent", create=True)
    assert found["problem"] == []
    assert any("will be created" in each.text for each in found["ok"])
    assert not client.command("EXISTS TABLE absent")


async def test_a_window_that_is_too_small_is_a_warning_or_will_be_mended(
    clickhouse_url: str, client: Client, create_table: CreateTable, declaring: Context
) -> None:
    table = create_table("n Int64", window=5)
    (warning,) = (await examined(clickhouse_url, declaring, table))["warning"]
    assert "remembers the last 5 inserts only" in warning.text
    assert f"run ALTER TABLE `default`.`{table}` MODIFY SETTING" in warning.remedy
    prepared = await examined(clickhouse_url, declaring.with_sinks(prepare=True), table)
    assert prepared["warning"] == []
    assert "= 5" in str(client.command(f"SHOW CREATE TABLE {table}"))


async def test_a_table_that_cannot_be_exactly_once_is_refused_as_at_the_start(
    clickhouse_url: str, create_table: CreateTable, declaring: Context
) -> None:
    table = create_table("n Int64", engine="Memory")
    with pytest.raises(StrategyError, match="does not deduplicate"):
        await examined(clickhouse_url, declaring, table, delivery="exactly-once")
    assert len((await examined(clickhouse_url, declaring, table))["warning"]) == 1


@pytest.mark.parametrize(
    ("columns", "reason"),
    [("x Int64", "has no column n"), ("n Array(Int64)", "column n (Array(Int64)) cannot hold")],
)
async def test_declared_columns_that_do_not_fit_are_a_problem(
    clickhouse_url: str, create_table: CreateTable, declaring: Context, columns: str, reason: str
) -> None:
    (problem,) = (await examined(clickhouse_url, declaring, create_table(columns)))["problem"]
    assert reason in problem.text


async def test_columns_that_evolve_will_add_are_told(
    clickhouse_url: str, create_table: CreateTable, declaring: Context
) -> None:
    table = create_table("x Nullable(Int64)")
    context = declaring.with_sinks(
        schema_of=lambda _: pa.schema([("x", pa.int64()), ("y", pa.int64())])
    )
    found = await examined(clickhouse_url, context, table, evolve="add")
    assert found["problem"] == []
    assert any(each.text == "evolve will add the columns y" for each in found["ok"])


@pytest.mark.parametrize(
    ("setting", "options", "columns", "privilege"),
    [
        ("readonly=2", {}, "n Int64", "INSERT"),
        ("readonly=2", {"evolve": "add"}, "x Nullable(Int64)", "ALTER ADD COLUMN"),
    ],
)
async def test_a_privilege_that_the_user_lacks_is_a_problem(
    clickhouse_url: str,
    create_table: CreateTable,
    declaring: Context,
    setting: str,
    options: dict[str, Any],
    columns: str,
    privilege: str,
) -> None:
    table = create_table(columns)
    found = await examined(f"{clickhouse_url}?{setting}", declaring, table, **options)
    problem = next(each for each in found["problem"] if privilege in each.text)
    assert problem.text.startswith(f"user default must not {privilege} at default.{table}: ")
    assert problem.remedy == f"run GRANT {privilege} ON `default`.`{table}` TO `default`"


async def test_a_table_that_the_user_must_not_create_is_a_problem(
    clickhouse_url: str, declaring: Context
) -> None:
    url = f"{clickhouse_url}?allow_ddl=0"
    (problem,) = (await examined(url, declaring, "absent", create=True))["problem"]
    assert problem.text.endswith("CREATE TABLE at default.absent: the worker will not start")


async def test_a_window_that_the_user_must_not_mend_is_a_problem(
    clickhouse_url: str, create_table: CreateTable, declaring: Context
) -> None:
    table = create_table("n Int64", window=5)
    url = f"{clickhouse_url}?allow_ddl=0"
    (problem,) = (await examined(url, declaring.with_sinks(prepare=True), table))["problem"]
    assert "must not ALTER SETTINGS" in problem.text


async def test_exactly_once_needs_to_read_the_columns_that_it_counts(
    clickhouse_url: str,
    create_table: CreateTable,
    declaring: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An embedded ClickHouse has no user without SELECT, so the answer to one CHECK GRANT is replaced."""
    asked = []
    is_granted = ClickHouseConnection.is_granted

    async def without_select(
        connection: ClickHouseConnection, privilege: str, table: str
    ) -> bool | None:
        asked.append(privilege)
        return await is_granted(connection, privilege, table) and "SELECT" not in privilege

    monkeypatch.setattr(ClickHouseConnection, "is_granted", without_select)
    columns = of_records(pa.schema([("n", pa.int64())]))
    context = declaring.with_sinks(schema_of=lambda _: columns)
    table = create_table("topic String, partition Int64, offset Int64, n Int64")
    (problem,) = (await examined(clickhouse_url, context, table))["problem"]
    assert "must not SELECT(topic, partition, offset)" in problem.text
    found = await examined(clickhouse_url, context, table, delivery="at-least-once")
    assert found["problem"] == []
    assert asked == ["INSERT", "SELECT(topic, partition, offset)", "INSERT"]


async def test_a_server_that_does_not_answer_is_an_error(declaring: Context) -> None:
    with pytest.raises(SinkError, match="did not answer"):
        await examined("http://127.0.0.1:1", declaring, "t", connect_timeout=0.1)
