"""Liveness: which stages and partitions hang, and which only wait."""

from __future__ import annotations

from kmr.observe.liveness import IdlePartition, Liveness
from kmr.observe.status import StageStatus
from kmr.record import TopicPartition

P0 = TopicPartition("t", 0)


def idle(position: int | None, end: int | None, answered_at: float | None) -> IdlePartition:
    return IdlePartition(P0, position, end, answered_at)


def after(*notes: tuple[float, IdlePartition | None], now: float) -> str | None:
    """Return the problem at a time, when these partitions were idle at those times."""
    liveness = Liveness(300.0)
    for at, partition in notes:
        liveness.note([partition] if partition is not None else [], at)
    return liveness.problem([], now)


def test_a_call_that_does_not_end_is_named_with_the_failure_before_it() -> None:
    stages = [
        StageStatus("map t-0", "mapping", 0, working=10.0),
        StageStatus("reduce-1", "retrying", 0, seconds=900.0, reason="busy", working=301.0),
    ]
    problem = Liveness(300.0).problem(stages, 0.0)
    assert problem == "reduce-1: flush has not ended for 301 s; before: busy"
    assert Liveness(302.0).problem(stages, 0.0) is None


def test_records_that_are_not_fetched_are_a_problem_that_names_the_partition() -> None:
    waiting = [(float(at), idle(5, 6 + at, float(at))) for at in range(0, 302, 50)]
    problem = after(*waiting, now=301.0)
    assert problem == "t-0: no records were fetched for 301 s (next offset 5, known end 306)"
    assert after(*waiting, now=299.0) is None


def test_a_partition_that_is_never_asked_for_is_a_problem_though_its_end_is_unknown() -> None:
    notes = [(float(at), idle(None, None, 0.0)) for at in range(1, 303, 50)]
    assert after(*notes, now=303.0) is not None


def test_a_quiet_partition_whose_broker_answers_is_live() -> None:
    notes = [(float(at), idle(5, 5, at - 0.3)) for at in range(1, 1000, 50)]
    assert after(*notes, now=1000.0) is None


def test_a_partition_whose_broker_cannot_be_asked_is_live() -> None:
    notes = [(float(at), idle(5, 5, None)) for at in range(1, 1000, 50)]
    assert after(*notes, now=1000.0) is None


def test_a_partition_begins_to_wait_anew_when_it_moves_or_has_work() -> None:
    moved = [(0.0, idle(5, 9, 0.0)), (200.0, idle(6, 9, 0.0)), (400.0, idle(6, 9, 0.0))]
    assert after(*moved, now=400.0) is None
    busy = [(0.0, idle(5, 9, 0.0)), (200.0, None), (400.0, idle(5, 9, 0.0))]
    assert after(*busy, now=401.0) is None
