"""The demo's child processes: started, watched, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import Process

__all__ = ["Child", "ChildFailed", "Children", "free_port"]

STOP_TIMEOUT = 30.0


class ChildFailed(Exception):
    """A child process ended when it should not have; the message has the end of its log."""


class Child:
    """One process, with its output in a log file."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

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

    async def stop(self) -> int:
        """Send SIGTERM and wait for the clean end; SIGKILL after 30 s. Returns the exit code."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(STOP_TIMEOUT):
                await self._process.wait()
            if self.running:
                self._process.kill()
            await self._process.wait()
        return self._process.returncode or 0


class Children:
    """Starts `kmr` commands; on leaving, whatever still runs is stopped, the last one first."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._all: list[Child] = []

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in reversed(self._all):
            await child.stop()

    async def start(self, name: str, *arguments: str, **environment: str) -> Child:
        """Run `kmr ARGUMENTS`, in a process group of its own so that Ctrl-C reaches only the demo."""
        log = self._logs / f"{name}.log"
        kmr = str(Path(sys.executable).with_name("kmr"))
        with log.open("wb") as output:
            process = await anyio.open_process(
                [kmr, *arguments],
                stdin=None,
                stdout=output,
                stderr=output,
                env=os.environ | environment,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._all.append(child)
        return child

    def check(self) -> None:
        """Raise ChildFailed if any of them has ended with an error."""
        for child in self._all:
            child.check()

    async def wait_for_port(self, child: Child, port: int, *, timeout: float = 60.0) -> None:
        """Return when the child accepts connections on a port of loopback."""
        with anyio.fail_after(timeout):
            while True:
                child.check()
                try:
                    stream = await anyio.connect_tcp("127.0.0.1", port)
                except OSError:
                    await anyio.sleep(0.05)
                else:
                    await stream.aclose()
                    return


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
