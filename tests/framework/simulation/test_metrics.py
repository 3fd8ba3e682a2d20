"""The metrics of simulated workers: series are kept nowhere, failures are counted."""

import pytest

from kmr.simulation.run import UnreadMetrics


def test_series_are_kept_nowhere() -> None:
    metrics = UnreadMetrics()
    metrics.begin("group", "strategy", ["reduce-1"], ["topic"])
    metrics.count_lost_commit("failed", "no answer")
    metrics.flush_seconds.labels("reduce-1").observe(1.0)
    metrics.inflight.set(1)
    metrics.forget_lag("topic", 0)
    series = {
        sample.name
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels and "le" not in sample.labels
    }
    assert series == set()
    assert metrics.repeated == 1


def test_a_counter_cannot_fall() -> None:
    with pytest.raises(ValueError, match="cannot fall"):
        UnreadMetrics().map_retries.inc(-1)
