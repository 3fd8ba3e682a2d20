"""The embedded ClickHouse over HTTP: what it answers to plain requests."""

from __future__ import annotations

import asyncio
import io
import json
import struct
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import anyio.lowlevel
import cramjam
import pyarrow as pa
import pyarrow.parquet
import pytest

from demo.clickhouse.errors import ServerError
from demo.clickhouse.server import EmbeddedClickHouse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.demo.conftest import Ask

TABLE = (
    "CREATE TABLE t (a UInt32, s String) ENGINE = MergeTree ORDER BY a "
    "SETTINGS non_replicated_deduplication_window = 100"
)
SPINNING = "SELECT count() FROM numbers(1000000000000) WHERE sipHash64(number) = 7"


async def count(ask: Ask) -> int:
    return int((await ask("SELECT count() FROM t")).body)


async def test_it_is_alive(ask: Ask) -> None:
    for path in ("/ping", "/", "/replicas_status"):
        answer = await ask(method="GET", path=path)
        assert (answer.status, answer.text) == (200, "Ok.\n")
    assert (await ask(method="GET", path="/nowhere")).status == 404


async def test_a_statement_may_stand_in_the_parameter_or_the_body_or_both(ask: Ask) -> None:
    assert (await ask(method="GET", query="SELECT 1")).text == "1\n"
    assert (await ask(query="SELECT 1")).text == "1\n"
    assert (await ask("SELECT 1")).text == "1\n"
    assert (await ask("+ 1", query="SELECT 1")).text == "2\n"


async def test_a_result_comes_in_the_format_that_is_asked_for(ask: Ask) -> None:
    answer = await ask("SELECT 1 AS x FORMAT JSON")
    assert json.loads(answer.body)["data"] == [{"x": 1}]
    assert answer.headers["X-ClickHouse-Format"] == "JSON"
    assert answer.headers["Content-Type"].startswith("application/json")
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


def parquet(table: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue()


def arrow_stream(table: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


ROWS = pa.table({"a": pa.array([59, 10], pa.uint32()), "s": [";\n\0'", "FORMAT"]})
BODIES = {
    "TSV": b"59\t;\\n\\0'\n10\tFORMAT\n",
    "CSV": b'59,";\n\0\'"\n10,FORMAT\n',
    "JSONEachRow": b'{"a": 59, "s": ";\\n\\u0000\'"}\n{"a": 10, "s": "FORMAT"}',
    "Values": b"(59, ';\\n\\0\\''), (10, 'FORMAT');",
    "RowBinary": struct.pack("<IB4sIB6s", 59, 4, b";\n\0'", 10, 6, b"FORMAT"),
    "ArrowStream": arrow_stream(ROWS),
    "Parquet": parquet(ROWS),
}


@pytest.mark.parametrize("data_format", BODIES)
@pytest.mark.parametrize("where", ["parameter", "body"])
async def test_rows_arrive_as_they_were_sent_whatever_bytes_they_have(
    ask: Ask, data_format: str, where: str
) -> None:
    await ask(TABLE)
    statement = f"INSERT INTO t (a, s) FORMAT {data_format}"
    if where == "parameter":
        answer = await ask(BODIES[data_format], query=statement)
    else:
        answer = await ask(statement.encode() + b"\n" + BODIES[data_format])
    assert (answer.status, answer.text) == (200, "")
    arrow = await ask("SELECT s FROM t ORDER BY a DESC FORMAT ArrowStream")
    assert pa.ipc.open_stream(arrow.body).read_all().column(0).to_pylist() == [";\n\0'", "FORMAT"]


ENCODERS: dict[str, Callable[[bytes], Any]] = {
    "gzip": cramjam.gzip.compress,
    "deflate": cramjam.zlib.compress,
    "br": cramjam.brotli.compress,
    "zstd": cramjam.zstd.compress,
    "lz4": cramjam.lz4.compress,
}


@pytest.mark.parametrize("encoding", ENCODERS)
async def test_bodies_and_answers_may_be_compressed(ask: Ask, encoding: str) -> None:
    await ask(TABLE)
    rows = b"".join(b"%d\tthe same again\n" % n for n in range(10_000))
    headers = {"Content-Encoding": encoding}
    compress = ENCODERS[encoding]
    for body, parameters in (
        (compress(rows), {"query": "INSERT INTO t FORMAT TSV"}),
        (compress(b"INSERT INTO t FORMAT TSV\n" + rows), {}),
    ):
        answer = await ask(bytes(body), headers=headers, **parameters)
        assert answer.text == ""
        assert await count(ask) == 10_000
        await ask("TRUNCATE TABLE t")
    query = bytes(compress(b"SELECT number FROM numbers(10000)"))
    answer = await ask(
        query,
        headers={**headers, "Accept-Encoding": f"what, {encoding}"},
        enable_http_compression=1,
    )
    assert answer.headers["Content-Encoding"] == encoding
    decompress = getattr(
        cramjam, {"br": "brotli", "deflate": "zlib"}.get(encoding, encoding)
    ).decompress
    assert bytes(decompress(answer.body)).count(b"\n") == 10_000


async def test_a_compression_that_is_not_known_or_damaged_is_an_error(ask: Ask) -> None:
    answer = await ask(b"x", headers={"Content-Encoding": "rot13"})
    assert (answer.status, answer.code) == (500, 89)
    answer = await ask(b"no gzip", headers={"Content-Encoding": "gzip"})
    assert "Cannot decompress" in answer.text
    answer = await ask("SELECT 1", compress=1)
    assert (answer.status, answer.code) == (501, 48)


@pytest.mark.parametrize(
    ("statement", "status", "code", "message"),
    [
        ("SELECT * FROM nope", 404, 60, "(UNKNOWN_TABLE)"),
        ("SELECT nope", 404, 47, "(UNKNOWN_IDENTIFIER)"),
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
    assert (answer.status, answer.code) == (400, 27)
    assert await count(ask) == 0


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


async def test_settings_are_parameters_and_unknown_ones_do_no_harm(ask: Ask) -> None:
    answer = await ask("SELECT getSetting('max_threads')", max_threads=3, no_such_setting=1)
    assert answer.text == "3\n"
    assert (await ask("SELECT getSetting('max_threads') = 3")).text == "0\n", "only for one query"
    assert (await ask("SELECT 1", max_threads="many")).status == 400
    assert (await ask("SELECT 1", max_execution_time=1)).text == "1\n"


async def test_values_are_bound_to_parameters_and_the_database_is_one(ask: Ask) -> None:
    answer = await ask("SELECT {x:UInt8} + 1, {s:String}", param_x=4, param_s="a'\\tb")
    assert answer.text == "5\ta\\'\\tb\n"
    assert (await ask("SELECT currentDatabase()", database="system")).text == "system\n"
    headers = {"X-ClickHouse-Database": "system"}
    assert (await ask("SELECT currentDatabase()", headers=headers)).text == "system\n"
    assert (await ask("SELECT 1", database="nope")).code == 81


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


async def test_a_session_may_be_asked_to_exist_and_is_for_one_query_at_a_time(ask: Ask) -> None:
    assert (await ask("SELECT 1", session_id="s", session_check=1)).code == 372
    assert (await ask("SELECT 1", session_id="s", session_timeout="never")).code == 374
    async with asyncio.TaskGroup() as tasks:
        sleeping = tasks.create_task(ask("SELECT sleep(0.5)", session_id="s", query_id="sleeping"))
        while (
            b"sleeping"
            not in (await ask("SELECT Settings['log_comment'] FROM system.processes")).body
        ):
            await anyio.lowlevel.checkpoint()
        assert (await ask("SELECT 1", session_id="s")).code == 373
    assert sleeping.result().status == 200
    assert (await ask("SELECT 1", session_id="s", session_check=1)).status == 200


async def test_a_form_brings_the_query_and_temporary_tables(ask: Ask) -> None:
    form = aiohttp.FormData()
    form.add_field(
        "query", "SELECT sum(_1), {x:UInt8} FROM numbers_of_mine", content_type="text/plain"
    )
    form.add_field("param_x", "7", content_type="text/plain")
    form.add_field("numbers_of_mine", io.BytesIO(b"1\n2\n"), filename="n.tsv")
    assert (await ask(form, numbers_of_mine_types="UInt8")).text == "3\t7\n"
    form = aiohttp.FormData()
    form.add_field("x", io.BytesIO(b"1\n"), filename="n.tsv")
    assert "x_structure" in (await ask(form, query="SELECT 1")).text


async def test_a_body_above_the_limit_is_refused(ask: Ask) -> None:
    await ask(TABLE)
    rows = b"1\ta\n" * 300_000
    answer = await ask(io.BytesIO(rows), query="INSERT INTO t FORMAT TSV")
    assert (answer.status, answer.code) == (413, 229)
    assert "--max-body-bytes" in answer.text
    assert await count(ask) == 0


async def test_other_web_pages_cannot_query(ask: Ask) -> None:
    assert (await ask("SELECT 1", headers={"Origin": "https://evil.example"})).code == 497
    assert (await ask("SELECT 1", headers={"Origin": "null"})).code == 497
    assert (await ask("SELECT 1", headers={"Origin": "http://localhost:3000"})).text == "1\n"
    rebound = await ask(method="GET", query="SELECT 1", headers={"Host": "evil.example:8123"})
    assert rebound.code == 497


async def test_an_insert_whose_client_dies_while_sending_writes_nothing(
    server: EmbeddedClickHouse, ask: Ask
) -> None:
    await ask(TABLE)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = "POST /?query=INSERT+INTO+t+FORMAT+TSV HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    writer.write(head.encode() + b"1\ta\n" * 50)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    assert await count(ask) == 0


async def test_a_query_whose_client_goes_away_is_stopped(
    server: EmbeddedClickHouse, ask: Ask
) -> None:
    running = "SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'spinning'"
    async with aiohttp.ClientSession() as session:
        with anyio.fail_after(20):
            async with asyncio.TaskGroup() as tasks:
                request = session.post(server.url, data=SPINNING, params={"query_id": "spinning"})
                spinning = tasks.create_task(request.__aenter__())
                while (await ask(running)).text != "1\n":
                    await anyio.lowlevel.checkpoint()
                spinning.cancel()
            while (await ask(running)).text != "0\n":
                await anyio.lowlevel.checkpoint()


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


async def test_a_running_query_does_not_hold_up_the_end_and_tables_persist(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with anyio.fail_after(20):
        async with aiohttp.ClientSession() as session:
            async with EmbeddedClickHouse(path, stop_timeout=0.1) as server:
                for statement in (TABLE, "INSERT INTO t VALUES (1, 'a')"):
                    await (await session.post(server.url, data=statement)).read()
                spinning = asyncio.create_task(session.post(server.url, data=SPINNING).__aenter__())
                processes = "SELECT count() FROM system.processes WHERE query LIKE '%sipHash64%'"
                while (
                    await (await session.post(server.url, data=processes)).text()
                ) != "2\n":  # this one is the second
                    await anyio.lowlevel.checkpoint()
            with pytest.raises(aiohttp.ClientError):
                await spinning
            async with (
                EmbeddedClickHouse(path) as server,
                session.post(server.url, data="SELECT * FROM t") as response,
            ):
                assert await response.text() == "1\ta\n"


async def test_a_port_that_is_taken_is_told_and_the_directory_is_free_again(
    server: EmbeddedClickHouse, tmp_path: Path
) -> None:
    taken = EmbeddedClickHouse(server.path, port=server.port)
    with pytest.raises(
        ServerError, match=rf"127\.0\.0\.1:{server.port}: Address already in use.*--port"
    ):
        await taken.__aenter__()


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
