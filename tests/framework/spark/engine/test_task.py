"""A task and the driver's half of a micro-batch, without Spark: rows go from the one to the other."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from kmr import Aggregate, Strategy, map_record
from kmr.delivery.failures import FAILED_SCHEMA
from kmr.errors import RecordFailed, SinkError
from kmr.observe.metrics import Metrics
from kmr.record import Range
from kmr.reducers.collect import Collecting, one_table
from kmr.reducers.reducer import Context, Flushed, Poisoned
from kmr.sinks import StreamWriter
from kmr.spark.engine.driver import DriverReducers
from kmr.spark.engine.report import read_failures, read_reports
from kmr.spark.engine.strategy_source import TaskPlan
from kmr.spark.engine.task import run_rows, run_task
from kmr.testing import batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from kmr.record import Record
    from kmr.reducers.reducer import FlushResult

SCHEMA = pa.schema([*FAILED_SCHEMA, pa.field("rows", pa.binary()), pa.field("report", pa.binary())])
CONTEXT = Context(group="g", bootstrap_servers="", stage="", client={})
COUNT = Aggregate(["value"], {"n": ("*", "count")})


@map_record
def parse(record: Record) -> dict[str, Any] | None:
    assert record.value is not None
    if record.value == b"poison":
        raise ValueError("poisoned")
    return None if record.value == b"skip" else {"value": record.value.decode()}


class PickySink(Collecting):
    """Refuses the value `bad`; an error of its own is a wrong sink."""

    def flush(self) -> FlushResult:
        values = one_table(self.rows)["value"].to_pylist()
        if "broken" in values:
            raise OSError("the disk is full")
        if "bad" in values:
            return Flushed(poisoned=[Poisoned(self.rows[0], "refused")])
        return Flushed()


def task(strategy: Strategy, values: list[bytes], *, partition: int = 0) -> pa.Table:
    batch = batch_of("t", partition, 10, values)
    wanted = Range("t", partition, 10, batch.last)
    plan = TaskPlan.of(strategy, CONTEXT)
    return pa.Table.from_batches(run_task(plan, wanted, iter([batch]), SCHEMA), SCHEMA)


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
        driver.settle(pa.concat_tables(tasks))
        assert (driver.consumed, driver.settled) == (
            sum(report.records for part in tasks for report in read_reports(part)),
            sum(report.last + 1 - report.first for part in tasks for report in read_reports(part)),
        )
        return metrics

    yield run
    for driver in opened:
        driver.close()


def test_a_task_reports_what_it_read_and_the_records_that_failed(tmp_path: Path) -> None:
    strategy = Strategy(parse, [StreamWriter(str(tmp_path / "out"))])
    table = task(strategy, [b"a", b"skip", b"poison", b"b"])
    (report,) = read_reports(table)
    assert (report.first, report.last, report.records, report.error) == (10, 13, 4, None)
    assert [(flush.stage, flush.reason, flush.rows) for flush in report.flushes] == [
        ("reduce-1", "trigger", 2)
    ]
    (failed,) = read_failures(table, "map")
    assert failed.table.select(["offset", "reason", "attempt"]).to_pylist() == [
        {"offset": 12, "reason": "ValueError: poisoned", "attempt": 1}
    ]
    assert len((tmp_path / "out").read_text().splitlines()) == 2


def test_rows_of_sparks_own_source_are_a_task_too(tmp_path: Path) -> None:
    plan = TaskPlan.of(Strategy(parse, [StreamWriter(str(tmp_path / "out"))]), CONTEXT)
    rows = [batch_of("t", 0, 3, [b"a"]).records, batch_of("t", 0, 7, [b"b"]).records]
    table = pa.Table.from_batches(run_rows(plan, SCHEMA, iter(rows)), SCHEMA)
    (report,) = read_reports(table)
    assert (report.first, report.last, report.records) == (3, 7, 2)
    assert list(run_rows(plan, SCHEMA, iter([]))) == []


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
