"""The names of a worker's metrics, which dashboards and alerts use."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from kmr.observe.metrics import Metrics
from kmr.observe.status import PartitionStatus
from kmr.supervisor.fleet_status import metrics_of_supervisor

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
BLOCK = re.compile(r"(?<=test_metrics.py -->\n).*(?=<!-- end -->)", re.DOTALL)

NAMES = {
    "kmr_build",
    "kmr_broker_silent",
    "kmr_consumer_drain_seconds",
    "kmr_consumer_lag_seconds",
    "kmr_rebalance_seconds",
    "kmr_worker",
    "kmr_backpressure_seconds",
    "kmr_commits",
    "kmr_consumed_records",
    "kmr_consumer_lag_records",
    "kmr_dlq_records",
    "kmr_event_loop_tasks",
    "kmr_failed_records",
    "kmr_inflight_bytes",
    "kmr_inflight_limit_bytes",
    "kmr_held_records",
    "kmr_held_seconds",
    "kmr_late_rows",
    "kmr_backfill_left_records",
    "kmr_lookup_rows",
    "kmr_lookup_stale_seconds",
    "kmr_memory_bytes",
    "kmr_distinct_rows",
    "kmr_intake_linger_seconds",
    "kmr_reduce_flush_late_seconds",
    "kmr_reduce_flush_retrying_seconds",
    "kmr_map_retries",
    "kmr_map_seconds",
    "kmr_offset_resets",
    "kmr_rebalances",
    "kmr_record_latency_seconds",
    "kmr_reduce_flush_bytes",
    "kmr_reduce_flush_records",
    "kmr_reduce_flush_retries",
    "kmr_reduce_flush_seconds",
    "kmr_reduce_flushes",
    "kmr_settled_records",
    "kmr_transactions",
    "kmr_unexpected_duplicates",
    "kmr_values_left_out",
}


def test_every_metric_has_its_name_and_its_meaning() -> None:
    families = list(Metrics().registry.collect())
    assert {family.name for family in families} == NAMES
    assert all(family.documentation.endswith(".") for family in families)


def test_two_workers_of_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.commits.labels("ok").inc()
    assert other.registry.get_sample_value("kmr_commits_total", {"result": "ok"}) is None


def table() -> str:
    """Make the table of all metrics: the name of a series, its type, its labels, its meaning."""
    metrics = Metrics()
    rows = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    suffixes = {"counter": "_total", "info": "_info"}
    for collector in vars(metrics).values():
        if not isinstance(collector, MetricWrapperBase):
            continue
        (family,) = collector.describe()
        name = f"`{family.name}{suffixes.get(family.type, '')}`"
        labels = ", ".join(f"`{each}`" for each in collector._labelnames)
        rows.append(f"| {name} | {family.type} | {labels} | {family.documentation} |")
    for family in metrics_of_supervisor([], []):
        name = f"`{family.name}{suffixes.get(family.type, '')}`"
        rows.append(f"| {name} | {family.type} | `worker` | {family.documentation} |")
    return "\n" + "\n".join(rows) + "\n\n"


def test_the_page_lists_every_metric_of_the_code() -> None:
    """KMR_WRITE_DOCS=1 writes it instead."""
    text = DOCUMENT.read_text(encoding="utf-8")
    generated = BLOCK.sub(lambda _: table(), text)
    if os.environ.get("KMR_WRITE_DOCS"):
        DOCUMENT.write_text(generated, encoding="utf-8")
    else:
        assert text == generated, (
            "run KMR_WRITE_DOCS=1 pytest tests/framework/observe/test_metrics.py"
        )
    assert all(f"`{name}" in generated for name in NAMES)


def test_counters_of_failures_and_the_worker_are_there_from_the_start() -> None:
    metrics = Metrics()
    metrics.begin("g", "flow:strategy", ["reduce-1"], ["t"])
    lines = generate_latest(metrics.registry).decode().splitlines()
    assert 'kmr_worker_info{group="g",strategy="flow:strategy"} 1.0' in lines
    assert 'kmr_failed_records_total{stage="map"} 0.0' in lines
    assert 'kmr_failed_records_total{stage="reduce-1"} 0.0' in lines
    assert 'kmr_reduce_flush_retries_total{stage="reduce-err"} 0.0' in lines
    assert 'kmr_dlq_records_total{reason="dropped"} 0.0' in lines
    assert 'kmr_commits_total{result="failed"} 0.0' in lines
    assert 'kmr_offset_resets_total{topic="t"} 0.0' in lines
    assert 'kmr_settled_records_total{topic="t"} 0.0' in lines
    assert 'kmr_reduce_flush_seconds_count{stage="reduce-err"} 0.0' in lines
    assert not [line for line in lines if "_created" in line]


def test_a_worker_that_has_only_begun_has_all_series_but_those_of_partitions_and_reasons() -> None:
    metrics = Metrics()
    metrics.begin("g", "flow:strategy", ["reduce-1"], ["t"])
    empty = {family.name for family in metrics.registry.collect() if not family.samples}
    of_partitions = {"kmr_consumer_lag_records", "kmr_consumer_lag_seconds"}
    of_partitions.add("kmr_backfill_left_records")
    of_flushes_by_reason = {"kmr_reduce_flushes", "kmr_reduce_flush_retrying_seconds"}
    of_windows = {"kmr_held_records", "kmr_held_seconds", "kmr_late_rows"}
    of_tables = {"kmr_lookup_rows", "kmr_lookup_stale_seconds"}
    assert empty == of_partitions | of_flushes_by_reason | of_windows | of_tables


def test_the_lag_in_seconds_is_the_age_of_the_oldest_batch_that_is_not_settled() -> None:
    metrics = Metrics()
    labels = {"topic": "t", "partition": "0"}
    behind = PartitionStatus("t", 0, 5, 5, 5, 0, 9, paused=False)
    metrics.observe_lag(behind, time.time() - 60)
    value = metrics.registry.get_sample_value("kmr_consumer_lag_seconds", labels)
    assert value is not None
    assert 60 <= value < 90
    metrics.observe_lag(behind, None)
    assert metrics.registry.get_sample_value("kmr_consumer_lag_seconds", labels) is None
    assert metrics.registry.get_sample_value("kmr_consumer_lag_records", labels) == 4
    metrics.observe_lag(PartitionStatus("t", 0, 9, 9, 9, 0, 9, paused=False), None)
    assert metrics.registry.get_sample_value("kmr_consumer_lag_seconds", labels) == 0
    metrics.forget_lag("t", 0)
    assert metrics.registry.get_sample_value("kmr_consumer_lag_records", labels) is None
