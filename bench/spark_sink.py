"""`python -m bench.spark_sink`: what one flush costs, by every way to bring rows to Spark that was tried.

The rows have a topic, partition, offset, timestamp, carrier and 50 bytes of text. Every way has warm-up
rounds first (the JVM compiles what it runs often), then the median of several rounds is shown, in turn, so
that all ways see the same machine. The Spark Connect server has 2 GB: with its default of 1 GB, DataFrames of
500,000 rows from a client end it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from kmr.record import Range, Rows
from kmr.reducers.reducer import Context
from kmr.sinks.spark.writer import SparkWriter
from kmr.spark.jvm import JvmNotFound, find_jvm
from kmr.spark.session import is_connect, open_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = (32_768, 500_000)
COLUMNS = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, carrier STRING, note STRING"
)
CARRIERS = ("AA", "B6", "DL", "UA")
WARM_UPS = 2

Way = tuple[str, str, "Callable[[Rows], None]"]


def rows_of(size: int, first: int) -> Rows:
    """Rows of consecutive offsets of one partition."""
    offsets = np.arange(first, first + size)
    text = secrets.token_hex(25)
    table = pa.table(
        {
            "topic": pa.repeat("flights", size),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), size),
            "offset": pa.array(offsets),
            "timestamp": pa.array(offsets, pa.timestamp("us", "UTC")),
            "carrier": pa.array(CARRIERS).take(pa.array(offsets % len(CARRIERS), pa.int64())),
            "note": pa.array([f"{text[:42]}{offset:08x}" for offset in offsets.tolist()]),
        }
    )
    return Rows(table, (Range("flights", 0, first, first + size - 1),), offsets)


def through_writer(**options: Any) -> Callable[[Rows], None]:
    """A flush of SparkWriter, opened once."""
    writer = SparkWriter(**options)
    anyio.run(writer.open, Context("bench", "reduce-1"))

    def flush(rows: Rows) -> None:
        writer.add(rows)
        writer.flush()
        writer.reset()

    return flush


def ways(directory: Path, master: str) -> list[Way]:
    """Name, guarantee, and what to call."""
    local = {"spark.sql.warehouse.dir": str(directory / "warehouse"), "spark.log.level": "ERROR"}
    session = open_session(master, settings=None if is_connect(master) else local)
    for name, format_ in (("files", "parquet"), ("appended", "orc")):
        session.sql(f"DROP TABLE IF EXISTS {name}")
        session.sql(f"CREATE TABLE {name} ({COLUMNS}) USING {format_}")

    def append(path: str, partitions: int | None) -> Callable[[Rows], None]:
        def write(rows: Rows) -> None:
            frame = session.createDataFrame(rows.table)
            frame = frame if partitions is None else frame.coalesce(partitions)
            frame.write.mode("append").parquet(str(directory / path))

        return write

    path = str(directory / "out")
    found: list[Way] = [
        (
            "pyarrow file + REFRESH TABLE (chosen for tables)",
            "exactly once",
            through_writer(table="files", master=master),
        ),
        (
            "DataFrame.write.parquet, append",
            "at least once",
            append("df", None),
        ),
        (
            "the same, as one file (coalesce)",
            "at least once",
            append("df-1", 1),
        ),
        (
            "DataFrame into a table (ORC)",
            "at least once",
            through_writer(table="appended", master=master),
        ),
        (
            "DataFrame, a directory overwritten (ORC)",
            "exactly once",
            through_writer(path=f"{path}-orc", format="orc", master=master),
        ),
        (
            "transform, its result a directory overwritten",
            "exactly once",
            through_writer(path=f"{path}-transform", transform=_keep, master=master),
        ),
    ]
    if is_connect(master):
        return [(f"Spark Connect: {name}", guarantee, call) for name, guarantee, call in found]
    return found


def _keep(frame: Any) -> Any:
    return frame.where("offset >= 0")


def measure(directory: Path, master: str, rounds: int) -> list[tuple[str, str, dict[int, float]]]:
    """Median seconds of a flush, by name and size."""
    tried = ways(directory, master)
    taken: dict[tuple[str, int], list[float]] = {}
    first = 0
    for size in SIZES:
        for number in range(WARM_UPS + rounds):
            rows = rows_of(size, first)
            first += size
            for name, _, write in tried:
                began = time.perf_counter()
                write(rows)
                if number >= WARM_UPS:
                    taken.setdefault((name, size), []).append(time.perf_counter() - began)
    return [
        (name, guarantee, {size: statistics.median(taken[name, size]) for size in SIZES})
        for name, guarantee, _ in tried
    ]


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """A Spark Connect server on a free port of loopback; yields its address."""
    import pyspark

    home = Path(pyspark.__file__).parent
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse-connect"),
    }
    server_class = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = "org.apache.spark.deploy.SparkSubmit"
    command = [
        str(home / "bin" / "spark-class"),
        submit,
        "--master",
        "local[2]",
        "--class",
        server_class,
    ]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    environment = {"JAVA_HOME": str(find_jvm().home), "SPARK_LOCAL_IP": "127.0.0.1"}
    log = directory / "connect.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, env=os.environ | environment, stdout=errors, stderr=errors
        ) as server,
    ):
        try:
            deadline = time.monotonic() + 60
            while not (found := re.search(r"server started at: .*?:(\d+)", log.read_text())):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"Spark Connect did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.2)
            yield f"sc://127.0.0.1:{found[1]}"
        finally:
            server.kill()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_sink", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.master is not None:
        print(json.dumps(measure(arguments.directory, arguments.master, arguments.rounds)))
        return
    console = Console(width=120)
    try:
        find_jvm()
    except JvmNotFound as error:
        console.print(f"Spark is not measured: {error}", soft_wrap=True)
        return
    directory = Path(tempfile.mkdtemp(prefix="kmr-bench-"))
    results: list[tuple[str, str, dict[str, float]]] = []
    try:
        # One process each: a process has one session.
        results += _apart(directory, "local[2]", arguments.rounds)
        if importlib.util.find_spec("grpc") is None:
            console.print(
                "Spark Connect is not measured: pip install 'pyspark[connect]'", markup=False
            )
        else:
            with connect_server(directory) as url:
                results += _apart(directory, url, arguments.rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _show(console, results)


def _apart(directory: Path, master: str, rounds: int) -> list[tuple[str, str, dict[str, float]]]:
    command = [sys.executable, "-m", "bench.spark_sink", "--rounds", str(rounds)]
    command += ["--master", master, "--directory", str(directory)]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    found: list[tuple[str, str, dict[str, float]]] = json.loads(output.splitlines()[-1])
    return found


def _show(console: Console, results: list[tuple[str, str, dict[str, float]]]) -> None:
    import pyspark

    table = Table(
        title=f"Seconds of a flush (median), {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, Spark {pyspark.__version__}, {datetime.now(UTC):%Y-%m-%d}",
        title_justify="left",
    )
    table.add_column("way")
    table.add_column("the same range again")
    for size in SIZES:
        table.add_column(f"{size:,} rows", justify="right")
    for name, guarantee, seconds in results:
        table.add_row(name, guarantee, *(f"{seconds[str(size)]:.3f}" for size in SIZES))
    console.print(table)


if __name__ == "__main__":
    main()
