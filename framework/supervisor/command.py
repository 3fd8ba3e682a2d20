"""Run a supervisor as a process: its signals, its last resort, its exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import anyio

from ..service.hangups import take_hangup
from ..service.notify import notifying
from ..service.process_end import ExitCode, ProcessEnd
from .supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from ..settings import Settings


def run_workers(
    settings: Settings,
    config: Path | None,
    flags: Mapping[str, object],
    around: Callable[[Awaitable[tuple[int, str]]], Awaitable[tuple[int, str]]] = lambda work: work,
) -> int:
    """Run several workers until a signal: the first SIGTERM or SIGINT drains all, a second one ends all.

    SIGHUP replaces one worker after the other. When `shutdown_deadline` has passed since the first signal,
    the workers that still run are killed.

    Args:
        config: the TOML file; each worker reads it again.
        flags: the command line's settings, by dotted name.
        around: awaits the workers, and may do something beside them.

    Returns:
        The exit code (`ExitCode`).
    """
    return anyio.run(_run, settings, config, flags, around)


async def _run(
    settings: Settings,
    config: Path | None,
    flags: Mapping[str, object],
    around: Callable[[Awaitable[tuple[int, str]]], Awaitable[tuple[int, str]]],
) -> int:
    supervisor = Supervisor(settings, config, flags)
    loop = asyncio.get_running_loop()

    def request(name: str) -> None:
        loop.call_soon_threadsafe(supervisor.shutdown, name)

    # Not by the event loop: the watchdog of `ProcessEnd` takes the file that wakes the loop for signals.
    signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(supervisor.roll))
    if take_hangup():
        supervisor.roll()
    ProcessEnd(supervisor.deadline, request, supervisor.kill).arm(hangup=False)
    async with notifying(supervisor.service_state):
        code, message = await around(supervisor.run())
    if code != ExitCode.CLEAN:
        print(f"kmr: {message}", file=sys.stderr)  # noqa: T201  the user's message
    return code
