"""The driver's half of a micro-batch, without Spark: it settles what tasks report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from kmr import Strategy
from kmr.errors import RecordFailed, SinkError
from kmr.observe.metrics import Metrics
from kmr.record import Range, Rows
from kmr.sinks import StreamWriter
from kmr.spark.engine.driver import DriverReducers, _merge_rows
from kmr.spark.engine.report import TaskReport, read_reports
from tests.framework.spark.engine.made_tasks import CONTEXT, COUNT, PickySink, parse, task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


def no_reread(_wanted: Range) -> pa.RecordBatch:
    raise AssertionError("no record is read again")


@pytest.fixture
def settle() -> Iterator[Any]:
    opened: list[DriverReducers] = []

    def run(strategy: Strategy, *tasks: pa.Table) -> Metrics:
        metrics = Metrics()
        driver = DriverReducers(strategy, CONTEXT, metrics, no_reread)
        opened.append(driver)
        driver.open(cast("SparkSession", None))  # no reducer here needs a session
        driver.settle(pa.concat_tables(tasks), replayed=False)
        assert (driver.consumed, driver.settled) == (
            sum(report.records for part in tasks for report in read_reports(part)),
            sum(report.last + 1 - report.first for part in tasks for report in read_reports(part)),
        )
        return metrics

    yield run
    for driver in opened:
        driver.close()


def test_an_error_that_only_the_user_can_fix_is_in_the_report_and_stops_the_driver(
    settle: Any,
) -> None:
    strategy = Strategy(parse, [PickySink(on_error="stop")])
    table = task(strategy, [b"broken"])
    (report,) = read_reports(table)
    assert report.error == ("SinkError", "reduce-1: PickySink failed: OSError: the disk is full")
    with pytest.raises(SinkError, match="the disk is full"):
        settle(strategy, table)


def test_the_driver_merges_an_aggregate_of_all_tasks(settle: Any, tmp_path: Path) -> None:
    strategy = Strategy(parse, [COUNT, StreamWriter(str(tmp_path / "out"))])
    tasks = [task(strategy, [b"a", b"b"]), task(strategy, [b"b", b"skip"], partition=1)]
    metrics = settle(strategy, *tasks)
    lines = sorted((tmp_path / "out").read_text().splitlines())
    assert lines == ['{"value":"a","n":1}', '{"value":"b","n":2}']
    consumed = metrics.registry.get_sample_value("kmr_consumed_records_total", {"topic": "t"})
    assert consumed == 4


def test_failed_records_reach_the_error_sink_or_stop_the_query(settle: Any, tmp_path: Path) -> None:
    values = [b"a", b"poison", b"bad"]
    errors = StreamWriter(str(tmp_path / "errors"))
    strategy = Strategy(parse, [PickySink()], reduce_err=errors)
    settle(strategy, task(strategy, values))
    lines = (tmp_path / "errors").read_text().splitlines()
    stages = Counter(msgspec.json.decode(line)["stage"] for line in lines)
    assert stages == {"map": 1, "reduce-1": 2}  # the sink refuses its whole flush
    without = Strategy(parse, [PickySink()])
    with pytest.raises(RecordFailed, match="poisoned"):
        settle(without, task(without, values))


def test_the_ranges_of_an_aggregate_are_all_that_tasks_read_also_of_one_record() -> None:
    reports = [TaskReport("t", 0, 0, 9), TaskReport("t", 1, 5, 5), TaskReport("t", 2, 7, 6)]
    rows = Rows(pa.table({"n": [1]}), ())
    (merged,) = _merge_rows([rows], reports)
    assert merged.ranges == (Range("t", 0, 0, 9), Range("t", 1, 5, 5))
