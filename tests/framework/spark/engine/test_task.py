"""A task of a micro-batch, without Spark: what it reads, writes and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from kmr import Strategy
from kmr.sinks import StreamWriter
from kmr.spark.engine.report import read_failures, read_reports
from kmr.spark.engine.strategy_source import TaskPlan
from kmr.spark.engine.task import run_rows
from kmr.testing import batch_of
from tests.framework.spark.engine.made_tasks import CONTEXT, SCHEMA, parse, task

if TYPE_CHECKING:
    from pathlib import Path


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
