"""Sessions: reused, with our settings, and with errors of one line that say what to do."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest

from kmr.errors import KmrError, MissingExtra, SinkError
from kmr.spark.session import (
    QueryFailed,
    SparkUnavailable,
    explain_error,
    is_connect,
    is_slow_start,
    open_session,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def test_without_pyspark_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(
        MissingExtra, match=r"^Spark needs pyspark: pip install .*'pyspark<5,>=4\.2'"
    ):
        open_session("local[2]")


def test_only_sc_addresses_are_spark_connect() -> None:
    assert is_connect("sc://localhost:15002")
    assert not is_connect("spark://localhost:7077")
    assert not is_connect(None)


@pytest.mark.slow
def test_a_running_session_is_reused(spark: SparkSession) -> None:
    assert open_session(settings={"spark.sql.shuffle.partitions": "3"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.slow
def test_a_session_on_another_master_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SparkUnavailable, match=r"runs on local\[2\] .*, not on local\[3\]"):
        open_session("local[3]")
    assert spark.range(1).count() == 1


@pytest.mark.slow
def test_tasks_of_a_local_session_import_pyspark_from_where_it_is_installed(
    spark: SparkSession,
) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__]})

    assert "SPARK_HOME" not in os.environ
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(where, "file string").collect()
    assert row.file == pyspark.__file__


@pytest.mark.slow
def test_a_session_that_only_plans_has_one_compiler(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.defaultJavaOptions") == "-XX:TieredStopAtLevel=1"


TRACEBACK = """[STREAM_FAILED] Query terminated with exception: Job aborted
  File "x.py", line 1, in f
{line}
        at org.apache.spark.Whatever(Whatever.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (TRACEBACK.format(line="kmr.errors.OffsetOutOfRange: it is gone"), KmrError, "it is gone"),
        (
            TRACEBACK.format(line="ZeroDivisionError: division by zero"),
            QueryFailed,
            "a task of the query failed: ZeroDivisionError: division by zero",
        ),
        ("[X] no more\nmemory", QueryFailed, "the query failed: [X] no more"),
        ("", QueryFailed, "the query failed: RuntimeError"),
    ],
)
def test_the_most_specific_line_is_the_message(
    text: str, kind: type[KmrError], message: str
) -> None:
    found = explain_error(RuntimeError(text))
    assert type(found) is kind
    assert message in str(found)


def test_our_own_errors_stay_as_they_are() -> None:
    error = SinkError("the sink refuses")
    assert explain_error(error) is error
    assert is_slow_start(RuntimeError("Python worker failed to connect back."))
    assert not is_slow_start(error)
