"""The names of a worker's metrics, which dashboards and alerts use."""

from __future__ import annotations

from kmr.observe.metrics import Metrics

NAMES = {
    "kmr_backpressure_seconds",
    "kmr_commits",
    "kmr_consumed_records",
    "kmr_consumer_lag_records",
    "kmr_dlq_records",
    "kmr_failed_records",
    "kmr_inflight_bytes",
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
    "kmr_unexpected_duplicates",
}


def test_every_metric_has_its_name_and_its_meaning() -> None:
    families = list(Metrics().registry.collect())
    assert {family.name for family in families} == NAMES
    assert all(family.documentation.endswith(".") for family in families)


def test_two_workers_of_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.commits.labels("ok").inc()
    assert other.registry.get_sample_value("kmr_commits_total", {"result": "ok"}) is None
