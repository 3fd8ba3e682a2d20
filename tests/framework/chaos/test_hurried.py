"""Workers of a storm flush soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kmr.chaos.hurried import STRATEGY_VARIABLE, hurried
from kmr.loading import load_strategy
from kmr.sinks import KafkaWriter
from tests.framework.chaos.strategies import ORDERS

if TYPE_CHECKING:
    import pytest


def test_a_worker_of_a_storm_flushes_soon_and_the_users_strategy_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = ORDERS.reducers[0].max_age
    assert hurried(ORDERS).reducers[0].max_age == 0.5
    assert ORDERS.reducers[0].max_age == before
    monkeypatch.setenv(STRATEGY_VARIABLE, "tests.framework.chaos.strategies:TOPIC")
    strategy = load_strategy("kmr.chaos.hurried")
    assert isinstance(strategy.reducers[0], KafkaWriter)
    assert strategy.reducers[0].topic == "results"
