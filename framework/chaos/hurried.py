"""`kmr.chaos.hurried:strategy`: the strategy of a storm as it is, but it flushes at least twice a second.

Else each recovery from a fault would last as long as its `max_age`.
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Final

from ..loading import load_strategy
from ..memory.window_model import with_offsets

if TYPE_CHECKING:
    from ..reducers.reducer import Reducer
    from ..strategy import Strategy

STRATEGY_VARIABLE: Final = "KMR_CHAOS_STRATEGY"
_MAX_AGE: Final = 0.5


def __getattr__(name: str) -> Strategy:
    if name != "strategy":
        raise AttributeError(name)
    return hurried(load_strategy(os.environ[STRATEGY_VARIABLE]))


def hurried(strategy: Strategy) -> Strategy:
    """Return a strategy whose reducers flush soon; the one that is given stays as it is."""
    # The storm counts the rows of windows by offsets.
    strategy = with_offsets(strategy, keyed=False)
    errors = strategy.reduce_err
    return strategy.with_chains(
        lambda _, chain: [_hurried(reducer) for reducer in chain],
        reduce_err=None if errors is None else _hurried(errors),
        err_limit=None,
    )


def _hurried(reducer: Reducer) -> Reducer:
    changed = copy.copy(reducer)
    if changed.when_full == "flush":
        changed.max_age = min(changed.max_age or _MAX_AGE, _MAX_AGE)
    return changed
