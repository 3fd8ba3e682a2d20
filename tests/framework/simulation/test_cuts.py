"""The commit of a backfill's cut, against members that drain, die, or come back late."""

from __future__ import annotations

import pytest

from kmr.simulation.simulate import Simulator, garbage_is_silent

from .nightly import try_mutation
from .strategies import STRATEGIES, records_of


@pytest.mark.parametrize("name", ["clickhouse", "transactions"])
def test_a_cut_passes_no_commit_and_no_member_writes_below_it(name: str) -> None:
    simulator = Simulator(STRATEGIES[name](), records_of(name))
    schedules = [
        schedule
        for schedule in map(simulator.generate, range(1, 200))
        if any(event.what == "cut" for event in schedule.events)
    ]
    assert len(schedules) > 10
    said: set[str] = set()
    with garbage_is_silent():
        for schedule in schedules:
            outcome = simulator.run(schedule)
            assert outcome.problems == (), schedule
            said.update(step.text for step in outcome.steps)
    assert "the cut is committed" in said


@pytest.mark.parametrize(
    ("mutation", "seed"),
    [
        ("a cut is committed though the group has another member", 270),
        ("a cut is committed without a look at the commits that came meanwhile", 447),
    ],
)
def test_a_tool_that_looks_less_is_found(mutation: str, seed: int) -> None:
    found, rest = try_mutation(mutation, 4, seed)
    assert found, rest
