"""Delays and the budget of restarts."""

from __future__ import annotations

from kmr.supervisor.restarts import Restarts


def test_each_restart_within_the_period_doubles_the_delay_up_to_half_a_minute() -> None:
    restarts = Restarts(9, 300)
    delays = [restarts.delay(float(now), "") for now in range(10)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, None]
    assert restarts.total == 9


def test_an_end_long_ago_counts_no_more_and_is_not_the_first_reason() -> None:
    restarts = Restarts(1, 300)
    assert restarts.delay(0.0, "old") == 0.5
    assert restarts.delay(300.0, "first") == 0.5
    assert restarts.delay(599.0, "second") is None
    assert restarts.first_reason == "first"


def test_without_restarts_the_first_end_is_the_last() -> None:
    assert Restarts(0, 300).delay(0.0, "") is None
