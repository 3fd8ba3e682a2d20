"""The demo's report, on a table that is as it should be, and on tables that are not."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import anyio
import pytest
from rich.console import Console

from demo.outcome import Outcome
from demo.report import report
from demo.services import create_tables

if TYPE_CHECKING:
    from kmr.embedded.server import EmbeddedClickHouse
    from tests.framework.embedded.conftest import Ask

OUTCOMES = [
    Outcome("history", "Spark", "demo.backfill", start=1.0, seconds=2.0),
    Outcome("present", "workers", "demo", start=0.5, seconds=4.0),
]


@pytest.fixture
async def table(server: EmbeddedClickHouse, ask: Ask) -> str:
    """Six flights: one partition, offsets 0 to 5, of which four are below the cut. The server's URL."""
    await anyio.to_thread.run_sync(create_tables, server.url)
    for carrier, numbers in (("UA", "0, 4"), ("HA", "4, 2")):
        answer = await ask(
            "INSERT INTO flights (carrier, offset, dep_delay) "
            f"SELECT '{carrier}', number, 10 FROM numbers({numbers})"
        )
        assert answer.status == 200, answer.text
    return server.url


async def shown(url: str) -> tuple[bool, str]:
    """Whether all is well, and the report's text."""
    output = io.StringIO()
    console = Console(file=output, width=120)
    passed = await anyio.to_thread.run_sync(report, console, url, {0: 4}, OUTCOMES, 6)
    return passed, output.getvalue()


def line(text: str, name: str) -> list[str]:
    """The cells of the line that begins with a name."""
    rows = [row.strip() for row in text.splitlines()]
    return next(row for row in rows if row.startswith(name))[len(name) :].split()


async def test_history_and_present_fill_one_table(table: str) -> None:
    passed, text = await shown(table)
    assert passed
    assert line(text, "0 ") == ["4", "4", "2", "0", "0"]
    assert line(text, "all") == ["4", "2", "0", "0"]
    assert line(text, "read by") == ["Spark", "workers"]
    assert line(text, "rows  ") == ["4", "2"]
    assert line(text, "United Air Lines Inc.") == ["4", "0", "10.0", "10"]


@pytest.mark.parametrize(
    ("change", "cells"),
    [
        ("DELETE FROM flights WHERE offset = 2", ["3", "2", "1", "0"]),
        ("DELETE FROM flights WHERE offset = 5", ["4", "1", "1", "0"]),
        ("TRUNCATE TABLE flights", ["0", "0", "6", "0"]),
        ("INSERT INTO flights (offset) VALUES (2)", ["5", "2", "0", "1"]),
        ("INSERT INTO flights (offset) VALUES (5)", ["4", "3", "0", "1"]),
    ],
)
async def test_whatever_is_wrong_fails_and_is_shown(
    table: str, ask: Ask, change: str, cells: list[str]
) -> None:
    answer = await ask(change, mutations_sync=1)
    assert answer.status == 200, answer.text
    passed, text = await shown(table)
    assert not passed
    assert line(text, "all") == cells
