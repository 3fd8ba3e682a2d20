"""The surroundings of reducers, which follow from the strategy and its settings."""

from __future__ import annotations

from kmr.parts import context_of
from kmr.settings import Settings
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter

from .workers import locate


def test_a_reducer_is_told_the_group_the_brokers_and_whether_refused_rows_are_taken() -> None:
    settings = Settings(topics=("t",), group="g", bootstrap_servers="one:1,two:2")
    strategy = Strategy(locate, [MemoryWriter(Journal())], version="7")
    context = context_of(strategy, settings)
    assert (context.group, context.stage, context.bootstrap_servers) == ("g", "", "one:1,two:2")
    assert context.strategy_version == "7"
    assert context.for_sinks.client["bootstrap_servers"] == "one:1,two:2"
    assert not context.for_sinks.takes_refused
    with_errors = Strategy(locate, [MemoryWriter(Journal())], reduce_err=MemoryWriter(Journal()))
    assert context_of(with_errors, settings).for_sinks.takes_refused
