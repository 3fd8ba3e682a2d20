"""What each stage finds at its sink, by `Sink.examine`, and what the map needs."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from ..errors import KmrError, reason_of
from ..pipeline import context_of
from ..reducers.finding import Finding
from ..reducers.reducer import ERROR_STAGE
from ..reducers.sink import Sink, opens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..reducers.reducer import Context, Reducer
    from ..settings import Settings
    from ..strategy import Strategy


async def check_sinks(strategy: Strategy, settings: Settings) -> list[Finding]:
    """Return what the stages find, in the order of the flow. Raises SettingsError."""
    context = context_of(strategy, settings)
    stages = dict(strategy.stages)
    if strategy.reduce_err is not None:
        stages[ERROR_STAGE] = strategy.reduce_err
    found: list[Finding] = []
    for stage, reducer in stages.items():
        found += await _check(copy.deepcopy(reducer), replace(context, stage=stage))
    if strategy.reduce_err is None:
        found.append(
            Finding(
                "ok",
                ERROR_STAGE,
                "none: the first record that fails stops the worker",
                "set reduce_err",
            )
        )
    return found


async def _check(reducer: Reducer, context: Context) -> Sequence[Finding]:
    try:
        if isinstance(reducer, Sink):
            return await reducer.examine(context)
        return [await opens(reducer, context)]
    except KmrError as error:
        return [Finding("problem", context.stage, str(error))]
    except Exception as error:  # noqa: BLE001  a sink of the user's may raise anything
        with suppress(Exception):
            await reducer.close()
        structlog.get_logger(__name__).debug("the check of a sink failed", exc_info=error)
        return [Finding("problem", context.stage, f"{type(reducer).__name__}: {reason_of(error)}")]
