"""The latest failures: what is kept, counted and forgotten."""

from __future__ import annotations

from kmr.observe.failures import FailureLog, FailureSummary, latest
from kmr.observe.metrics import Metrics


def test_a_failure_that_comes_again_is_counted_and_comes_first() -> None:
    log = FailureLog()
    log.note("record failed", "map", "no number", 3)
    log.note("flush repeated", "reduce-1", "no answer")
    log.note("record failed", "map", "no number", 2)
    found = [(each.kind, each.stage, each.reason, each.count) for each in log.newest_first()]
    assert found == [
        ("record failed", "map", "no number", 5),
        ("flush repeated", "reduce-1", "no answer", 1),
    ]


def test_the_last_twenty_are_kept_and_a_long_reason_is_cut() -> None:
    log = FailureLog()
    for number in range(30):
        log.note("record failed", "map", f"{number} {'x' * 2_000}")
    reasons = [each.reason for each in log.newest_first()]
    assert [int(reason.split()[0]) for reason in reasons] == list(range(29, 9, -1))
    assert {len(reason) for reason in reasons} == {1_000}


def test_failures_of_several_workers_are_in_the_order_of_their_times() -> None:
    of_one = [FailureSummary(time, "record failed", "map", "a", worker=0) for time in (9.0, 3.0)]
    of_other = [
        FailureSummary(float(time), "worker ended", "", "b", worker=1) for time in range(25)
    ]
    found = latest([*of_one, *of_other])
    assert len(found) == 20
    assert [each.time for each in found] == sorted((each.time for each in found), reverse=True)


def test_every_count_of_a_failure_has_its_reason() -> None:
    metrics = Metrics()
    metrics.count_failed("map", 4, "no number")
    metrics.count_retry("reduce-1", "no answer")
    metrics.count_lost_commit("fenced", "new generation")
    assert (metrics.done.failed, metrics.repeated) == (4, 2)
    value = metrics.registry.get_sample_value
    assert value("kmr_failed_records_total", {"stage": "map"}) == 4
    assert value("kmr_reduce_flush_retries_total", {"stage": "reduce-1"}) == 1
    assert value("kmr_commits_total", {"result": "fenced"}) == 1
    reasons = [each.reason for each in metrics.failures.newest_first()]
    assert reasons == ["new generation", "no answer", "no number"]
