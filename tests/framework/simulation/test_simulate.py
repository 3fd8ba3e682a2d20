"""The worker's protocol through schedules of failures, and what a mistake in a strategy leads to."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import pytest

from kmr.errors import StrategyError
from kmr.mapping.functions import map_record
from kmr.simulation.schedule import Event, Schedule
from kmr.simulation.simulate import Simulator, garbage_is_silent
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter, simulate

from .strategies import RECORDS, STRATEGIES

if TYPE_CHECKING:
    from kmr.record import Record


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_guarantee_holds_through_schedules_of_failures(name: str) -> None:
    done = simulate(STRATEGIES[name](), RECORDS, schedules=30)
    assert done.schedules == 30
    assert done.seconds > 300


FOUND: Final[dict[str, tuple[str, Schedule]]] = {
    "a member that slept after its announcement finds the range written by its successor": (
        "chain of ranges",
        Schedule(
            seed=172, members=2, max_rows=8, budget=0,
            events=(
                Event(10.02, "fault", target="commit", how="sleep after", seconds=40.0),
                Event(11.85, "append", 0, 1),
            ),
        ),
    ),
    "at most once, a failed record lies between rows that are committed and written": (
        "at most once",
        Schedule(
            seed=38, members=2, max_rows=5, budget=0,
            events=(
                Event(3.57, "fault", target="commit", how="sleep after", seconds=40.0),
                Event(6.0, "append", 0, 5),
            ),
        ),
    ),
    "at most once, a refused commit had the offset that another member then committed": (
        "at most once",
        Schedule(
            seed=38, members=2, max_rows=5, budget=0,
            events=(
                Event(0.0, "append", 0, 1),
                Event(0.0, "append", 1, 4),
                Event(3.57, "fault", target="commit", how="sleep after", seconds=40.0),
                Event(3.94, "drain", 1, seconds=5.0),
                Event(6.0, "append", 0, 10),
                Event(9.45, "append", 0, 1),
                Event(9.95, "append", 0, 3),
            ),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("found", FOUND)
def test_a_schedule_that_once_broke_a_rule_does_not_any_more(found: str) -> None:
    name, schedule = FOUND[found]
    with garbage_is_silent():
        assert Simulator(STRATEGIES[name](), RECORDS).run(schedule).problems == ()


def test_a_map_that_makes_other_rows_of_the_same_record_is_named() -> None:
    numbers = itertools.count()

    @map_record
    def number(record: Record) -> dict[str, int]:
        return {"n": next(numbers)}

    strategy = Strategy(number, [MemoryWriter(Journal())])
    with pytest.raises(
        StrategyError, match=r"number is not deterministic: of record simulated-0\[0\]"
    ):
        simulate(strategy, [b"a", b"b"])


def test_a_strategy_without_an_error_sink_is_not_run_with_records_that_fail() -> None:
    strategy = Strategy(STRATEGIES["at least once"]().map, [MemoryWriter(Journal())])
    with pytest.raises(StrategyError, match="has no reduce_err: a worker would stop there"):
        simulate(strategy, RECORDS)
