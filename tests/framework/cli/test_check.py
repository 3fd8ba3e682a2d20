"""`kmr check` on tables and files with gaps and doubles."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from kmr.cli.check import app, show
from kmr.errors import ConsumerError, SettingsError
from kmr.history.deliveries import check
from kmr.kafka.admin import connect_admin
from kmr.kafka.connection import ConnectionConfig
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from kmr.broker import Broker

    from ..conftest import CreateTopic, FillTable, Produce


PLAIN = "`partition` UInt32, `offset` UInt64"


async def test_offsets_that_a_group_has_committed_without_a_row_are_filtered_or_missing(
    clickhouse_url: str,
    fill: FillTable,
    capsys: pytest.CaptureFixture[str],
    create_topic: CreateTopic,
    produce: Produce,
    broker: Broker,
) -> None:
    await create_topic("flights", 3)
    for partition in (0, 1):
        await produce("flights", [b"x"] * 10, partition)
    servers = ["--bootstrap-servers", broker.bootstrap_servers]
    async with connect_admin(ConnectionConfig(bootstrap_servers=servers[1])) as admin:
        await admin.reset_offsets(
            "g",
            {
                TopicPartition("flights", 0): CommitOffset(6),
                TopicPartition("flights", 1): CommitOffset(4),
            },
        )
    table = fill(PLAIN, (0, 1), (0, 4), (0, 8))  # the last is not committed yet

    async def run(*more: str) -> tuple[int, str]:
        arguments = ["--url", clickhouse_url, "--table", table, *servers, *more]
        code = await anyio.to_thread.run_sync(
            partial(app, arguments, exit_on_error=False, result_action="return_value")
        )
        return code, capsys.readouterr().out

    code, text = await run()
    assert (code, "3 messages: 5 missing, 0 doubled" in text) == (1, True)
    code, text = await run("--group", "g")
    assert (code, "3 messages: 8 filtered or missing, 0 doubled" in text) == (0, True)
    assert "GROUP tells it from what is missing; so does --expected" in " ".join(text.split())
    assert [line.split()[1:8:2] for line in text.splitlines() if "│" in line] == [
        ["0", "1..8", "3", "4"],
        ["1", "none", "0", "4"],
    ]
    with pytest.raises(ConsumerError, match="group other has no committed offsets of flights"):
        await run("--group", "other", "--topic", "flights")


STRATEGY = """
from kmr import Record, Strategy
from kmr.sinks import ClickHouseWriter


def odd(record: Record) -> dict[str, int] | None:
    return {"number": int(record.value)} if int(record.value) % 2 else None


strategy = Strategy(map=odd, reduce=ClickHouseWriter("TABLE", url="URL"))
"""


async def test_all_that_a_strategy_should_have_written_is_counted_in_its_tables(
    clickhouse_url: str,
    fill: FillTable,
    capsys: pytest.CaptureFixture[str],
    create_topic: CreateTopic,
    produce: Produce,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await create_topic("numbers", 1)
    await produce("numbers", [b"1", b"2", b"3", b"5", b"7", b"9"])
    at = TopicPartition("numbers", 0)
    async with connect_admin(ConnectionConfig(bootstrap_servers=broker.bootstrap_servers)) as admin:
        await admin.reset_offsets("g", {at: CommitOffset(5)})
    table = fill("topic String, `partition` UInt32, `offset` UInt64, number Int64")
    text = STRATEGY.replace("TABLE", table).replace("URL", clickhouse_url)
    (tmp_path / "counted.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    arguments = ["--strategy", "counted:strategy", "--bootstrap-servers", broker.bootstrap_servers]

    async def run(rows: list[list[object]]) -> tuple[int, list[str]]:
        with clickhouse_connect.get_client(dsn=clickhouse_url) as client:
            client.insert(table, rows)
        code = await anyio.to_thread.run_sync(
            partial(
                app, [*arguments, "--group", "g"], exit_on_error=False, result_action="return_value"
            )
        )
        return code, capsys.readouterr().out.splitlines()[-5:]

    code, lines = await run([["numbers", 0, 0, 1], ["numbers", 0, 2, 3], ["numbers", 0, 2, 3]])
    assert code == 1
    assert lines[0].endswith(
        " 1 filtered, 0 dead letters, 0 without a record, 2 missing, 1 doubled"
    )
    assert lines[1:3] == ["  missing: numbers-0 offset 3", "  missing: numbers-0 offset 4"]
    with pytest.raises(SettingsError, match="group is not set"):
        app(arguments, exit_on_error=False)


def test_doubled_rows_fail_the_check_of_a_strategy_that_filters(
    clickhouse_url: str, fill: FillTable
) -> None:
    table = fill("`topic` String, " + PLAIN, ("a", 0, 2), ("a", 0, 2), ("b", 0, 9))
    bounds = {TopicPartition("a", 0): (1, 5), TopicPartition("b", 0): (0, 10)}
    result = check(url=clickhouse_url, table=table, committed=bounds)
    assert [(p.topic, p.filtered, p.missing) for p in result.partitions] == [
        ("a", 3, 0),
        ("b", 9, 0),
    ]
    assert (result.clean, result.doubled) == (False, 1)
    assert check(url=clickhouse_url, table=table, committed=bounds, expected=3).missing == 1
    without_topic = fill(PLAIN, (0, 1))
    with pytest.raises(SettingsError, match="has several topics; name one with --topic"):
        check(url=clickhouse_url, table=without_topic, committed=bounds)


@pytest.mark.parametrize(
    ("values", "code", "verdict"),
    [
        ([(0, 1), (0, 2)], 0, "2 messages: 0 missing, 0 doubled"),
        ([(0, 1), (0, 3), (0, 3)], 1, "2 messages: 1 missing, 1 doubled"),
    ],
)
def test_the_exit_code_is_1_if_deliveries_are_missing_or_doubled(
    clickhouse_url: str,
    fill: FillTable,
    capsys: pytest.CaptureFixture[str],
    values: list[tuple[int, int]],
    code: int,
    verdict: str,
) -> None:
    arguments = ["--url", clickhouse_url, "--table", fill(PLAIN, *values)]
    assert app(arguments, exit_on_error=False, result_action="return_value") == code
    assert verdict in capsys.readouterr().out


MAPS = """
from kmr import Json, Strategy, map_batch
from kmr.sinks import StreamWriter

class Row(dict): ...
def one(record) -> Row | None: ...
def several(record) -> list[Row]: ...
def unknown(record): ...
def made(map, **more): return Strategy(map=map, reduce=StreamWriter("stdout"), **more)
one, several, unknown, batch = map(made, (one, several, unknown, map_batch(lambda batch: batch)))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        ([], 1, "2 messages: 1 missing, 1 doubled"),
        (["--rows-per-record", "any"], 1, "2 messages in 4 rows: 1 missing"),
        (["--rows-per-record", "any", "--expected", "2"], 1, "2 messages of 2 expected in 4 rows"),
        (["--strategy", "rows_of:one"], 1, "2 messages: 1 missing, 1 doubled"),
        (["--strategy", "rows_of:several"], 1, "2 messages in 4 rows: 1 missing"),
        (["--strategy", "rows_of:unknown"], 1, "2 messages in 4 rows: 1 missing"),
        (["--strategy", "rows_of:batch"], 1, "2 messages in 4 rows: 1 missing"),
        (["--strategy", "rows_of:batch", "--rows-per-record", "one"], 1, "1 missing, 1 doubled"),
    ],
)
def test_rows_of_a_map_that_makes_several_of_a_record_are_not_doubled(
    clickhouse_url: str,
    fill: FillTable,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    verdict: str,
) -> None:
    (tmp_path / "rows_of.py").write_text(MAPS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rows_of", raising=False)
    given = ["--url", clickhouse_url, "--table", fill(PLAIN, (0, 1), (0, 3), (0, 3), (0, 3))]
    ended = app([*given, *arguments], exit_on_error=False, result_action="return_value")
    text = capsys.readouterr().out
    assert (ended, verdict in text) == (code, True), text
    whole = ["--url", clickhouse_url, "--table", fill(PLAIN, (0, 1), (0, 2), (0, 2))]
    ended = app([*whole, *arguments[:2]], exit_on_error=False, result_action="return_value")
    assert ended == (1 if arguments[:2] in ([], ["--strategy", "rows_of:one"]) else 0)


def test_the_table_names_a_doubled_offset(clickhouse_url: str, fill: FillTable) -> None:
    table = fill("`topic` String, " + PLAIN, ("flights", 3, 7), ("flights", 3, 7))
    console = Console(record=True, width=120, color_system=None)
    show(check(url=clickhouse_url, table=table, expected=1), console)
    text = console.export_text()
    assert "flights" in text
    assert "1 (offset 7, ...)" in text
    assert "1 message of 1 expected: 0 missing, 1 doubled" in text


@pytest.mark.slow
def test_the_command_prints_a_verdict_and_its_exit_code_says_whether_all_is_well(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = str(tmp_path / "bad.parquet"), str(tmp_path / "good.parquet")
    pq.write_table(pa.table({"partition": [0] * 4, "offset": [3, 4, 4, 7]}), bad)
    pq.write_table(pa.table({"partition": [0, 0], "offset": [5, 6]}), good)
    arguments: dict[str, Any] = {"exit_on_error": False, "result_action": "return_value"}
    assert app(["--spark", bad], **arguments) == 1
    assert "3 messages: 2 missing, 1 doubled" in capsys.readouterr().out
    assert app(["--spark", good, "--expected", "2"], **arguments) == 0
    assert "2 messages of 2 expected: 0 missing, 0 doubled" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--table", "t", "--spark", "t"]])
def test_exactly_one_source_must_be_given(arguments: list[str]) -> None:
    with pytest.raises(SettingsError, match="give --strategy and --group, or --table"):
        app(arguments, exit_on_error=False, result_action="return_value")
