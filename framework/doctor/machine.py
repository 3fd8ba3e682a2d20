"""What this machine gives a worker: memory, processors, file descriptors, the port for HTTP."""

from __future__ import annotations

import resource
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Final

from .._extras import installed_version
from ..config.schema import BYTES, show_quantity
from ..errors import SettingsError
from ..observe.health import listen_on
from ..reducers.finding import Finding
from ..service.process import memory_limit, processor_limit

if TYPE_CHECKING:
    from ..settings import Settings

_LIBRARIES: Final = 130 * 1024 * 1024
"""Bytes that a worker needs beside records and rows (docs/sizing.md)."""

_COPIES: Final = 4
"""A batch may exist so often for a moment: fetched, decoded, mapped, cast for the sink."""

_FEW_DESCRIPTORS: Final = 1024


def check_machine(settings: Settings) -> list[Finding]:
    """Compare the settings with the machine."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("aiokafka", "pyarrow"))
    return [
        Finding(
            "ok", "versions", f"kmr {installed_version()}, Python {python_version()}, {versions}"
        ),
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
        return Finding("ok", "memory", f"{shown}, {flight}")
    return Finding(
        "warning",
        "memory",
        f"{shown}, and with {flight} the process may need {show_quantity(needed >> 20 << 20, BYTES)}: under "
        "load the kernel kills it",
        "lower inflight_bytes or workers, or give it more memory",
    )


def _processors(settings: Settings, processors: int) -> Finding:
    workers = settings.worker_count
    text = f"{workers} workers on {processors} processors"
    if workers <= processors:
        return Finding("ok", "processors", text)
    return Finding(
        "warning", "processors", f"{text}: they slow each other down", "set workers = 'auto'"
    )


def _descriptors(limit: int) -> Finding:
    if limit >= _FEW_DESCRIPTORS or limit == resource.RLIM_INFINITY:
        return Finding("ok", "file descriptors", f"{limit} may be open")
    return Finding(
        "warning",
        "file descriptors",
        f"only {limit} may be open: connections to many brokers and files of a sink may be refused",
        f"raise the limit (ulimit -n, LimitNOFILE=) to {_FEW_DESCRIPTORS} or more",
    )


def _times(settings: Settings) -> list[Finding]:
    found = []
    if settings.heartbeat_interval * 3 > settings.session_timeout:
        found.append(
            Finding(
                "warning",
                "session_timeout",
                f"heartbeat_interval ({settings.heartbeat_interval:g} s) is more than a third of "
                f"session_timeout ({settings.session_timeout:g} s): two lost heartbeats cost the partitions",
                "lower heartbeat_interval",
            )
        )
    if settings.worker_count > 1 and settings.worker_live_timeout < settings.session_timeout:
        found.append(
            Finding(
                "warning",
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
        return [Finding("ok", "http", "no port is set: no health, no metrics, no page", remedy)]
    try:
        listen_on(host, port).close()
    except SettingsError as error:
        return [Finding("problem", "http", str(error))]
    return [Finding("ok", "http", f"{host}:{port} is free")]
