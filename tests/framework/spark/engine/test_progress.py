"""The gate of micro-batches, and metrics from Spark's events."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from kmr.observe.metrics import Metrics
from kmr.spark.engine.progress import MicroBatchGate, ProgressListener, source_end


def test_the_gate_knows_the_running_micro_batch_until_the_checkpoint_has_it() -> None:
    gate = MicroBatchGate()
    assert (gate.number, gate.busy_since) == (-1, None)
    assert gate.begin(0)
    assert gate.busy_since is not None
    assert not gate.wait_idle(time.monotonic())
    gate.complete(0)
    assert gate.busy_since is None
    assert gate.wait_idle(time.monotonic())


def test_a_late_event_of_an_earlier_micro_batch_does_not_end_this_one() -> None:
    gate = MicroBatchGate()
    gate.begin(0)
    gate.begin(1)
    gate.complete(0)
    assert gate.busy_since is not None
    gate.end_query()
    assert gate.busy_since is None


def test_after_a_stop_no_micro_batch_begins_and_the_running_one_is_awaited() -> None:
    gate = MicroBatchGate()
    gate.begin(0)
    gate.stop()
    assert not gate.begin(1)
    other = threading.Thread(target=gate.complete, args=[0])
    other.start()
    assert gate.wait_idle(time.monotonic() + 30)
    other.join()


def progress(number: int, end: str | None, latest: str | None) -> Any:
    source = SimpleNamespace(endOffset=end, latestOffset=latest)
    return SimpleNamespace(batchId=number, sources=[source], numInputRows=1, durationMs={})


def test_lag_is_the_distance_to_the_latest_offset_and_a_commit_is_counted_once() -> None:
    metrics = Metrics()
    gate = MicroBatchGate()
    listener = ProgressListener(metrics, gate)
    gate.begin(0)
    for _ in range(2):
        listener.observe(progress(0, '{"t": {"0": 7}}', '{"t": {"0": 10}}'))
    value = metrics.registry.get_sample_value
    assert value("kmr_commits_total", {"result": "checkpoint"}) == 1
    assert value("kmr_consumer_lag_records", {"topic": "t", "partition": "0"}) == 3
    assert gate.busy_since is None


def test_offsets_that_spark_does_not_know_yet_are_none() -> None:
    assert source_end(progress(0, "null", None)) == {}
    assert source_end(progress(0, None, None)) == {}
    assert source_end(progress(0, '{"t": {"0": 7}}', None)) == {"t": {"0": 7}}
