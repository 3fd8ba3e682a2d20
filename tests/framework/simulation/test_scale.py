"""The model of docs/scale.md beside a group of real workers in virtual time."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kmr.simulation.schedule import Event
from tests.examples import PROFILE

from .scale import HEARTBEAT, INTERVAL, MAX_AGE, simulate_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from kmr.simulation.schedule import What

# Those of `make search` take minutes.
_SIZES = ((400, 20), (2_000, 20)) if PROFILE == "search" else ((20, 2),)
_PAGE = Path(__file__).parents[3] / "docs" / "scale.md"


@cache
def _model() -> Callable[..., dict[str, float]]:
    """Return the function that the page prints."""
    found = re.search(r"```python\n# scale_model\.py\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    model: Callable[..., dict[str, float]] = names["model"]
    return model


def _expected(partitions: int, workers: int, **options: Any) -> dict[str, float]:
    return _model()(
        partitions,
        workers,
        partitions / INTERVAL,
        max_age=MAX_AGE,
        commits=1,
        commit_interval=2.0,
        heartbeat=HEARTBEAT,
        **options,
    )


def test_a_range_is_announced_and_written_as_often_as_the_model_says() -> None:
    found = simulate_scale(20, 2, together=False, turns=None)
    expected = _expected(20, 2, together=False, turns=1_000)
    assert not found.problems
    assert found.ranges == found.announced == pytest.approx(expected["ranges_per_second"], rel=0.03)
    assert found.inserts == pytest.approx(expected["inserts_per_second"], rel=0.03)
    # Partitions whose rows are old at about the same time are announced in one commit.
    assert (
        expected["commits_per_second"] / 4 < found.commits <= 1.03 * expected["commits_per_second"]
    )


def test_partitions_that_take_turns_are_written_later_and_share_commits() -> None:
    found = simulate_scale(20, 2, together=False, turns=4.0)
    expected = _expected(20, 2, together=False, turns=4.0)
    assert not found.problems
    assert found.inserts == pytest.approx(expected["inserts_per_second"], rel=0.06)
    assert expected["inserts_per_second"] == 2 * 4
    assert found.commits < expected["commits_per_second"]


def test_as_much_as_a_large_insert_does_not_wait_for_its_age() -> None:
    found = simulate_scale(20, 2, together=True, max_rows=5)
    expected = _expected(20, 2, max_rows=5)
    assert not found.problems
    assert found.inserts == pytest.approx(expected["inserts_per_second"], rel=0.1)
    assert expected["inserts_per_second"] == pytest.approx(2 / (4 * 5 / 25))


@pytest.mark.hypothesis
@pytest.mark.parametrize("size", _SIZES, ids=str)
def test_ranges_that_are_written_together_take_the_turns_of_their_workers(
    size: tuple[int, int],
) -> None:
    partitions, workers = size
    found = simulate_scale(partitions, workers, together=True, phases=min(partitions, 40))
    expected = _expected(partitions, workers)
    assert not found.problems
    assert found.inserts == pytest.approx(expected["inserts_per_second"], rel=0.03)
    assert expected["inserts_per_second"] == workers * 4
    assert expected["inserts_per_second"] < found.commits <= expected["commits_per_second"] * 1.01
    # A lane waits for half a turn on average, or not at all: after a pause, or beside an older one.
    most = partitions / (MAX_AGE + INTERVAL / 2)
    assert expected["ranges_per_second"] * 0.94 < found.ranges == found.announced < most * 1.03


@pytest.mark.parametrize("how", ["kill", "drain"])
def test_a_member_that_goes_costs_the_others_a_heartbeat_and_moves_only_its_own_partitions(
    how: What,
) -> None:
    found = simulate_scale(20, 4, together=True, events=[Event(2.0, how, 1, seconds=30.0)])
    assert not found.problems
    first, rebalance, *_ = found.rebalances
    assert first < rebalance <= _expected(20, 4)["rebalance_seconds"]
    assert found.moved[:2] == (0, 20 // 4)
