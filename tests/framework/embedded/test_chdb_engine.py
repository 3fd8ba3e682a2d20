"""The engine: sessions, settings, deduplication tokens, parallel queries, and its data directory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import anyio
import anyio.lowlevel
import pytest

from kmr.embedded.query import ServerError
from kmr.embedded.server import EmbeddedClickHouse

from .statements import TABLE, count

if TYPE_CHECKING:
    from pathlib import Path

    from tests.framework.embedded.conftest import Ask


async def test_a_repeated_token_is_recognised_and_a_new_one_is_not(ask: Ask) -> None:
    await ask(TABLE)
    for token, rows, expected in (
        ("one", b"1\ta\n", 1),
        ("one", b"1\ta\n", 1),
        ("one", b"2\tb\n", 1),
        ("two", b"1\ta\n", 2),
    ):
        await ask(rows, query="INSERT INTO t FORMAT TSV", insert_deduplication_token=token)
        assert await count(ask) == expected


async def test_parameters_are_settings_and_unknown_ones_are_ignored(ask: Ask) -> None:
    answer = await ask("SELECT getSetting('max_threads')", max_threads=3, no_such_setting=1)
    assert answer.text == "3\n"
    assert (await ask("SELECT getSetting('max_threads') = 3")).text == "0\n", "only for one query"
    assert (await ask("SELECT 1", max_threads="many")).status == 500
    assert (await ask("SELECT 1", max_execution_time=1)).text == "1\n"


async def test_a_session_keeps_tables_and_settings_but_not_those_of_one_request(ask: Ask) -> None:
    session = {"session_id": "s"}
    await ask("CREATE TEMPORARY TABLE mine (a UInt8)", **session)
    await ask("INSERT INTO mine VALUES (1)", **session)
    await ask("SET max_threads = 5", **session)
    query = "SELECT count(), getSetting('max_threads') FROM mine"
    assert (await ask(query, max_threads=2, **session)).text == "1\t2\n"
    assert (await ask(query, **session)).text == "1\t5\n"
    assert (await ask(query)).code == 60
    token = "SELECT getSetting('insert_deduplication_token')"
    assert (await ask(token, insert_deduplication_token="t", **session)).text == "t\n"
    assert (await ask(token, **session)).text == "\n"


async def test_queries_of_a_session_wait_for_each_other(ask: Ask) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask("SELECT sleep(1.5)", session_id="s", query_id="sleeping"))
        while (
            b"sleeping"
            not in (await ask("SELECT Settings['log_comment'] FROM system.processes")).body
        ):
            await anyio.lowlevel.checkpoint()
        answer = await ask(
            "SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'sleeping'",
            session_id="s",
        )
    assert answer.text == "0\n"


async def test_queries_run_side_by_side_and_each_insert_has_its_own_rows(ask: Ask) -> None:
    await ask(TABLE)

    async def insert(n: int) -> None:
        rows = b"".join(b"%d\t%d\n" % (n * 1000 + i, n) for i in range(1000))
        answer = await ask(rows, query="INSERT INTO t FORMAT TSV", insert_deduplication_token=n)
        assert answer.status == 200, answer.text

    async with asyncio.TaskGroup() as tasks:
        for n in range(60):
            tasks.create_task(insert(n))
            tasks.create_task(ask("SELECT sum(a) FROM t"))
    answer = await ask(
        "SELECT count(), uniqExact(a), countIf(intDiv(a, 1000) != toUInt32(s)) FROM t"
    )
    assert answer.text == "60000\t60000\t0\n"


async def test_a_second_directory_in_one_process_is_refused(
    server: EmbeddedClickHouse, tmp_path: Path
) -> None:
    with pytest.raises(ServerError, match="Cannot open the ClickHouse data directory"):
        await EmbeddedClickHouse(tmp_path / "other").__aenter__()


async def test_a_directory_of_another_process_is_refused_by_its_id(
    clickhouse_url: str, tmp_path: Path
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(clickhouse_url, data="SELECT path FROM system.disks") as response,
    ):
        path = (await response.text()).strip()
    with pytest.raises(ServerError, match=r"is in use by process \d+"):
        await EmbeddedClickHouse(path).__aenter__()
