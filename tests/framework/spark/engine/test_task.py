"""A task of a micro-batch, without Spark: what it reads, writes and reports."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from queue import Queue
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from kmr.reducers.sink import NEW, Sink, Write

pytest.importorskip("pyspark")

from pyspark import TaskContext

from kmr import Json, Record, Strategy, Text, TopicMap, map_batch, map_record
from kmr.record import Range
from kmr.reducers.collect import Collecting
from kmr.sinks import StreamWriter
from kmr.spark.engine.report import read_failures, read_reports
from kmr.spark.engine.strategy_source import TaskPlan
from kmr.spark.engine.task import run_task
from kmr.testing import batch_of
from kmr.values.registry.registry import RegistryUnavailable
from kmr.values.value_format import Decoded, ValueFormat
from tests.framework.spark.engine.made_tasks import CONTEXT, SCHEMA, parse, task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
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


def test_a_task_maps_by_the_map_of_its_topic(tmp_path: Path) -> None:
    out = tmp_path / "out"
    by_topic = {"t": TopicMap(parse), "u": TopicMap(value=Text())}
    task(Strategy(by_topic=by_topic, reduce=[StreamWriter(str(out))]), [b"a"])
    assert out.read_text() == '{"value":"a"}\n'
    other = Strategy(by_topic={"u": TopicMap(parse)}, reduce=[StreamWriter(str(out))])
    (report,) = read_reports(task(other, [b"a"]))
    assert report.error is not None
    assert "does not name topic t" in report.error[1]


class Away(ValueFormat):
    """Reads texts; a registry answers the third question."""

    schema = pa.schema([("value", pa.string())])
    asked = 0

    def decode(self, values: pa.BinaryArray) -> Decoded:
        Away.asked += 1
        if Away.asked < 3:
            raise RegistryUnavailable("no answer")
        return Decoded(pa.RecordBatch.from_arrays([values.cast(pa.string())], names=["value"]), {})


def test_a_task_waits_for_a_registry_that_does_not_answer(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (report,) = read_reports(task(Strategy(value=Away(), reduce=[StreamWriter(str(out))]), [b"a"]))
    assert (report.records, report.error, Away.asked) == (1, None, 3)
    assert out.read_text() == '{"value":"a"}\n'


class Hit(msgspec.Struct):
    path: str
    status: int


@pytest.mark.parametrize("per", ["value", "batch", "record", "async record"])
def test_a_task_decodes_values_by_the_format_of_the_strategy(tmp_path: Path, per: str) -> None:
    @map_batch
    def batch(hits: pa.RecordBatch) -> pa.RecordBatch:
        return hits.select(["path", "status", "offset", "kmr_offset"])

    @map_record
    def record(hit: Hit) -> Hit:
        return hit

    @map_record
    async def later(hit: Hit, record: Record) -> Hit:
        return Hit(hit.path, record.offset)

    maps = {"value": None, "batch": batch, "record": record, "async record": later}
    out = tmp_path / "out"
    strategy = Strategy(value=Json(Hit), map=maps[per], reduce=[StreamWriter(str(out))])
    bad = b'{"path":"/b","status":"x"}'
    table = task(strategy, [b'{"path":"/a","status":10}', bad, None])
    (report,) = read_reports(table)
    assert (report.last, report.error) == (12, None)
    (failed,) = read_failures(table, "map")
    assert failed.table.select(["offset", "value", "reason"]).to_pylist() == [
        {"offset": 11, "value": bad, "reason": "field status: expected int, got str: 'x'"}
    ]
    (line,) = out.read_text().splitlines()
    assert json.loads(line).items() >= {"path": "/a", "status": 10}.items()


@map_record
def number_or_text(record: Record) -> dict[str, Any]:
    assert record.value is not None
    return {"value": int(record.value) if record.value.isdigit() else record.value.decode()}


def test_a_batch_with_another_type_than_the_others_fails_only_its_records(tmp_path: Path) -> None:
    strategy = Strategy(number_or_text, [StreamWriter(str(tmp_path / "out"))])
    batches = [batch_of("t", 0, 10, [b"bad"]), batch_of("t", 0, 11, [b"1", b"worse", b"3"])]
    plan = TaskPlan.of(strategy, CONTEXT)
    done = run_task(plan, Range("t", 0, 10, 13), iter(batches), SCHEMA)
    table = pa.Table.from_batches(done, SCHEMA)
    (report,) = read_reports(table)
    assert (report.first, report.last, report.records, report.error) == (10, 13, 4, None)
    failed = pa.concat_tables(rows.table for rows in read_failures(table, "map"))
    assert failed.column("offset").to_pylist() == [10, 12]
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == ['{"value":1}', '{"value":3}']


class Witness(Collecting, Sink):
    """Notes whether its rows may have been written before."""

    seen: ClassVar[list[bool]] = []

    def flush(self, write: Write = NEW) -> None:
        self.seen.append(write.repeated)


@pytest.mark.parametrize(
    ("number", "attempt", "replayed"),
    [("4", 0, False), ("3", 0, True), ("2", 0, True), ("4", 1, True), (None, 0, True)],
)
def test_a_task_repeats_one_of_a_logged_micro_batch_or_its_own_first_attempt(
    monkeypatch: pytest.MonkeyPatch, number: str | None, attempt: int, replayed: bool
) -> None:
    """The checkpoint had the micro-batches up to 3 when the query started."""
    spark: Any = object.__new__(TaskContext)
    spark._attemptNumber = attempt
    spark._localProperties = {} if number is None else {"streaming.sql.batchId": number}
    monkeypatch.setattr(TaskContext, "_taskContext", spark)
    Witness.seen.clear()
    plan = TaskPlan.of(Strategy(parse, [Witness()]), CONTEXT, logged=3)
    done = list(run_task(plan, Range("t", 0, 0, 0), iter([batch_of("t", 0, 0, [b"a"])]), SCHEMA))
    assert Witness.seen == [replayed]
    assert len(done) == 1


CLOSED: Queue[str] = Queue()


class ClosedSink(Collecting):
    def flush(self) -> None:
        pass

    async def close(self) -> None:
        CLOSED.put("sink")


@asynccontextmanager
async def pool() -> AsyncIterator[str]:
    yield "pool"
    CLOSED.put("resources")


@map_record
def with_pool(record: Record, resources: str) -> dict[str, str]:
    return {"value": resources}


def test_tasks_of_another_plan_close_what_the_last_one_opened() -> None:
    task(Strategy(with_pool, [ClosedSink()], resources=pool), [b"a"])
    task(Strategy(with_pool, [ClosedSink()], resources=pool), [b"a"], partition=1)
    assert CLOSED.empty(), "tasks of one plan share them"
    task(Strategy(parse, [Witness()]), [b"a"])
    assert {CLOSED.get(timeout=10) for _ in range(2)} == {"sink", "resources"}
