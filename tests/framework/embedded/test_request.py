"""Reading requests: statements, rows in every format, compression, forms, parameters, limits."""

from __future__ import annotations

import asyncio
import io
import struct
from typing import TYPE_CHECKING, Any

import aiohttp
import cramjam
import pyarrow as pa
import pyarrow.parquet
import pytest

from .statements import TABLE, count

if TYPE_CHECKING:
    from collections.abc import Callable

    from kmr.embedded.server import EmbeddedClickHouse
    from tests.framework.embedded.conftest import Ask


async def test_a_statement_may_stand_in_the_parameter_or_the_body_or_both(ask: Ask) -> None:
    assert (await ask(method="GET", query="SELECT 1")).text == "1\n"
    assert (await ask(query="SELECT 1")).text == "1\n"
    assert (await ask("SELECT 1")).text == "1\n"
    assert (await ask("+ 1", query="SELECT 1")).text == "2\n"


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


async def test_values_are_bound_to_parameters_and_the_database_is_one(ask: Ask) -> None:
    answer = await ask("SELECT {x:UInt8} + 1, {s:String}", param_x=4, param_s="a'\\tb")
    assert answer.text == "5\ta\\'\\tb\n"
    assert (await ask("SELECT currentDatabase()", database="system")).text == "system\n"
    headers = {"X-ClickHouse-Database": "system"}
    assert (await ask("SELECT currentDatabase()", headers=headers)).text == "system\n"
    assert (await ask("SELECT 1", database="nope")).code == 81


async def test_a_form_brings_the_query_and_temporary_tables(ask: Ask) -> None:
    form = aiohttp.FormData()
    form.add_field(
        "query", "SELECT sum(n), {x:UInt8} FROM numbers_of_mine", content_type="text/plain"
    )
    form.add_field("param_x", "7", content_type="text/plain")
    form.add_field("numbers_of_mine", io.BytesIO(b"1\n2\n"), filename="n.tsv")
    assert (await ask(form, numbers_of_mine_structure="n UInt8")).text == "3\t7\n"
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
