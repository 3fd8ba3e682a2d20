"""SparkWriter on Spark Connect: a real server on loopback, which is restarted, and a client without a JVM.

The client is a process of its own: a session of Spark Connect and one of a JVM exclude each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kmr.chaos.services import free_port
from kmr.spark.jvm import find_jvm, lean_home

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

CLIENT = """
import sys
import anyio, copy, numpy as np, pyarrow as pa, pytest
from kmr.errors import StrategyError
from kmr.record import Range, Rows
from kmr.reducers.reducer import Context
from kmr.sinks.spark.writer import SparkWriter

url, out = sys.argv[1:]
sys.stdin.readline()  # the server has started

def even(frame):
    return frame.where("offset % 2 = 0")

# Each thread has its own active session; the writers share one in all threads.
async def sessions():
    from pyspark.sql import SparkSession
    users_own = SparkSession.builder.remote(url).create()
    first, second = (SparkWriter(master=url, path=out, transform=even) for _ in range(2))
    context = Context("g", "reduce-1")
    await first.open(context)
    copies = [copy.deepcopy(second) for _ in range(5)]
    async with anyio.create_task_group() as tasks:
        for each in copies:
            tasks.start_soon(each.open, context)
    ids = {each.session.get().session_id for each in (first, *copies)}
    ids.add((await anyio.to_thread.run_sync(second.session.get)).session_id)
    assert len(ids) == 1
    assert users_own.session_id not in ids
    with pytest.raises(StrategyError, match="so another one cannot use sc://elsewhere:1"):
        await SparkWriter(master="sc://elsewhere:1", path=out, transform=even).open(context)
    await first.close()
    assert second.session.get().range(2).count() == 2
    for each in copies:
        await each.close()
    assert users_own.range(3).count() == 3
    users_own.stop()

async def main():
    await sessions()
    writer = SparkWriter(master=url, path=out, transform=even)
    copies = [copy.deepcopy(writer), copy.deepcopy(writer)]
    for each in copies:
        await each.open(Context("g", "reduce-1"))
    assert copies[0].session.get() is copies[1].session.get()
    for number, each in enumerate([*copies, *copies]):
        offsets = np.arange(number * 10, number * 10 + 10)
        rows = Rows(pa.table({"offset": offsets}), (Range("t", 0, *map(int, offsets[[0, -1]])),), offsets)
        each.add(rows)
        if number == 2:
            print("restart", flush=True)
            sys.stdin.readline()
            try:
                each.flush()
            except Exception:  # the server has forgotten the session; the reduce stage retries
                pass
        each.flush()
        each.reset()
    found = sorted(row.offset for row in copies[0].session.get().read.parquet(out).collect())
    assert found == list(range(0, 40, 2)), found
    for each in copies:
        await each.close()
    print("done", flush=True)

anyio.run(main)
"""


@contextmanager
def connect_server(directory: Path, port: int) -> Iterator[None]:
    """A Spark Connect server at a port."""
    import pyspark

    package = Path(pyspark.__file__).parent
    home = lean_home(package) or package
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.log.level": "INFO",
    }
    command = [
        *(str(home / "bin" / "spark-class"), "org.apache.spark.deploy.SparkSubmit"),
        *("--master", "local[2]", "--class"),
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    with subprocess.Popen(
        command,
        cwd=directory,
        env={
            **os.environ,
            "JAVA_HOME": str(find_jvm().home),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            lines = []
            for line in server.stderr:
                lines.append(line)
                if f":{port}" in line and "Spark Connect server started at: " in line:
                    break
            else:
                pytest.fail("the server did not start:\n" + "".join(lines[-20:]))
            # Drain the pipe: its further output must not fill it.
            drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
            yield
        finally:
            server.kill()
            server.wait(60)
    drain.wait(60)


@pytest.mark.usefixtures("quick_jvms")
def test_a_client_writes_through_a_server_and_continues_after_its_restart(tmp_path: Path) -> None:
    pytest.importorskip("grpc_status")
    (tmp_path / "client.py").write_text(CLIENT)
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "client.py", f"sc://127.0.0.1:{port}", str(tmp_path / "out")],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            assert client.stdin is not None
            assert client.stdout is not None
            with connect_server(tmp_path, port):
                client.stdin.write("begin\n")
                client.stdin.flush()
                assert client.stdout.readline() == "restart\n"
            with connect_server(tmp_path, port):
                output, _ = client.communicate("\n", timeout=600)
        finally:
            client.kill()
    assert client.returncode == 0
    assert output.splitlines()[-1] == "done"
