"""Whether a strategy can have the windows that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import StrategyError
from ..reducers.sink import Sink, capabilities_of
from .window import Window

if TYPE_CHECKING:
    from ..strategy import Strategy


def check_windows(strategy: Strategy) -> None:
    """Raise StrategyError if a `Window` of the strategy stands where it cannot be."""
    for branch, chain in strategy.chains.items():
        if branch and any(isinstance(each, Window) for each in chain):
            raise StrategyError(
                f"branch {branch}: a Window cannot be in a branch, which shares its offsets with the others; "
                "read the topic with a strategy, and a group, of its own"
            )
    window, reducers = strategy.window, strategy.reducers
    if window is None:
        return
    if sum(isinstance(each, Window) for each in reducers) > 1:
        raise StrategyError(
            "reduce=: a strategy has one Window: let its rows go to a topic, and a strategy of that topic "
            "have the next one"
        )
    sink = reducers[-1]
    at = next(number for number, each in enumerate(reducers) if each is window)
    if at != len(reducers) - 2 or not isinstance(sink, Sink):
        raise StrategyError(
            "reduce=: a Window stands directly before the sink, which is the last of the list"
        )
    if mixed := [type(each).__name__ for each in reducers[:at] if not each.keeps_rows]:
        raise StrategyError(
            f"reduce=: {mixed[0]} before a Window makes rows that belong to no single record, so it is not "
            "known which offsets an open window needs; do it in the map, or aggregate in the Window"
        )
    if strategy.requested_delivery == "at-most-once":
        raise StrategyError(
            "delivery='at-most-once': a Window reads records of open windows again, which that excludes; use "
            "'at-least-once' or 'exactly-once'"
        )
    if capabilities_of(sink).commits_offsets:
        raise StrategyError(
            f"{type(sink).__name__}: a Window cannot write in transactions that commit offsets, because open "
            "windows hold them back; set delivery='at-least-once' in the sink"
        )
    if window.late == "dead-letter" and strategy.reduce_err is None:
        raise StrategyError("Window: late='dead-letter' needs reduce_err=")
    if window.correct and set(sink.replaces_by) != set(window.key):
        raise StrategyError(
            f"{type(sink).__name__}: Window(late='reemit') writes a corrected row for one that is there, so "
            "the sink must replace it by its key: ClickHouseWriter, PostgresWriter or KafkaWriter with "
            f"changes=True, key={window.key}"
        )
