"""When a worker hangs: it was not live for a time without a break."""

from __future__ import annotations

from kmr.supervisor.watch import NotLive


def test_a_worker_hangs_when_it_was_not_live_for_the_whole_timeout() -> None:
    not_live = NotLive(60)
    assert not_live.note("map hangs", 100) is None
    assert not_live.note("map hangs", 159.9) is None
    reason = not_live.note("it does not answer", 160)
    assert reason == "not live for 60 s (worker_live_timeout): it does not answer"


def test_a_worker_that_is_live_in_between_has_the_whole_timeout_again() -> None:
    not_live = NotLive(60)
    assert not_live.note("map hangs", 100) is None
    assert not_live.note(None, 159) is None
    assert not_live.note("map hangs", 161) is None
    assert not_live.note("map hangs", 220) is None
    assert not_live.note("map hangs", 221) is not None
