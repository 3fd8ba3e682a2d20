"""The processes of a run: started, killed, stopped in their tracks, restarted, and never left behind."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from anyio.abc import Process, TaskGroup


STOP_TIMEOUT: Final = 40.0
START_TIMEOUT: Final = 90.0
"""Seconds for a service to be ready, on a machine that has much else to do."""
_PORTS: Final = range(20_000, 30_000)
_KMR: Final = (
    "from kmr.service.process import end_with_parent; end_with_parent({parent}); "
    "from kmr.cli import main; main()"
)
"""A `kmr` that the kernel kills when we end, however we end."""


class Recorder(Protocol):
    """Event log. A line is returned as a dict, so that the caller can complete it."""

    def line(self, table: str, **values: object) -> dict[str, Any]:
        """Add a line to a table: "processes" here, "commits" by `GroupsView`."""
        ...

    def event(self, kind: str, name: str, detail: str = "") -> dict[str, Any]:
        """Add an event; "noticed" is an end that we have not caused."""
        ...


class ServiceFailed(Exception):
    """A process did not come up; the message has the end of its log."""


@dataclass(eq=False)
class Service:
    """One process at a time, over and over: `name` is the same for all of them.

    Made by `RunningServices.add`.

    Attributes:
        arguments: of `kmr`; made anew for each start.
        ready_line: what its output says when it is ready.
        waits: whether `start` waits for that.
        http_port: where it serves its metrics, on loopback.
        wanted: whether it should run: false from the moment that we signal it to end.
        starts: how often it was started; `arguments` may use it.
    """

    name: str
    arguments: Callable[[], Sequence[str]]
    services: RunningServices
    environment: Mapping[str, str]
    ready_line: str
    waits: bool
    http_port: int | None = None
    wanted: bool = False
    starts: int = 0

    def __post_init__(self) -> None:
        self._process: Process | None = None
        self._line: dict[str, Any] = {}
        self._ended = anyio.Event()
        self._ready = anyio.Event()
        self._tail: deque[str] = deque(maxlen=20)

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The number of the process that runs, or ran last."""
        assert self._process is not None, f"{self.name} was never started"  # noqa: S101
        return self._process.pid

    @property
    def http_flags(self) -> tuple[str, ...]:
        """The flags of `kmr` for `http_port`."""
        return () if self.http_port is None else ("--http-port", str(self.http_port))

    async def start(self) -> None:
        """Start it, and wait until it is ready, if it is of that kind.

        Raises ServiceFailed if it ends instead.
        """
        assert not self.running, f"{self.name} runs already"  # noqa: S101
        self._ready, self._ended = anyio.Event(), anyio.Event()
        self.starts += 1
        # -P: the user's folder must not hide modules of Python
        kmr = (sys.executable, "-P", "-c", _KMR.format(parent=os.getpid()))
        self._process = await anyio.open_process(
            [*kmr, *self.arguments()],
            stdin=None,
            stderr=subprocess.STDOUT,
            cwd=self.services.directory,
            env={
                **_without_settings(),
                "NO_COLOR": "1",
                "PYTHONUNBUFFERED": "1",
                **self.environment,
            },
            start_new_session=True,  # Ctrl-C reaches the suite alone
        )
        self.wanted = True
        self._line = self.services.recorder.line(
            "processes",
            name=self.name,
            pid=self._process.pid,
            started=time.time_ns(),
            ended=None,
            code=None,
            ending="running",
            ready=False,
        )
        self.services.tasks.start_soon(self._watch, self._process, self._line, self._ended)
        if not self.waits:
            return
        with anyio.move_on_after(START_TIMEOUT):
            await self._ready.wait()
        if not self._ready.is_set() or not self.running:
            raise ServiceFailed(f"{self.name} did not come up:\n{self.tail()}")

    async def until_ended(self) -> None:
        """Wait until it has ended."""
        await self._ended.wait()

    def refused(self) -> str:
        """Accept that the process has ended with exit code 1; return the end of its output."""
        self.wanted = False
        if self._line["code"] == 1:
            self._line["ending"] = "refused"
        return self.tail()

    async def kill(self) -> None:
        """SIGKILL, also for a process that is paused."""
        await self._end(signal.SIGKILL, "killed")

    async def stop(self, *, late: bool = False) -> int:
        """SIGTERM, and SIGKILL if it has not ended after 40 s. Returns the exit code.

        Args:
            late: it cannot finish its work, and has to end with the exit code for that.
        """
        self.resume()
        await self._end(signal.SIGTERM, "late" if late else "stopped")
        return self._process.returncode or 0 if self._process else 0

    def pause(self) -> None:
        """SIGSTOP: it stands still, and its connections stay open."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)

    def limit_files(self, size: int | None) -> None:
        """Let no file of the process grow beyond `size` bytes, like a full disk. None: no limit."""
        with suppress(ProcessLookupError):
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
            soft = hard if size is None else size
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (soft, hard))

    def resident_bytes(self) -> int | None:
        """Its memory now; None when it does not run."""
        if not self.running:
            return None
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return None
        return int(pages) * resource.getpagesize()

    def tail(self) -> str:
        """The end of its output."""
        return "\n".join(self._tail)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            with suppress(ProcessLookupError):
                # not by the process object, which may take the exit code away from asyncio
                os.kill(self._process.pid, number)

    async def _end(self, number: signal.Signals, ending: str) -> None:
        self.wanted = False
        if self._process is None or not self.running:
            return
        self._line["ending"] = ending
        self._send(number)
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(STOP_TIMEOUT):
                await self._ended.wait()
            if not self._ended.is_set():
                self.services.recorder.event(
                    "noticed", self.name, f"had not ended {STOP_TIMEOUT:g} s after {number.name}"
                )
                self._line["ending"] = "died"  # not by our signal
                self._send(signal.SIGKILL)
            await self._ended.wait()

    async def _watch(self, process: Process, line: dict[str, Any], ended: anyio.Event) -> None:
        """Keep its output, and record how it ends."""
        with anyio.CancelScope(shield=True):  # until it has ended: `RunningServices` ends them all
            await self._read(process, line)
            code = await process.wait()
            line |= {"code": code, "ended": time.time_ns()}
            if line["ending"] == "running":
                line["ending"] = "died"
                self.services.recorder.event(
                    "noticed",
                    self.name,
                    f"ended without our signal, with exit code {code}: {self.tail()}",
                )
            self._ready.set()
            ended.set()

    async def _read(self, process: Process, line: dict[str, Any]) -> None:
        assert process.stdout is not None  # noqa: S101
        stream = BufferedByteReceiveStream(process.stdout)
        with self.services.log_of(self.name).open("ab") as log:
            while True:
                try:
                    text = await stream.receive_until(b"\n", 1 << 20)
                except (anyio.EndOfStream, anyio.IncompleteRead):
                    return
                except anyio.DelimiterNotFound:
                    text = await stream.receive_exactly(1 << 20)
                log.write(text + b"\n")
                log.flush()
                self._tail.append(text.decode(errors="replace"))
                if self.ready_line in self._tail[-1]:
                    line["ready"] = True
                    self._ready.set()


class RunningServices:
    """All processes of a run; on leaving, stops those that still run, in reverse order of their start."""

    def __init__(self, logs: Path, recorder: Recorder, directory: Path | None = None) -> None:
        """`directory`: where the processes run; None: where this one runs."""
        self.recorder = recorder
        self.directory = directory
        self.tasks: TaskGroup
        self._logs = logs
        self._all: list[Service] = []

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        self.tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.stop_all()
        finally:
            # Without the error: it goes on as it is, not in a group.
            await self.tasks.__aexit__(None, None, None)

    def add(
        self,
        name: str,
        arguments: Callable[[], Sequence[str]],
        *,
        ready_line: str,
        waits: bool = True,
        **environment: str,
    ) -> Service:
        """Declare a service; it is not started."""
        service = Service(name, arguments, self, environment, ready_line, waits)
        self._all.append(service)
        return service

    def __iter__(self) -> Any:
        return iter(self._all)

    def log_of(self, name: str) -> Path:
        """The file that a service's output goes to, through all its restarts."""
        return self._logs / f"{name}.log"

    async def stop_all(self) -> None:
        """Stop what runs, the last one first, also while this is being cancelled."""
        with anyio.CancelScope(shield=True):
            for service in reversed(self._all):
                await service.stop()


def _without_settings() -> dict[str, str]:
    """The environment of this process, without the settings of other workers and brokers in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KMR_")}


def free_port() -> int:
    """Return a free port of loopback that no outgoing connection is given by chance.

    A port of the ephemeral range can be taken while its service is being restarted, even by a client
    that connects to it, and so to itself.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServiceFailed(f"no port between {_PORTS[0]} and {_PORTS[-1]} of 127.0.0.1 is free")


class ProcessRecord:
    """A `Recorder` that keeps processes and what was noticed, and forgets the rest.

    Attributes:
        processes: a line for each: name, pid, ending, code.
        noticed: what happened that we have not caused.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """Call `say` with each message."""
        self.processes: list[dict[str, Any]] = []
        self.noticed: list[str] = []
        self._say = say

    def line(self, table: str, **values: object) -> dict[str, Any]:
        if table == "processes":
            self.processes.append(values)
        return values

    def event(self, kind: str, name: str, detail: str = "") -> dict[str, Any]:
        if kind == "noticed":
            self.noticed.append(f"{name}: {detail}")
            self._say(f"noticed: {name} {detail.splitlines()[0] if detail else ''}")
        return {"kind": kind, "name": name, "detail": detail, "time": time.time_ns()}

    def died(self) -> list[str]:
        """The processes that ended without a signal of ours, or did not end in time after one."""
        return [
            f"{line['name']} (process {line['pid']}) with exit code {line['code']}"
            for line in self.processes
            if line["ending"] == "died"
        ]
