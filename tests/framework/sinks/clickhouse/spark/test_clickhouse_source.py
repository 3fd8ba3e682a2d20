"""`kmr-clickhouse`: what Spark writes is in the table once, also when a batch or a task is repeated."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from kmr.errors import StrategyError
from kmr.sinks.clickhouse.client import ClickHouseAddress, connect
from kmr.sinks.clickhouse.spark.clickhouse_source import ClickHouseSource, Options, _blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_names = (f"of_spark_{number}" for number in itertools.count())

DRIVER = """
import sys
from kmr.sinks import ClickHouseSource
from kmr.spark.session import open_session

url, table, files, checkpoint = sys.argv[1:]
spark = open_session("local[2]", planning_only=True)
spark.dataSource.register(ClickHouseSource)
stream = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(files)
query = (
    stream.repartition(2).writeStream.format("kmr-clickhouse").option("url", url)
    .option("table", table).option("create", "true").option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


@pytest.fixture
def table() -> str:
    return next(_names)


@pytest.fixture
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(ClickHouseSource)
    return spark


def numbers(url: str, table: str) -> list[int]:
    with connect(ClickHouseAddress.of(url)) as client:
        return [n for (n,) in client.query(f"SELECT n FROM {table} ORDER BY n").result_rows]


def tables(url: str, like: str) -> list[str]:
    with connect(ClickHouseAddress.of(url)) as client:
        sql = f"SELECT name FROM system.tables WHERE startsWith(name, '{like}') ORDER BY name"
        return [name for (name,) in client.query(sql).result_rows]


def test_a_data_frame_is_written_once_and_a_job_that_is_repeated_is_found(
    registered: SparkSession, clickhouse_url: str, table: str
) -> None:
    frame = registered.range(0, 1000, numPartitions=3).selectExpr("id AS n", "'x' AS name")
    writer = frame.write.format("kmr-clickhouse").mode("append").option("url", clickhouse_url)
    writer = writer.option("table", table).option("block_rows", "300")
    with pytest.raises(Exception, match=f"There is no table default.{table}"):
        writer.save()
    writer = writer.option("create", "true").option("order_by", "n").option("job", "monday")
    writer.save()
    writer.save()
    assert numbers(clickhouse_url, table) == list(range(1000))
    writer.option("job", "tuesday").save()
    assert len(numbers(clickhouse_url, table)) == 2000
    assert tables(clickhouse_url, table) == [table, f"{table}_kmr_batches"]
    with pytest.raises(Exception, match=f"default.{table} has no column more to write to"):
        frame.selectExpr("n", "1 AS more").write.format("kmr-clickhouse").mode("append").option(
            "url", clickhouse_url
        ).option("table", table).save()


def test_a_micro_batch_that_is_repeated_and_a_task_that_failed_double_nothing(
    registered: SparkSession, clickhouse_url: str, table: str, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()

    def run() -> None:
        stream = registered.readStream.schema("n long").json(str(files))
        query = (
            stream.repartition(2)
            .writeStream.format("kmr-clickhouse")
            .options(url=clickhouse_url, table=table, create="true", order_by="n")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    for number in range(2):
        rows = (json.dumps({"n": n}) for n in range(100 * number, 100 * number + 100))
        (files / f"{number}.json").write_text("\n".join(rows))
        run()
        commits = tmp_path / "checkpoint" / "commits"
        for path in (commits / str(number), commits / f".{number}.crc"):
            path.unlink(missing_ok=True)  # as if the driver had died before it noted the batch
        run()
        assert numbers(clickhouse_url, table) == list(range(100 * number + 100))
    assert tables(clickhouse_url, table) == [table, f"{table}_kmr_batches"]


@pytest.mark.slow
def test_a_driver_that_is_killed_loses_and_doubles_nothing(
    clickhouse_url: str, table: str, tmp_path: Path, quick_jvms: None
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    count = 12
    for number in range(count):
        rows = (json.dumps({"n": n}) for n in range(50 * number, 50 * number + 50))
        (files / f"{number:03}.json").write_text("\n".join(rows))
    (tmp_path / "driver.py").write_text(DRIVER)
    arguments = [clickhouse_url, table, str(files), str(tmp_path / "checkpoint")]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, tmp_path / "driver.py", *arguments],
            cwd=tmp_path,
            start_new_session=True,
        )

    with start() as driver:
        while driver.poll() is None:
            there = tables(clickhouse_url, table)
            if table in there and len(numbers(clickhouse_url, table)) >= 150:
                break
            time.sleep(0.02)
        os.killpg(driver.pid, signal.SIGKILL)
    with start() as driver:
        assert driver.wait(300) == 0
    assert numbers(clickhouse_url, table) == list(range(50 * count))
    assert tables(clickhouse_url, table) == [table, f"{table}_kmr_batches"]


def test_options_that_are_wrong_say_so() -> None:
    for given, message in (
        ({}, r"set option\(.table., .hits.\)"),
        ({"tabel": "t"}, "no option tabel; did you mean table"),
        ({"table": "t", "create": "yes"}, "create is true or false, not 'yes'"),
        ({"table": "t", "block_rows": "0"}, "block_rows is 1 to 1000000, not '0'"),
        ({"table": "t", "extra_columns": "drop"}, "extra_columns is error or ignore"),
        ({"table": "t", "engine": "Log"}, "does not recognise a repeated INSERT"),
    ):
        options: Any = given
        with pytest.raises(StrategyError, match=message):
            ClickHouseSource(options)
    with pytest.raises(StrategyError, match="kmr-clickhouse appends"):
        ClickHouseSource({"table": "t"}).writer(None, overwrite=True)  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match=r"job is for df\.write"):
        ClickHouseSource({"table": "t", "job": "j"}).streamWriter(None, overwrite=False)  # type: ignore[arg-type]
    assert Options.of({"Table": "shop.hits"}).table.database == "shop"


def test_batches_are_joined_and_cut_to_blocks() -> None:
    batches = [pa.RecordBatch.from_pydict({"n": list(range(size))}) for size in (3, 0, 9, 1)]
    assert [block.num_rows for block in _blocks(batches, 4)] == [4, 4, 4, 1]
    rows = [n for block in _blocks(batches, 4) for n in block["n"].to_pylist()]
    assert rows == [*range(3), *range(9), 0]
    assert list(_blocks([], 4)) == []
