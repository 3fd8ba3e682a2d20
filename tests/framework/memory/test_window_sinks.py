"""Windows into Parquet files and PostgreSQL: rows of later windows are written too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import psycopg
import pyarrow.parquet as pq
import pytest

from kmr import Strategy
from kmr.sinks import ParquetWriter, PostgresWriter
from tests.framework.guarantees.working import quick_settings, working
from tests.framework.memory.test_window import BEGIN, parse, window

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.broker import Broker
    from tests.framework.conftest import Produce

COLUMNS = {"n": ("*", "count")}

# The window of 12 is opened first and closes second: its record stays the first of an open window.
PARTS = ([b"12", b"3", b"20"], [b"24", b"30"], [b"45"])
WANTED = [(0, 1), (10, 1), (20, 2), (30, 1), (40, 1)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("kind", ["parquet", "postgres"])
async def test_every_window_is_written_once_though_its_offsets_were_announced_before(
    broker: Broker, produce: Produce, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else ""

    if kind == "postgres":
        with psycopg.connect(url) as connection:
            connection.execute(
                "CREATE TABLE windows (window_start timestamptz, window_end timestamptz, n bigint)"
            )

    def sink() -> Any:
        if kind == "parquet":
            return ParquetWriter(tmp_path / "w", max_age=0.1)
        return PostgresWriter("windows", url=url, max_age=0.1)

    def found() -> list[tuple[float, int]]:
        if kind == "parquet":
            files = (tmp_path / "w").glob("[!_]*.parquet")
            rows = [row for each in files for row in pq.ParquetFile(each).read().to_pylist()]
            pairs = [(row["window_start"], row["n"]) for row in rows]
        else:
            with psycopg.connect(url) as connection:
                pairs = list(connection.execute("SELECT window_start, n FROM windows"))
        return sorted(((start - BEGIN).total_seconds(), n) for start, n in pairs)

    settings = quick_settings(broker)
    for number, values in enumerate(PARTS):
        await produce("t", values)
        last = number == len(PARTS) - 1
        made = window(lateness="5s", columns=COLUMNS, idle="1s" if last else None)
        before = found() if number else []
        async with working(Strategy(map=parse, reduce=[made, sink()]), settings):
            with anyio.move_on_after(30):
                while (found() != WANTED) if last else (found() == before):  # noqa: ASYNC110  of a table
                    await anyio.sleep(0.1)
    assert found() == WANTED
