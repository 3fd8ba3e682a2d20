"""Schedules are fixed by their seed, and what is not ours is not harmed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.chaos.faults import own, plan

NAMES = ["kill-worker", "kill-broker", "pause-worker", "short-storm", "kill-clickhouse"]
seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.lists(st.sampled_from(NAMES), unique=True), st.integers(1, 4))
def test_a_seed_reproduces_its_schedule_with_every_fault_once_a_round(
    seed: int, faults: list[str], rounds: int
) -> None:
    schedule = plan(seed, faults, rounds)
    assert schedule == plan(seed, faults, rounds)
    assert Counter(strike.fault for strike in schedule) == Counter(faults * rounds)


def test_different_seeds_give_different_schedules() -> None:
    assert len({tuple(plan(seed, NAMES)) for seed in range(20)}) == 20


def test_a_service_that_is_not_ours_is_not_harmed() -> None:
    with pytest.raises(ValueError, match="not ours to harm"):
        own(None)
