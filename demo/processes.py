"""The demo's child processes: started, watched, and never left behind, nor what they have started."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from anyio.abc import Process

__all__ = [
    "STALL",
    "Child",
    "ChildFailed",
    "Children",
    "give_up_after",
    "session_members",
]

STALL: Final = 300.0
"""Seconds without any progress after which the demo gives up."""

STOP_TIMEOUT: Final = 30.0
LEFT_TIMEOUT: Final = 5.0
_POLL: Final = 0.05
_PROCESSES: Final = Path("/proc")


class ChildFailed(Exception):
    """A child process ended when it should not have; the message has the end of its log."""


class Child:
    """One process, the leader of a session of its own, with its output in a log file.

    What it starts (Spark's JVM, the JVM's Python processes) is in the same session, and ends with it.

    Args:
        patience: seconds that it has between SIGTERM and SIGKILL.
        watched: whether `Children.check` checks it.
    """

    def __init__(
        self, name: str, process: Process, log: Path, patience: float, *, watched: bool = True
    ) -> None:
        self.name = name
        self.log = log
        self.watched = watched
        self._process = process
        self._patience = patience

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    def check(self) -> None:
        """Raise ChildFailed if it has ended with an error."""
        code = self._process.returncode
        if code:
            raise ChildFailed(f"{self.name} ended with exit code {code}:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def wait(self) -> None:
        """Return when it has ended, with any exit code."""
        await self._process.wait()

    async def stop(self) -> int:
        """Send SIGTERM and wait for the clean end; SIGKILL after `patience`. Returns the exit code."""
        self._send(signal.SIGTERM)
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self._patience):
                await self._process.wait()
            self._send(signal.SIGKILL)
            await self._process.wait()
            await self._end_session()
        return self._process.returncode or 0

    def kill(self) -> None:
        """End it and what it started at once; `stop` still has to be called."""
        self._send(signal.SIGKILL)
        _kill_session(self._process.pid)

    def _send(self, number: signal.Signals) -> None:
        # Not by the process object: that looks first whether the process has ended, and takes its exit code
        # away from asyncio, which then reports 255.
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _end_session(self) -> None:
        """Wait until its child processes have ended; kill those that do not."""
        await self._until_alone()
        _kill_session(self._process.pid)
        await self._until_alone()

    async def _until_alone(self) -> None:
        with anyio.move_on_after(LEFT_TIMEOUT):
            while session_members(self._process.pid):  # noqa: ASYNC110  there is no event to wait for
                await anyio.sleep(_POLL)


class Children:
    """Starts `kmr` commands; on leaving, stops those that still run, in reverse order of their start.

    Attributes:
        logs: the directory of their logs, `NAME.log` each.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._all: list[Child] = []

    async def __aenter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in reversed(self._all):
            await child.stop()

    async def start(
        self,
        name: str,
        *arguments: str,
        patience: float = STOP_TIMEOUT,
        watched: bool = True,
        **environment: str,
    ) -> Child:
        """Run `kmr ARGUMENTS`, in a session of its own so that Ctrl-C reaches only the demo."""
        command = [str(Path(sys.executable).with_name("kmr")), *arguments]
        return await self.spawn(
            name, command, patience=patience, watched=watched, environment=environment
        )

    async def spawn(
        self,
        name: str,
        command: Sequence[str],
        *,
        directory: Path | None = None,
        patience: float = STOP_TIMEOUT,
        watched: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Run any program, in this directory or another, as `start` does with `kmr`."""
        log = self.logs / f"{name}.log"
        # Shielded: a process that is started is known, and so is stopped.
        with log.open("wb") as output, anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                command,
                stdin=None,
                stdout=output,
                stderr=output,
                cwd=directory,
                env=os.environ | dict(environment or {}),
                start_new_session=True,
            )
            child = Child(name, process, log, patience, watched=watched)
            self._all.append(child)
        return child

    def check(self) -> None:
        """Raise ChildFailed if any of them that is watched has ended with an error."""
        for child in self._all:
            if child.watched:
                child.check()

    def kill(self) -> None:
        """End all of them at once, for somebody who does not want to wait."""
        for child in self._all:
            child.kill()

    async def wait_for_port(self, child: Child, port: int) -> None:
        """Return when the child accepts connections on a port of loopback."""
        with give_up_after(STALL, f"{child.name} does not listen"):
            while True:
                child.check()
                try:
                    stream = await anyio.connect_tcp("127.0.0.1", port)
                except OSError:
                    await anyio.sleep(_POLL)
                else:
                    await stream.aclose()
                    return


@contextmanager
def give_up_after(seconds: float, what: str) -> Iterator[None]:
    """Raise ChildFailed, with what it is that does not happen, if its block takes longer."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise ChildFailed(f"{what}, {seconds:.0f} s long")


def session_members(session: int) -> list[int]:
    """Ids of the processes of a session that have not ended; none where there is no /proc."""
    found = []
    for stat in _PROCESSES.glob("[0-9]*/stat"):
        try:
            # After the command's name, which may have blanks and brackets: state, parent, group, session.
            state, _, _, member_of = stat.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # it has ended
        if int(member_of) == session and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def _kill_session(session: int) -> None:
    if not _PROCESSES.is_dir():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)  # a session begins as one group
    for member in session_members(session):
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
