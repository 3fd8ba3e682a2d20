"""Check everything that a worker of these settings would meet: it joins no group and writes no record.

The parts run separately: a failure of one does not stop the others. The rules of settings are in
`kmr.settings`, those of a strategy in `Strategy.validate`, those of a sink in its `examine`: here they are
only called.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import structlog

from ..errors import KmrError, reason_of
from ..kafka.admin import connect_admin
from ..kafka.connection import connection_config
from ..pipeline import context_of
from ..reducers.finding import Finding
from ..reducers.reducer import ERROR_STAGE
from ..reducers.sink import Sink, opens
from .cluster import ClusterCheck
from .machine import check_machine
from .offsets import check_offsets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..reducers.reducer import Context, Reducer
    from ..settings import Settings
    from ..strategy import Strategy


async def examine(strategy: Strategy, settings: Settings) -> list[Finding]:
    """Return all findings, part after part.

    Args:
        strategy: a valid one.

    Raises:
        SettingsError: a TLS file or a provider of tokens cannot be loaded.
    """
    found = check_machine(settings)
    found += await _part("brokers", lambda: _check_cluster(strategy, settings))
    found += await check_sinks(strategy, settings)
    return found


async def _check_cluster(strategy: Strategy, settings: Settings) -> list[Finding]:
    config = connection_config(settings)
    async with connect_admin(config) as admin:
        check = ClusterCheck(strategy, settings, admin)
        found = await _part("brokers", check.brokers)
        found += await _part("topics", check.topics)
        found += await _part(f"group {settings.group}", check.group)
        found += await _part("dead letters", check.dead_letters)
        if check.readable and check.may_join:
            remembered = max((each.within for each in strategy.distincts.values()), default=0.0)
            found += await _part(
                "offsets", lambda: check_offsets(settings, admin, check.readable, remembered)
            )
    return found


async def _part(subject: str, check: Callable[[], Awaitable[Sequence[Finding]]]) -> list[Finding]:
    """Return the findings of one part; a failure is one, too."""
    try:
        return list(await check())
    except KmrError as error:
        return [Finding("problem", subject, str(error))]
    except (OSError, anyio.BrokenResourceError) as error:
        return [Finding("problem", subject, reason_of(error))]


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
