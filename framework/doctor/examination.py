"""Check everything that a worker of these settings would meet: it joins no group and writes no record.

The parts run separately: a failure of one does not stop the others. The rules of settings are in
`kmr.settings`, those of a strategy in `Strategy.validate`, those of a sink in its `examine`: here they are
only called.
"""

from __future__ import annotations

import copy
import resource
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
import structlog

from .._extras import installed_version
from ..config.schema import BYTES, show_quantity
from ..errors import KmrError, SettingsError, reason_of
from ..kafka.admin import connect_admin
from ..kafka.connection import connection_config
from ..observe.health import listen_on
from ..observe.status import read_status
from ..parts import context_of
from ..reducers.finding import Finding, ok, problem, warning
from ..reducers.reducer import ERROR_STAGE
from ..reducers.sink import Sink, opens
from ..service.process import memory_limit, processor_limit
from .cluster import ClusterCheck, check_offsets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..observe.status import WorkerStatus
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
            found += await _part(
                "offsets", lambda: check_offsets(strategy, settings, admin, check.readable)
            )
    return found


async def _part(subject: str, check: Callable[[], Awaitable[Sequence[Finding]]]) -> list[Finding]:
    """Return the findings of one part; a failure is one, too."""
    try:
        return list(await check())
    except KmrError as error:
        return [problem(subject, str(error))]
    except (OSError, anyio.BrokenResourceError) as error:
        return [problem(subject, reason_of(error))]


async def check_sinks(strategy: Strategy, settings: Settings) -> list[Finding]:
    """Return what the stages find, in the order of the flow. Raises SettingsError."""
    context = context_of(strategy, settings)
    found: list[Finding] = []
    for stage, reducer in strategy.all_stages.items():
        found += await _check(copy.deepcopy(reducer), replace(context, stage=stage))
    if strategy.reduce_err is None:
        found.append(
            ok(
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
        return [problem(context.stage, str(error))]
    except Exception as error:  # noqa: BLE001  a sink of the user's may raise anything
        with suppress(Exception):
            await reducer.close()
        structlog.get_logger(__name__).debug("the check of a sink failed", exc_info=error)
        return [problem(context.stage, f"{type(reducer).__name__}: {reason_of(error)}")]


_LIBRARIES: Final = 130 * 1024 * 1024
"""Bytes that a worker needs beside records and rows (docs/sizing.md)."""

_COPIES: Final = 4
"""A batch may exist so often for a moment: fetched, decoded, mapped, cast for the sink."""

_FEW_DESCRIPTORS: Final = 1024
_PATIENCE: Final = 2.0  # seconds for a worker at our port to answer


def check_machine(settings: Settings) -> list[Finding]:
    """Compare the settings with the machine."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("aiokafka", "pyarrow"))
    return [
        ok("versions", f"kmr {installed_version()}, Python {python_version()}, {versions}"),
        _memory(settings, memory_limit()),
        _processors(settings, processor_limit()),
        _descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        *_times(settings),
        *_port(settings),
    ]


def _memory(settings: Settings, limit: int) -> Finding:
    workers, budget = settings.worker_count, settings.budget
    needed = workers * (_LIBRARIES + _COPIES * budget)
    shown = f"{show_quantity(limit >> 20 << 20, BYTES)} may be used"
    flight = f"{show_quantity(budget >> 20 << 20, BYTES)} in flight" + (
        f" in each of {workers} workers" if workers > 1 else ""
    )
    if needed <= limit:
        return ok("memory", f"{shown}, {flight}")
    return warning(
        "memory",
        f"{shown}, and with {flight} the process may need {show_quantity(needed >> 20 << 20, BYTES)}: under "
        "load the kernel kills it",
        "lower inflight_bytes or workers, or give it more memory",
    )


def _processors(settings: Settings, processors: int) -> Finding:
    workers = settings.worker_count
    text = f"{workers} workers on {processors} processors"
    if workers <= processors:
        return ok("processors", text)
    return warning("processors", f"{text}: they slow each other down", "set workers = 'auto'")


def _descriptors(limit: int) -> Finding:
    if limit >= _FEW_DESCRIPTORS or limit == resource.RLIM_INFINITY:
        return ok("file descriptors", f"{limit} may be open")
    return warning(
        "file descriptors",
        f"only {limit} may be open: connections to many brokers and files of a sink may be refused",
        f"raise the limit (ulimit -n, LimitNOFILE=) to {_FEW_DESCRIPTORS} or more",
    )


def _times(settings: Settings) -> list[Finding]:
    found = []
    if settings.heartbeat_interval * 3 > settings.session_timeout:
        found.append(
            warning(
                "session_timeout",
                f"heartbeat_interval ({settings.heartbeat_interval:g} s) is more than a third of "
                f"session_timeout ({settings.session_timeout:g} s): two lost heartbeats cost the partitions",
                "lower heartbeat_interval",
            )
        )
    if settings.worker_count > 1 and settings.worker_live_timeout < settings.session_timeout:
        found.append(
            warning(
                "worker_live_timeout",
                f"worker_live_timeout ({settings.worker_live_timeout:g} s) is below session_timeout "
                f"({settings.session_timeout:g} s): a worker is killed before its group would give it up",
                "raise worker_live_timeout",
            )
        )
    return found


def _port(settings: Settings) -> list[Finding]:
    host, port = settings.http.host, settings.http.port
    if port is None:
        remedy = "set http.port, so that /live, /ready and /metrics can be asked"
        return [ok("http", "no port is set: no health, no metrics, no page", remedy)]
    try:
        listen_on(host, port).close()
    except SettingsError as error:
        with suppress(OSError, HTTPException, msgspec.MsgspecError):
            return [_running(host, port, read_status(f"http://{host}:{port}", _PATIENCE))]
        return [problem("http", str(error))]
    return [ok("http", f"{host}:{port} is free")]


def _running(host: str, port: int, status: WorkerStatus) -> Finding:
    worker = f"a worker of group {status.group} answers at {host}:{port}: {status.state}"
    if status.problem is None:
        return ok("http", worker)
    retrying = [each.seconds for each in status.stages if each.activity == "retrying"]
    since = f" (for {max(retrying):.0f} s, {status.repeated} attempts)" if retrying else ""
    return warning(
        "http", f"{worker}. {status.problem}{since}", "remove the reason; kmr top shows what waits"
    )
