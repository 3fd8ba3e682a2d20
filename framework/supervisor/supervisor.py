"""Keep several workers running, until a signal or until one of them cannot be kept.

    the worker's process                    what the supervisor does
    ends by itself, or is killed            starts it again, later each time (`Restarts`)
    hangs (`wait_until_hung`)               kills it and starts it again, likewise
    is refused by usage (exit code 2)       ends all: the same would be refused again
    fails before any worker has joined      ends all, with that error: so does a wrong topic
    ends more than `worker_restarts` times  ends all, with the first error

Each worker is a static member of the group: when it is started again, it has the same partitions without a
rebalance, and no other worker stops. A rolling restart first prepares a new process (imports, compiled code,
connections), and only then ends the old one, so that its partitions stand still for the drain alone.
"""

from __future__ import annotations

import signal
import socket
import time
import uuid
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import anyio
import structlog

from .._extras import installed_version, require_extra
from ..errors import KmrError
from ..observe.health import HealthServer, listen_on
from ..service.deadline import Deadline
from ..service.notify import ServiceState
from ..service.process_end import ExitCode
from .fleet_status import FleetStatus
from .messages import Job, Served
from .process import COMMAND, WorkerProcess
from .supervised_worker import Restarts, SupervisedWorker, wait_until_hung

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..settings import Settings


_MARGIN: Final = 2.5
"""Seconds, or a quarter of the deadline, that a worker's own ends before the supervisor's: meanwhile its
watchdog prints the stack of a call that hangs."""

_ABANDONED: Final = 2.0  # seconds that a worker has to print its stacks

_log = structlog.get_logger(__name__)


class Supervisor:
    """Runs `settings.worker_count` workers in processes of their own.

    Args:
        settings: of the command.
        config: the TOML file, which each worker reads again when it starts.
        flags: the command line's settings, by dotted name.
        command: starts a worker's process.

    Attributes:
        deadline: that of the shutdown.
        url: the address of the HTTP server; None without one.
    """

    def __init__(
        self,
        settings: Settings,
        config: Path | None = None,
        flags: Mapping[str, object] | None = None,
        *,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._settings = settings
        self._config = config
        self._flags = flags or {}
        self._command = command
        self.workers = [
            SupervisedWorker(
                index, Restarts(settings.worker_restarts, settings.worker_restart_period)
            )
            for index in range(settings.worker_count)
        ]
        # Without a name that the user gave, no later process takes the members' places: they leave.
        name = settings.group_instance_id
        self._prefix = name or f"{settings.client_id}-{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self._leaves = name is None
        self._processes: set[WorkerProcess] = set()
        self._failure: tuple[int, str] | None = None
        self._late: list[str] = []
        self._killed: str | None = None
        self._any_joined = False
        self._ending = anyio.Event()
        self._rolls = anyio.Event()
        self.deadline = Deadline(settings.shutdown_deadline)
        self.url: str | None = None

    def shutdown(self, reason: str) -> None:
        """Let all workers drain, and return; `run` returns when they have ended."""
        if not self._ending.is_set():
            _log.info("draining", reason=reason, workers=len(self._processes))
            self.deadline.begin()
            self._ending.set()
            for process in self._processes:
                process.stop()

    def roll(self) -> None:
        """Let one worker after the other be replaced by a new process, and return."""
        self._rolls.set()

    def kill(self) -> str:
        """End the workers that still run, from any thread; name them, as a message."""
        left = [process for process in list(self._processes) if not process.ended.is_set()]
        named = ", ".join(f"worker {each.index} (process {each.pid})" for each in left)
        self._killed = (
            f"{named or 'the supervisor'} has not ended within shutdown_deadline "
            f"({self.deadline.seconds:g} s) and was killed: records that it had not committed will be "
            "delivered again"
        )
        for process in left:
            process.kill()  # `run` may notice it before this process ends
        return self._killed

    async def run(self) -> tuple[int, str]:
        """Keep the workers running until `shutdown`, until all have caught up, or until one cannot be kept.

        Returns:
            The exit code (`ExitCode`), and the message if it is not 0.

        Raises:
            SettingsError: the HTTP server cannot listen.
        """
        settings = self._settings
        _log.info(
            "starting workers",
            version=installed_version(),
            workers=len(self.workers),
            group=settings.group,
            members=self._prefix,
        )
        async with AsyncExitStack() as stack:
            if settings.http.port is not None:
                server = HealthServer(
                    FleetStatus(settings, self.workers),
                    partial(listen_on, settings.http.host, settings.http.port),
                )
                self.url = (await stack.enter_async_context(server)).url
            self._directories = await stack.enter_async_context(Directories())
            async with anyio.create_task_group() as watching:
                self._watching = watching
                async with anyio.create_task_group() as keeping:
                    watching.start_soon(self._roll_when_asked)
                    for worker in self.workers:
                        keeping.start_soon(self._keep, worker)
                self._ending.set()
                for process in self._processes:  # successors that were not needed any more
                    process.stop()
                while self._processes:
                    await next(iter(self._processes)).ended.wait()
                watching.cancel_scope.cancel()
        outcome = self._outcome()
        _log.info("all workers have ended", exit_code=outcome[0])
        return outcome

    def service_state(self) -> ServiceState:
        """Return how the workers are, for systemd. A worker that hangs is killed here, not by systemd."""
        joined = sum(
            worker.process is not None and worker.process.joined.is_set() for worker in self.workers
        )
        return ServiceState(
            ready=joined == len(self.workers),
            live=True,
            stopping=self._ending.is_set(),
            text=f"{joined} of {len(self.workers)} workers are members of the group",
        )

    def _outcome(self) -> tuple[int, str]:
        if self._killed is not None:
            return ExitCode.DEADLINE_EXCEEDED, self._killed
        if self._failure is not None:
            return self._failure
        if self._late:
            return ExitCode.DEADLINE_EXCEEDED, "; ".join(self._late)
        return ExitCode.CLEAN, ""

    async def _start(self, worker: SupervisedWorker) -> WorkerProcess:
        """Start a process for a worker; it waits to be admitted."""
        settings, seconds = self._settings, self._settings.shutdown_deadline
        flags = {
            **self._flags,
            "workers": len(self.workers),
            "group_instance_id": f"{self._prefix}-{worker.index}",
            "shutdown_deadline": seconds - min(_MARGIN, seconds / 4),
        }
        job = Job(
            index=worker.index,
            strategy=settings.strategy,
            config=None if self._config is None else str(self._config),
            flags=flags,
            leaves=self._leaves,
        )
        process = await WorkerProcess.start(job, self._command)
        self._processes.add(process)
        if self._ending.is_set():
            process.stop()
        self._watching.start_soon(self._watch, process)
        return process

    async def _watch(self, process: WorkerProcess) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._kill_if_hung, process)
            await process.run(self._directories.serve)
            tasks.cancel_scope.cancel()
        self._processes.discard(process)

    async def _kill_if_hung(self, process: WorkerProcess) -> None:
        reason = await wait_until_hung(process, self._settings.worker_live_timeout)
        if not self._ending.is_set():  # a drain has its own deadline
            _log.error("a worker hangs and is killed", worker=process.index, reason=reason)
            process.abandon(reason)
            await anyio.sleep(_ABANDONED)
            process.kill(reason)

    async def _keep(self, worker: SupervisedWorker) -> None:
        """Keep a worker running, one process after the other."""
        while not self._ending.is_set():
            process = worker.successor or await self._start(worker)
            worker.successor = None
            worker.begin(process)
            process.admit()
            await process.ended.wait()
            self._any_joined = self._any_joined or process.joined.is_set()
            worker.end()
            if self._ending.is_set():
                self._note_drain(process)
            elif worker.successor is None:
                if process.done and self._settings.until_caught_up:
                    return
                await self._wait_for_restart(worker, process)

    def _note_drain(self, process: WorkerProcess) -> None:
        """Note how a process ended that was told to. SIGTERM itself ends one that has not begun."""
        if process.code == -signal.SIGTERM:
            return
        if process.code == ExitCode.DEADLINE_EXCEEDED:
            self._late.append(f"worker {process.index} did not drain within shutdown_deadline")
        elif process.code and self._failure is None:
            self._failure = (ExitCode.FAILED, f"worker {process.index}: {process.ending}")

    async def _wait_for_restart(self, worker: SupervisedWorker, process: WorkerProcess) -> None:
        """Wait until a worker may be started again, or end all of them."""
        reason, name = process.ending, f"worker {worker.index}"
        worker.note_end(reason)
        joined = self._any_joined or any(each.joined.is_set() for each in self._processes)
        delay = worker.restarts.delay(time.monotonic(), reason)
        if process.code == ExitCode.USAGE:
            self._give_up(ExitCode.USAGE, reason)
        elif process.code == ExitCode.FAILED and not joined:
            self._give_up(ExitCode.FAILED, reason)
        elif delay is None:
            restarts = worker.restarts
            self._give_up(
                ExitCode.FAILED,
                f"{name} has ended {restarts.most + 1} times within {restarts.period:g} s "
                f"(worker_restarts, worker_restart_period), at first: {restarts.first_reason}",
            )
        else:
            worker.problem = f"{reason}; restarts in {delay:g} s"
            _log.error("a worker has ended", worker=worker.index, reason=reason, restarts_in=delay)
            with anyio.move_on_after(delay):
                await self._ending.wait()

    def _give_up(self, code: int, message: str) -> None:
        if self._failure is None:
            self._failure = (code, message)
            self.shutdown("a worker cannot be kept running")

    async def _roll_when_asked(self) -> None:
        while True:
            await self._rolls.wait()
            self._rolls = anyio.Event()
            _log.info("rolling restart", workers=len(self.workers))
            for worker in self.workers:
                if not await self._replace(worker):
                    break
            else:
                _log.info("rolling restart ended")

    async def _replace(self, worker: SupervisedWorker) -> bool:
        """Prepare a new process, end the present one, and wait until the new one has joined.

        Returns:
            False if the new process ended instead: the present one goes on.
        """
        if self._ending.is_set():
            return False
        successor = await self._start(worker)
        await _first_of(successor.prepared, successor.ended)
        if self._ending.is_set():
            return False
        if successor.ended.is_set():
            _log.error(
                "rolling restart given up: the new process of a worker has ended; the present one goes on",
                worker=worker.index,
                reason=successor.ending,
            )
            return False
        worker.successor, present = successor, worker.process
        if present is not None:
            present.stop(stay=True)
            await _first_of(present.left, present.ended)
            successor.admit()  # before the old process is gone: its end takes longer than to join
        await _first_of(successor.joined, successor.ended)
        return successor.joined.is_set()


async def _first_of(*events: anyio.Event) -> None:
    """Return when one of the events is set."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


class Directories:
    """Serves a directory from the first request for it until the end of the context."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._served: dict[str, str] = {}
        self._lock = anyio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def serve(self, path: str) -> Served:
        """Return the URL of a directory, and serve it from now on; return the problem if that fails."""
        async with self._lock:
            try:
                if path not in self._served:
                    self._served[path] = await self._start(path)
                return Served(self._served[path])
            except Exception as error:  # noqa: BLE001  the worker raises it
                reason = str(error) if isinstance(error, KmrError) else repr(error)
                return Served(None, f"the supervisor cannot serve {path}: {reason}")

    async def _start(self, path: str) -> str:
        require_extra("embedded", "The embedded ClickHouse")
        from ..embedded.server import EmbeddedClickHouse

        server = await self._stack.enter_async_context(EmbeddedClickHouse(path))
        return server.url
