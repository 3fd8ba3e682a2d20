"""Windows into tables and files: rows of later windows are written, and corrected rows replace others."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import anyio
import clickhouse_connect
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kmr import Strategy
from kmr.sinks import ClickHouseWriter, ParquetWriter, PostgresWriter
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
            with anyio.move_on_after(120):
                while (found() != WANTED) if last else (found() == before):  # noqa: ASYNC110  of a table
                    await anyio.sleep(0.1)
    assert found() == WANTED


@pytest.mark.parametrize("kind", ["clickhouse", "postgres"])
async def test_a_late_row_corrects_the_row_that_is_in_the_table(
    broker: Broker, produce: Produce, kind: str, request: pytest.FixtureRequest
) -> None:
    url: str = request.getfixturevalue(f"{kind}_url")
    times = [
        pa.field(f"window_{of}", pa.timestamp("us", "UTC"), nullable=False)
        for of in ("start", "end")
    ]
    columns = pa.schema([*times, pa.field("n", pa.int64())])

    def sink() -> Any:
        options: dict[str, Any] = {"url": url, "create": columns, "changes": True, "max_age": 0.1}
        if kind == "postgres":
            return PostgresWriter("corrected", key=["window_start"], **options)
        return ClickHouseWriter("corrected", key=["window_start"], **options)

    async def found() -> list[tuple[float, int]]:
        def rows() -> Any:
            if kind == "postgres":
                with psycopg.connect(url) as connection:
                    return list(connection.execute("SELECT window_start, n FROM corrected"))
            query = "SELECT toTimeZone(window_start, 'UTC'), n FROM corrected FINAL"
            with clickhouse_connect.get_client(dsn=url, autogenerate_session_id=False) as client:
                return client.query(query, tz_mode="aware").result_rows

        pairs = await anyio.to_thread.run_sync(rows)
        return sorted(((start - BEGIN).total_seconds(), n) for start, n in pairs)

    parts = {
        (b"3", b"5", b"21"): [(0, 2)],
        (b"12", b"4"): [(0, 3), (10, 1)],
        (b"13", b"35", b"2"): [(0, 3), (10, 2), (20, 1)],
    }
    strategy = [window(late="reemit", correct="15s", columns=COLUMNS), sink()]
    settings = quick_settings(broker)
    for values, wanted in parts.items():
        await produce("t", values)
        async with working(Strategy(map=parse, reduce=copy.deepcopy(strategy)), settings):
            with anyio.fail_after(60):
                while await found() != wanted:  # noqa: ASYNC110  of a table
                    await anyio.sleep(0.1)
