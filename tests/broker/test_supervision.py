"""Work that is repeated: what fails is logged once, left out for a time, and tried again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from kmr.broker.log.results import LogFailed
from kmr.broker.supervision import STALL_SECONDS, Supervision

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fail(supervisor: Supervision, error: Exception, **subject: object) -> None:
    with supervisor.attempt("compaction", "it failed", **subject):
        raise error


def test_work_stands_still_when_it_is_much_later_than_it_should_be() -> None:
    clock = Clock()
    supervisor = Supervision(clock)
    assert supervisor.stalled == "", "nothing is expected"
    supervisor.expect("retention", 60)
    clock.now += 60 + STALL_SECONDS
    assert supervisor.stalled == ""
    clock.now += 1
    assert supervisor.stalled == f"retention has not moved for {STALL_SECONDS + 1:.0f} seconds"
    supervisor.beat("retention")
    assert supervisor.stalled == ""


def test_all_work_that_stands_still_is_named() -> None:
    clock = Clock()
    supervisor = Supervision(clock)
    for work, every in (("retention", 60), ("the syncing of logs", 1), ("compaction", 15)):
        supervisor.expect(work, every)
    clock.now += 1000
    supervisor.beat("the syncing of logs")
    assert supervisor.stalled == (
        "retention has not moved for 940 seconds; compaction has not moved for 985 seconds"
    )


def test_a_subject_that_fails_is_left_out_for_a_time_that_doubles_up_to_a_minute() -> None:
    clock = Clock()
    supervisor = Supervision(clock)
    pauses = []
    for _ in range(9):
        fail(supervisor, LogFailed("the disk is gone"), topic="t")
        assert supervisor.may_try("compaction", topic="u"), "the others go on"
        began = clock.now
        while not supervisor.may_try("compaction", topic="t"):
            clock.now += 1
        pauses.append(clock.now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    with supervisor.attempt("compaction", "it failed", topic="t"):
        pass
    assert supervisor.failures == []


def test_a_failure_is_logged_again_when_its_reason_changes_and_with_its_place_if_it_is_a_bug() -> (
    None
):
    supervisor = Supervision()
    errors = [LogFailed("full"), LogFailed("full"), OverflowError("too large"), OSError("gone")]
    with structlog.testing.capture_logs() as logs:
        for error in errors:
            fail(supervisor, error, topic="t")
    assert [(each["error"], each["topic"]) for each in logs] == [
        ("full", "t"), ("too large", "t"), ("gone", "t"),
    ]  # fmt: skip
    assert [each["exc_info"] for each in logs] == [None, errors[2], None]


async def test_repeated_work_outlives_whatever_it_raises(until: Until) -> None:
    supervisor, calls = Supervision(), 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError

    task = asyncio.create_task(supervisor.repeat("compaction", work, every=0.001))
    await until(lambda: calls > 3)
    assert [str(each) for each in supervisor.failures] == ["compaction fails: ZeroDivisionError"]
    assert supervisor.stalled == ""
    assert not task.done()
    task.cancel()


async def test_a_subject_that_is_gone_fails_no_longer(until: Until) -> None:
    supervisor, passes = Supervision(), 0
    subjects = ["a", "b"]

    async def work() -> None:
        nonlocal passes
        passes += 1
        for each in subjects:
            if supervisor.may_try("compaction", topic=each):
                fail(supervisor, LogFailed("full"), topic=each)

    task = asyncio.create_task(supervisor.repeat("compaction", work, every=0.001))
    await until(lambda: len(supervisor.failures) == 2)
    subjects.remove("a")
    await until(lambda: [each.subject for each in supervisor.failures] == ["topic b"])
    task.cancel()
