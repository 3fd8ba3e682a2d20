"""The demo's report, on tables that are as they should be, and on tables that are not."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import anyio
import pytest
from rich.console import Console

from demo.outcome import Outcome
from demo.report import report
from demo.results import differing_rows
from demo.services import create_tables
from demo.spark import SPARK
from demo.workers import WORKERS

if TYPE_CHECKING:
    from kmr.embedded.server import EmbeddedClickHouse
    from tests.framework.embedded.conftest import Ask


@pytest.fixture
async def tables(server: EmbeddedClickHouse, ask: Ask) -> str:
    """Six flights in both databases: one partition, offsets 0 to 5. The server's URL."""
    for engine in (WORKERS, SPARK):
        await anyio.to_thread.run_sync(create_tables, server.url, engine.database)
        for carrier, numbers in (("UA", "0, 4"), ("HA", "4, 2")):
            answer = await ask(
                f"INSERT INTO {engine.database}.flights (carrier, offset, dep_delay) "
                f"SELECT '{carrier}', number, 10 FROM numbers({numbers})"
            )
            assert answer.status == 200, answer.text
    return server.url


async def shown(url: str, *, engines: int = 2) -> tuple[bool, str]:
    """Whether all is well, and the report's text."""
    outcomes = [
        Outcome(engine, f"{url}/{engine.database}", start=1.0, seconds=2.0)
        for engine in (WORKERS, SPARK)[:engines]
    ]
    output = io.StringIO()
    console = Console(file=output, width=120)
    passed = await anyio.to_thread.run_sync(report, console, url, outcomes, 6)
    return passed, output.getvalue()


def line(text: str, name: str) -> list[str]:
    """The cells of the line that begins with a name."""
    return next(row for row in text.splitlines() if row.startswith(name))[len(name) :].split()


async def test_equal_tables_pass(tables: str) -> None:
    passed, text = await shown(tables)
    assert passed
    assert line(text, "rows") == ["6", "6"]
    assert line(text, "missing") == line(text, "doubled") == ["0", "0"]
    assert line(text, "records/s") == ["3", "3"]
    assert line(text, "delays per carrier") == ["equal"]
    assert line(text, "United Air Lines Inc.") == ["4", "0", "10.0", "10", "equal"]


async def test_one_engine_alone_passes(tables: str, ask: Ask) -> None:
    await ask("TRUNCATE TABLE spark.flights")
    passed, text = await shown(tables, engines=1)
    assert passed
    assert line(text, "rows") == ["6"]
    assert "that differ" not in text


@pytest.mark.parametrize(
    ("change", "name", "cells"),
    [
        ("DELETE FROM spark.flights WHERE offset = 2", "missing", ["0", "1"]),
        ("DELETE FROM spark.flights WHERE offset = 5", "missing", ["0", "1"]),
        ("TRUNCATE TABLE spark.flights", "missing", ["0", "6"]),
        ("INSERT INTO spark.flights (offset) VALUES (2)", "doubled", ["0", "1"]),
        ("INSERT INTO default.flights (offset) VALUES (2)", "doubled", ["1", "0"]),
        (
            "ALTER TABLE spark.flights UPDATE dep_delay = NULL WHERE carrier = 'HA'",
            "delays per carrier",
            ["differ"],
        ),
        (
            "ALTER TABLE spark.flights UPDATE origin = 'JFK' WHERE offset = 2",
            "rows that differ",
            ["2"],
        ),
    ],
)
async def test_whatever_is_wrong_fails_and_is_shown(
    tables: str, ask: Ask, change: str, name: str, cells: list[str]
) -> None:
    answer = await ask(change, mutations_sync=1)
    assert answer.status == 200, answer.text
    passed, text = await shown(tables)
    assert not passed
    assert line(text, name) == cells


async def test_rows_that_both_engines_doubled_do_not_differ_but_are_doubled(
    tables: str, ask: Ask
) -> None:
    for engine in (WORKERS, SPARK):
        await ask(f"INSERT INTO {engine.database}.flights (offset) VALUES (2)")
    assert await anyio.to_thread.run_sync(differing_rows, tables) == 0
    passed, text = await shown(tables)
    assert not passed
    assert line(text, "doubled") == ["1", "1"]
