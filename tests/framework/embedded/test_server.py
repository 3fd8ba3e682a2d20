"""The embedded ClickHouse over HTTP: its responses, and its start and stop."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import aiohttp
import anyio
import anyio.lowlevel
import pyarrow as pa
import pyarrow.parquet
import pytest

from kmr.embedded.query import ServerError
from kmr.embedded.server import EmbeddedClickHouse

from .statements import SPINNING, TABLE, count

if TYPE_CHECKING:
    from pathlib import Path

    from tests.framework.embedded.conftest import Ask


async def test_it_is_alive(ask: Ask) -> None:
    for path in ("/ping", "/"):
        answer = await ask(method="GET", path=path)
        assert (answer.status, answer.text) == (200, "Ok.\n")
    assert (await ask(method="GET", path="/nowhere")).status == 404


async def test_a_result_comes_in_the_format_that_is_asked_for(ask: Ask) -> None:
    answer = await ask("SELECT 1 AS x FORMAT JSON")
    assert json.loads(answer.body)["data"] == [{"x": 1}]
    assert answer.headers["X-ClickHouse-Format"] == "JSON"
    assert (await ask("SELECT 1, 'a'", default_format="CSV")).text == '1,"a"\n'
    assert (
        await ask("SELECT 1", headers={"X-ClickHouse-Format": "CSVWithNames"})
    ).text == '"1"\n1\n'
    arrow = await ask("SELECT number FROM numbers(3) FORMAT ArrowStream")
    assert pa.ipc.open_stream(arrow.body).read_all().column(0).to_pylist() == [0, 1, 2]
    assert "X-ClickHouse-Format" not in (await ask(TABLE)).headers


async def test_an_answer_names_the_query_and_what_it_did(ask: Ask) -> None:
    await ask(TABLE)
    answer = await ask("INSERT INTO t VALUES (1, 'a'), (2, 'b')", query_id="mine")
    assert answer.headers["X-ClickHouse-Query-Id"] == "mine"
    assert json.loads(answer.headers["X-ClickHouse-Summary"])["written_rows"] == "2"
    answer = await ask("SELECT * FROM t")
    summary = json.loads(answer.headers["X-ClickHouse-Summary"])
    assert (summary["read_rows"], summary["result_rows"]) == ("2", "2")


@pytest.mark.parametrize(
    ("statement", "status", "code", "message"),
    [
        ("SELECT * FROM nope", 404, 60, "(UNKNOWN_TABLE)"),
        ("SELECT nope", 500, 47, "(UNKNOWN_IDENTIFIER)"),
        ("SELEC 1", 400, 62, "(SYNTAX_ERROR)"),
        ("SELECT 1; DROP TABLE t", 400, 62, "Multi-statements"),
        ("SELECT throwIf(1)", 500, 395, "(FUNCTION_THROW_IF_VALUE_IS_NON_ZERO)"),
        ("SELECT 1 INTO OUTFILE 'x'", 500, 358, "INTO OUTFILE"),
        ("", 400, 62, "empty"),
    ],
)
async def test_an_error_has_a_status_a_code_and_the_message_of_clickhouse(
    ask: Ask, statement: str, status: int, code: int, message: str
) -> None:
    answer = await ask(statement)
    assert (answer.status, answer.code) == (status, code)
    assert answer.text.startswith(f"Code: {code}. DB::Exception: ")
    assert message in answer.text
    assert "(version " in answer.text


async def test_an_insert_that_the_table_refuses_is_an_error_and_writes_nothing(ask: Ask) -> None:
    await ask("CREATE TABLE t (a UInt32, CONSTRAINT c CHECK a < 10) ENGINE = MergeTree ORDER BY a")
    answer = await ask(b"1\n2\n10\n", query="INSERT INTO t FORMAT TSV")
    assert (answer.status, answer.code) == (500, 469)
    assert await count(ask) == 0
    answer = await ask(b"1\nx\n", query="INSERT INTO t FORMAT TSV")
    assert (answer.status, answer.code) == (500, 27)
    assert await count(ask) == 0


async def test_a_get_request_changes_nothing(ask: Ask) -> None:
    await ask(TABLE)
    for statement in (
        "DROP TABLE t",
        "INSERT INTO t VALUES (1, 'a')",
        "INSERT INTO t SELECT 1, ''",
    ):
        for method in ("GET", "HEAD"):
            answer = await ask(method=method, query=statement)
            assert (answer.status, answer.code) == (500, 164)
    assert await count(ask) == 0


async def test_other_web_pages_cannot_query(ask: Ask) -> None:
    assert (await ask("SELECT 1", headers={"Origin": "https://evil.example"})).code == 497
    assert (await ask("SELECT 1", headers={"Origin": "null"})).code == 497
    assert (await ask("SELECT 1", headers={"Origin": "http://localhost:3000"})).text == "1\n"
    rebound = await ask(method="GET", query="SELECT 1", headers={"Host": "evil.example:8123"})
    assert rebound.code == 497


async def test_a_query_whose_client_goes_away_is_stopped(
    server: EmbeddedClickHouse, ask: Ask
) -> None:
    running = "SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'spinning'"
    async with aiohttp.ClientSession() as session:
        with anyio.fail_after(60):
            async with asyncio.TaskGroup() as tasks:
                request = session.post(server.url, data=SPINNING, params={"query_id": "spinning"})
                spinning = tasks.create_task(request.__aenter__())
                while (await ask(running)).text != "1\n":
                    await anyio.lowlevel.checkpoint()
                spinning.cancel()
            while (await ask(running)).text != "0\n":
                await anyio.lowlevel.checkpoint()


async def test_a_running_query_does_not_hold_up_the_end_and_tables_persist(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with anyio.fail_after(60):
        async with aiohttp.ClientSession() as session:
            async with EmbeddedClickHouse(path, stop_timeout=0.1) as server:

                async def run(statement: str) -> str:
                    async with session.post(server.url, data=statement) as answer:
                        return await answer.text()

                for statement in (TABLE, "INSERT INTO t VALUES (1, 'a')"):
                    await run(statement)
                spinning = asyncio.create_task(session.post(server.url, data=SPINNING).__aenter__())
                processes = "SELECT count() FROM system.processes WHERE query LIKE '%sipHash64%'"
                while await run(processes) != "2\n":  # this one is the second
                    await anyio.lowlevel.checkpoint()
            with pytest.raises(aiohttp.ClientError):
                await spinning
            async with (
                EmbeddedClickHouse(path) as server,
                session.post(server.url, data="SELECT * FROM t") as response,
            ):
                assert await response.text() == "1\ta\n"


async def test_a_port_in_use_is_named_and_the_directory_is_released(
    server: EmbeddedClickHouse, tmp_path: Path
) -> None:
    taken = EmbeddedClickHouse(server.path, port=server.port)
    with pytest.raises(
        ServerError, match=rf"127\.0\.0\.1:{server.port}: Address already in use.*--port"
    ):
        await taken.__aenter__()


async def test_an_error_with_bytes_that_are_no_text_is_an_answer(ask: Ask) -> None:
    answer = await ask("SELECT toUInt8(unhex('fffe41'))")
    if answer.code == 1002:  # Python 3.11.2
        assert "it is no UTF-8" in answer.text
    else:
        assert answer.text.startswith("Code: 6. DB::Exception: Cannot parse string '\\xff")
