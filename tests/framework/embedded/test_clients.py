"""Unmodified clients against the embedded ClickHouse: clickhouse-connect, curl."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import clickhouse_connect
import pyarrow as pa
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from clickhouse_connect.driver.external import ExternalData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clickhouse_connect.driver.client import Client

KMR = str(Path(sys.executable).with_name("kmr"))
COLUMNS = (
    "(a UInt32, t DateTime64(3, 'UTC'), s Nullable(String), l Array(UInt8), m Map(String, UInt8))"
)
ROW = (7, datetime(2020, 1, 1, 0, 0, 0, 5000), ";\n'\0", [1, 2], {"k": 3})  # noqa: DTZ001  as clients read it


@pytest.fixture(params=[False, True, "zstd", "gzip"], ids=lambda compress: f"compress={compress}")
def client(clickhouse_url: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    """The synchronous client as it comes: with a session, with and without compression."""
    with clickhouse_connect.get_client(dsn=clickhouse_url, compress=request.param) as client:
        client.command(f"CREATE OR REPLACE TABLE clients {COLUMNS} ENGINE = MergeTree ORDER BY a")
        yield client


def test_the_synchronous_client_inserts_and_reads(client: Client) -> None:
    assert client.ping()
    summary = client.insert("clients", [ROW] * 3, column_names=list("atslm"))
    assert summary.written_rows == 3
    assert client.query("SELECT * FROM clients").result_rows == [ROW] * 3
    assert client.query("SELECT * FROM clients LIMIT 0").column_names == tuple("atslm")
    assert client.command("SELECT count() FROM clients") == 3
    assert client.command("SELECT 1 WHERE 0") == ""
    bound = client.query("SELECT {x:UInt8}, {s:String}", parameters={"x": 3, "s": "tab\t'"})
    assert bound.result_rows == [(3, "tab\t'")]
    long = client.query("SELECT length({s:String})", parameters={"s": "x" * 100_000})
    assert long.result_rows == [(100_000,)]


def test_the_synchronous_client_speaks_arrow_and_streams(client: Client) -> None:
    client.insert_arrow("clients", pa.table({"a": pa.array(range(1000), pa.uint32())}))
    assert client.query_arrow("SELECT sum(a) FROM clients").to_pylist() == [{"sum(a)": 499_500}]
    with client.query_row_block_stream("SELECT number FROM numbers(200000)") as stream:
        assert sum(len(block) for block in stream) == 200_000
    with client.query_arrow_stream("SELECT number FROM numbers(200000)") as stream:
        assert sum(batch.num_rows for batch in stream) == 200_000
    data = ExternalData(
        file_name="e.csv", data=b"1,a\n2,b\n", fmt="CSV", structure="x UInt8, y String"
    )
    assert client.query("SELECT * FROM e", external_data=data).result_rows == [(1, "a"), (2, "b")]


def test_the_synchronous_client_reads_errors(client: Client) -> None:
    with pytest.raises(DatabaseError, match="nowhere") as raised:
        client.query("SELECT * FROM nowhere")
    assert (raised.value.code, raised.value.name) == (60, "UNKNOWN_TABLE")


def test_the_token_of_one_insert_of_a_session_does_not_touch_the_next(client: Client) -> None:
    client.command("ALTER TABLE clients MODIFY SETTING non_replicated_deduplication_window = 100")
    for _ in range(2):
        token = {"insert_deduplication_token": "once"}
        client.insert("clients", [[1]], column_names=["a"], settings=token)
    client.insert("clients", [[2]], column_names=["a"])
    assert client.query("SELECT a FROM clients ORDER BY a").result_rows == [(1,), (2,)]


async def test_the_asynchronous_client_inserts_and_reads(clickhouse_url: str) -> None:
    async with await clickhouse_connect.get_async_client(dsn=clickhouse_url) as client:
        await client.command(
            f"CREATE OR REPLACE TABLE clients {COLUMNS} ENGINE = MergeTree ORDER BY a"
        )
        await client.insert("clients", [ROW] * 3, column_names=list("atslm"))
        assert (await client.query("SELECT * FROM clients")).result_rows == [ROW] * 3
        await client.insert_arrow("clients", pa.table({"a": pa.array([1], pa.uint32())}))
        table = await client.query_arrow("SELECT count() AS n FROM clients")
        assert table.to_pylist() == [{"n": 4}]
        stream = await client.query_row_block_stream("SELECT number FROM numbers(200000)")
        async with stream:
            assert sum([len(block) async for block in stream]) == 200_000
        with pytest.raises(DatabaseError, match="nowhere"):
            await client.query("SELECT * FROM nowhere")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_inserts_and_reads(clickhouse_url: str) -> None:
    def curl(*arguments: str, data: bytes = b"") -> str:
        command = ["curl", "-sS", *arguments]
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode()

    curl(clickhouse_url, "-d", "CREATE OR REPLACE TABLE curl (a UInt8) ENGINE = Memory")
    insert = f"{clickhouse_url}/?query=INSERT%20INTO%20curl%20FORMAT%20TSV"
    assert curl(insert, "--data-binary", "@-", data=b"1\n2\n") == ""
    assert curl(insert, "-T", "-", data=b"3\n") == "405: Method Not Allowed"
    assert curl(insert, "-X", "POST", "-T", "-", data=b"3\n") == "", "a body in chunks"
    assert curl(f"{clickhouse_url}/?query=SELECT+sum(a)+FROM+curl") == "6\n"
    compressed = curl(
        f"{clickhouse_url}/?enable_http_compression=1", "--compressed", "-d", "SELECT 'z'"
    )
    assert compressed == "z\n"


@pytest.mark.slow
def test_acknowledged_rows_and_tokens_survive_a_kill(
    tmp_path: Path,
) -> None:
    serve = [KMR, "clickhouse", "serve", "--data", str(tmp_path), "--port", "0"]
    for life in range(3):
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().split("answers on ")[1].split(",")[0]
            with closing(clickhouse_connect.get_client(dsn=url)) as client:
                client.command(
                    "CREATE TABLE IF NOT EXISTS kept (a UInt8) ENGINE = MergeTree ORDER BY a "
                    "SETTINGS non_replicated_deduplication_window = 100"
                )
                for number in range(life + 1):  # those of earlier lives are repetitions
                    token = {"insert_deduplication_token": f"token-{number}"}
                    client.insert("kept", [[number]], column_names=["a"], settings=token)
                kept = client.query("SELECT a FROM kept ORDER BY a").result_rows
                assert kept == [(number,) for number in range(life + 1)]
            server.kill()
