"""A worker as a process: its signals, its exit code, and what a service manager hears of it."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from .config.schema import show_count
from .errors import DeadlineExceeded, Escaped, KmrError
from .observe.metrics import Metrics
from .observe.tracing import telemetry
from .service.notify import ServiceState, notifying
from .service.process import freeze_modules, keep_freed_memory
from .service.process_end import ExitCode, ProcessEnd, exit_now
from .worker import Worker

if TYPE_CHECKING:
    from .settings import Settings
    from .strategy import Strategy
    from .worker import SupervisorLink

_ANSWER_TIMEOUT: Final = 0.2  # seconds


def run_worker(
    strategy: Strategy, settings: Settings, supervisor: SupervisorLink | None = None
) -> int:
    """Run a worker as a process: the first SIGTERM, SIGINT or SIGHUP drains it, a second one ends it.

    A `KmrError` is printed as one message on stderr. When `shutdown_deadline` has passed since the first
    signal or the first failure, the process ends, whatever hangs in it.

    Args:
        supervisor: of several workers; a second signal has no effect on one of them.

    Returns:
        The exit code (`ExitCode`).
    """
    keep_freed_memory(settings.worker_count)
    freeze_modules()
    try:
        return anyio.run(partial(_run_process, strategy, settings, supervisor))
    except SystemExit as error:  # raised by the user's task or callback: asyncio does not catch it
        failure = Escaped(error)
        print(f"kmr: {failure}", file=sys.stderr)  # noqa: T201  the user's message
        return ExitCode.FAILED


async def _run_process(
    strategy: Strategy, settings: Settings, supervisor: SupervisorLink | None
) -> int:
    metrics = Metrics()
    async with telemetry(settings, metrics):
        worker = Worker(strategy, settings, metrics=metrics, supervisor=supervisor)
        return await _run_until_signal(worker, supervisor)


async def _run_until_signal(worker: Worker, supervisor: SupervisorLink | None) -> int:
    loop = asyncio.get_running_loop()

    def request(name: str) -> None:
        loop.call_soon_threadsafe(worker.shutdown, name)

    name = "" if supervisor is None else f"{supervisor.name}: "

    def undone() -> str:
        return name + _ask_undone(worker, loop)

    end = ProcessEnd(worker.deadline, request, undone, once=supervisor is not None)
    end.arm()
    freezing = asyncio.create_task(freeze_when_ready(worker))
    try:
        # Only the first process of a unit speaks for it.
        async with (
            notifying(partial(_service_state, worker)) if supervisor is None else nullcontext()
        ):
            await worker.run()
    except DeadlineExceeded as error:
        exit_now(ExitCode.DEADLINE_EXCEEDED, f"{name}{error}")
    except KmrError as error:
        if supervisor is None:
            print(f"kmr: {error}", file=sys.stderr)  # noqa: T201  the user's message
        else:
            supervisor.failed(str(error))
        return ExitCode.FAILED
    finally:
        freezing.cancel()
    return end.code


def _service_state(worker: Worker) -> ServiceState:
    status = worker.status()
    lag = sum(partition.lag or 0 for partition in status.partitions)
    text = (
        f"{status.state}; {show_count(len(status.partitions), 'partition')}, {lag} records behind"
    )
    if status.problem is not None:
        text += f"; {status.problem}"
    return ServiceState(status.ready, status.live, worker.deadline.at < math.inf, text)


async def freeze_when_ready(worker: Worker) -> None:
    """Freeze what the start has imported, too: compilers and clients are twice as many objects."""
    await worker.ready()
    freeze_modules()


def _ask_undone(worker: Worker, loop: asyncio.AbstractEventLoop) -> str:
    """Describe what is not done, for another thread than that of the event loop, which may stand still."""

    async def ask() -> str:
        return worker.undone()

    asking = ask()
    try:
        undone = asyncio.run_coroutine_threadsafe(asking, loop).result(_ANSWER_TIMEOUT)
    except TimeoutError:
        undone = (
            f"the event loop stands still: a coroutine or an inline map hangs; {worker.in_flight()}"
        )
    except RuntimeError:
        asking.close()
        names = [thread.name for thread in threading.enumerate() if not thread.daemon]
        undone = f"the worker has ended, but not its process (threads: {', '.join(names)})"
    return undone if worker.failure is None else f"{worker.failure}; then {undone}"
