"""`kmr clickhouse`: statements, formats and errors; the tables of a strategy; a missing extra."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from kmr.cli.clickhouse import app
from kmr.errors import KmrError, MissingExtra, SettingsError, StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def kmr(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `kmr clickhouse ...` in this process; returns what it prints."""

    def run(*arguments: str) -> str:
        app(arguments, exit_on_error=False, result_action="return_value")
        return capsys.readouterr().out

    return run


def test_kmr_clickhouse_query_prints_a_table(
    clickhouse_url: str, kmr: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMR_CLICKHOUSE_URL", clickhouse_url)
    table = kmr("query", "SELECT 'hello' AS greeting, 5 AS n;")
    assert "greeting" in table
    assert "│ hello" in table
    assert kmr("query", "SELECT 1, 2", "--format", "CSV") == "1,2\n"
    assert kmr("query", "SELECT 1, 2 FORMAT TSV", "--url", clickhouse_url) == "1\t2\n"
    assert kmr("query", "CREATE OR REPLACE TABLE made (a UInt8) ENGINE = Memory") == ""
    monkeypatch.setattr("sys.stdin", io.StringIO("-- a comment\nSELECT 3;\n"))
    assert kmr("query", "--format", "CSV") == "3\n"
    with pytest.raises(KmrError, match="nowhere"):
        kmr("query", "SELECT * FROM nowhere")
    with pytest.raises(KmrError, match="Connection refused"):
        kmr("query", "SELECT 1", "--url", "http://127.0.0.1:1")


def test_a_missing_extra_is_one_line_with_the_command_that_adds_it(
    kmr: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "chdb", None)
    with pytest.raises(
        MissingExtra, match=r"^kmr clickhouse serve needs chdb: pip install [^\n]*$"
    ):
        kmr("serve")


def test_without_a_statement_the_error_shows_how_to_give_one(
    kmr: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(SettingsError, match="no statement: give kmr clickhouse query 'SELECT"):
        kmr("query")


TABLES = """
import contextlib
import json
import sys
import pyarrow as pa
from kmr import Strategy, map_record
from kmr.sinks import ClickHouseWriter, StreamWriter

@map_record(schema=pa.schema([pa.field("ts", pa.timestamp("us", "UTC"), nullable=False), ("x", pa.int8())]))
def parse(record): return None

@map_record
def untyped(record): return json.loads(record.value)

dead = ClickHouseWriter("cli_dead", ttl="timestamp + INTERVAL 1 DAY")
strategy = Strategy(parse, [ClickHouseWriter("cli_made")], reduce_err=dead)
undeclared = Strategy(untyped, [ClickHouseWriter("cli_made")], reduce_err=dead)
@contextlib.asynccontextmanager
async def opened(): yield "text"

async def named(record, resources): return {resources: record.value.decode()}

looking_up = Strategy(named, [ClickHouseWriter("cli_made")], resources=opened)
elsewhere = Strategy(parse, [StreamWriter(sys.stdout)])
"""


def test_kmr_clickhouse_create_table_prints_and_runs_the_statements_of_a_strategy(
    clickhouse_url: str,
    kmr: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "cli_tables.py").write_text(TABLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KMR_CLICKHOUSE_URL", clickhouse_url)
    printed = kmr("create-table", "cli_tables")
    begin = (
        "CREATE TABLE IF NOT EXISTS `default`.`cli_made`\n(\n    `topic` LowCardinality(String),"
    )
    assert begin in printed
    assert (
        "ORDER BY (`topic`, `partition`, `offset`)\nSETTINGS non_replicated_deduplication_window = 10000;\n"
        in printed
    )
    assert "TTL timestamp + INTERVAL 1 DAY" in printed
    try:
        assert kmr("create-table", "cli_tables", "--stage", "reduce-1", "--run") in printed
        query = "SELECT name FROM system.tables WHERE startsWith(name, 'cli_')"
        assert kmr("query", query, "-f", "TSV") == "cli_made\n"
    finally:
        kmr("query", "DROP TABLE IF EXISTS cli_made")
    with pytest.raises(StrategyError, match=r"'cli_made'.*not declared, so no CREATE TABLE"):
        kmr("create-table", "cli_tables:undeclared")
    assert "`reason`" in kmr("create-table", "cli_tables:undeclared", "--stage", "reduce-err")
    sample = tmp_path / "values.jsonl"
    sample.write_text('{"n": 1}\n{"n": 2.5, "text": "x"}\nnot json\n')
    printed = kmr("create-table", "cli_tables:undeclared", "--sample", str(sample))
    assert ",\n    `n` Nullable(Float64),\n    `text` Nullable(String)\n)" in printed
    printed = kmr("create-table", "cli_tables:looking_up", "--sample", str(sample))
    assert ",\n    `text` Nullable(String)\n)" in printed
    sample.write_text("not json\n")
    with pytest.raises(StrategyError, match="none of its 1 records became a row; the first failed"):
        kmr("create-table", "cli_tables:undeclared", "--sample", str(sample))
    with pytest.raises(SettingsError, match="--sample nowhere: No such file"):
        kmr("create-table", "cli_tables:undeclared", "--sample", "nowhere")
    with pytest.raises(StrategyError, match="none of its stages is a ClickHouseWriter"):
        kmr("create-table", "cli_tables:elsewhere")


def test_a_query_without_an_address_reads_what_a_writer_without_one_writes(
    kmr: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KMR_CLICKHOUSE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KmrError, match=f"no ClickHouse directory {tmp_path}/.kmr/clickhouse"):
        kmr("query", "SELECT 1")
