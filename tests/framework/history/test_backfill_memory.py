"""`kmr backfill` of a strategy that remembers records: its end is the beginning of the present."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.delivery.announcement import read_metadata

if TYPE_CHECKING:
    import random

    from tests.framework.history.conftest import Past

STRATEGY = """
import os
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from kmr import Distinct, Strategy, Window
from kmr.mapping.functions import map_record
from kmr.sinks import ClickHouseWriter, DeadLetterWriter

BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


TYPES = [("ts", pa.timestamp("us", "UTC")), *((name, pa.int64()) for name in ("id", "number", "kind", "p"))]


@map_record(schema=pa.schema(TYPES))
def parse(record):
    number = int(record.value)  # `wrong` fails
    if number % 10 == 3:
        return None
    seconds = number / 10 - number * 7919 % 13 * 0.15
    at = BEGIN + timedelta(seconds=seconds)
    return {"ts": at, "id": number // 2, "number": number, "kind": number % 3, "p": record.partition}


window = Window(
    "10s", time="ts", by=["p", "kind"], columns={"n": ("*", "count"), "total": ("number", "sum")},
    lateness="1s", late="drop",
)
rows = ClickHouseWriter(
    os.environ["TABLE"], create=True, order_by=["window_start"], max_rows=20, max_age=0.1
)
strategy = Strategy(
    map=parse,
    reduce=[Distinct(key="id", time="ts", within="3s"), window, rows],
    reduce_err=DeadLetterWriter("dead", max_age=0.1),
)
"""


SPARK = (
    *("--engine", "spark", "--checkpoint", "progress", "--master", "local[2]"),
    *("--max-offsets-per-trigger", "700"),
)


def windows(past: Past, table: str) -> list[tuple[Any, ...]]:
    """Return all rows."""
    text = f"SELECT p, kind, window_start, n, total FROM {table} ORDER BY ALL"
    return [tuple(row) for row in past.client.query(text).result_rows]


async def run_to_the_end(past: Past) -> None:
    command = past.command("run", "--until-caught-up")
    await anyio.run_process(command, cwd=past.folder, env=past.environment)


@pytest.mark.parametrize(
    ("engine", "kills"), [((), 2), pytest.param(SPARK, 1, marks=pytest.mark.slow)]
)
async def test_windows_and_duplicates_across_the_cut_are_those_of_one_worker_that_read_everything(
    past: Past,
    chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    engine: tuple[str, ...],
    kills: int,
) -> None:
    if engine:
        request.getfixturevalue("quick_jvms")
    (past.folder / "past.py").write_text(STRATEGY)
    table, whole = f"{past.table}_two", f"{past.table}_one"
    monkeypatch.setenv("TABLE", table)
    await past.send(0, 3053)  # the next record, after the cut, is a duplicate of the last one
    await past.send(1, 1204)  # the last one makes no row
    for _ in range(kills):
        async with past.running("backfill", *engine, "--rate", "400") as process:
            await past.until_done(past.history, 1)
            await anyio.sleep(chance.uniform(0, 1))
            os.killpg(process.pid, signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
    command = past.command("run")
    early = await anyio.run_process(command, cwd=past.folder, env=past.environment, check=False)
    assert early.returncode == 1
    assert b"start it when kmr backfill has ended" in early.stderr
    done = await past.run(*engine)
    assert done.code == 0, done.err
    assert "the history is handed over" in done.err
    begin = sorted((await past.committed(past.group)).items())
    closed = [read_metadata(at, entry).closed for at, entry in begin]
    assert begin[0][1].offset < 3053  # windows are open
    assert [each and each.read_to for each in closed] == [3052, 1203, None]
    again = await past.run(*engine)
    assert again.code == 0, again.err
    assert "handed over" not in again.err
    assert sorted((await past.committed(past.group)).items()) == begin
    for partition in (0, 1, 2):
        await past.send(partition, 700)
    async with past.running("run") as live:
        await anyio.sleep(chance.uniform(2, 4))
        os.killpg(live.pid, signal.SIGKILL)
        await live.wait()
    await run_to_the_end(past)
    monkeypatch.setenv("TABLE", whole)
    past.group = "whole"
    await run_to_the_end(past)
    expected = windows(past, whole)
    assert len(expected) > 100
    assert windows(past, table) == expected
