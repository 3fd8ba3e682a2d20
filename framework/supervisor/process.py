"""The process of one worker, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final, Self

import anyio
from anyio.lowlevel import checkpoint

from ..service.watchdog import ABANDON
from .messages import (
    Admit,
    Ask,
    Done,
    Joined,
    Left,
    Prepared,
    Report,
    Reports,
    Serve,
    Served,
    Stay,
    WorkerFailed,
    decode_from_worker,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import Process

    from .messages import FromSupervisor, Job

COMMAND: Final = (sys.executable, "-P", "-c", "from kmr.supervisor.supervised import main; main()")
"""What a worker's process is started with. `-P`: the user's folder must not hide modules of Python. Not by
`-m`: the processes of its executor would run the module as a file, which cannot import its neighbours."""

_LAST_WORDS_TIMEOUT: Final = 1.0  # seconds
_READ_BYTES: Final = 64 * 1024
_spawning: Final = anyio.Lock()  # each of them blocks a signal meanwhile
_LONGEST_MESSAGE: Final = 64 * 1024 * 1024  # bytes: metrics of thousands of partitions
_TURNS_TO_READ: Final = 3  # turns of the event loop in which it reads all bytes that have arrived


class WorkerProcess:
    """One process, from its start to its end.

    Attributes:
        index: of the worker.
        pid: its process id.
        reports: set when it can be asked for a report.
        prepared: set when it waits to be admitted.
        joined: set when it has joined the group.
        left: set when it has drained and uses the group no more.
        ended: set when the process is gone.
        done: whether it has said that it has drained, and ends.
        code: the exit code, once it has ended; negative: the number of the signal that killed it.
    """

    def __init__(
        self,
        index: int,
        process: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.index = index
        self.pid = process.pid
        self.reports = anyio.Event()
        self.prepared = anyio.Event()
        self.joined = anyio.Event()
        self.left = anyio.Event()
        self.ended = anyio.Event()
        self.done = False
        self.code = 0
        self._process = process
        self._reader = reader
        self._writer = writer
        self._failure = ""
        self._killed_for = ""
        self._admitted = False
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Report | None]] = {}

    @classmethod
    async def start(cls, job: Job, command: Sequence[str] = COMMAND) -> Self:
        """Start a process in a session of its own: signals of a terminal are for the supervisor.

        `run` must be called afterwards. Raises OSError if there are no more processes or sockets.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            async with _spawning:
                # The child inherits the block, until it ignores the signal.
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
                try:
                    process = await anyio.open_process(
                        [*command, str(theirs.fileno()), str(os.getpid())],
                        stdin=subprocess.DEVNULL,
                        stdout=None,
                        stderr=None,
                        pass_fds=(theirs.fileno(),),
                        start_new_session=True,
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        started = cls(job.index, process, *await connect(ours))
        started.tell(job)
        return started

    async def run(self, serve: Callable[[str], Awaitable[Served]]) -> None:
        """Handle the worker's messages, and return when the process has ended.

        Args:
            serve: serves a ClickHouse directory.
        """
        async with self._process:  # kills it if this task is cancelled
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._listen, serve)
                    self.code = await self._process.wait()
                    # Its last words may still be unread. A process that it has left behind may hold
                    # the socket.
                    tasks.cancel_scope.deadline = anyio.current_time() + _LAST_WORDS_TIMEOUT
                for _ in range(_TURNS_TO_READ):
                    await checkpoint()
            finally:
                self._writer.close()
        self._reader.feed_eof()
        await self._listen(serve)  # to what had arrived when the time was up
        for asked in self._asked.values():
            asked.set_result(None)
        self.ended.set()

    async def _listen(self, serve: Callable[[str], Awaitable[Served]]) -> None:
        async for line in self._reader:
            match decode_from_worker(line):
                case Reports():
                    self.reports.set()
                case Report(number) as report if number in self._asked:
                    self._asked.pop(number).set_result(report)
                case Prepared():
                    self.prepared.set()
                case Joined():
                    self.joined.set()
                case Left():
                    self.left.set()
                case Done():
                    self.done = True
                case WorkerFailed(reason):
                    self._failure = reason
                case Serve(path):
                    self.tell(await serve(path))

    async def ask(self, timeout: float, *, metrics: bool = False) -> Report | None:
        """Return the worker's report; None if it has sent none within `timeout` seconds."""
        number = next(self._numbers)
        asked: asyncio.Future[Report | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self.tell(Ask(number, metrics))
        try:
            with anyio.move_on_after(timeout):
                return await asked
        finally:
            self._asked.pop(number, None)
        return None

    def tell(self, message: FromSupervisor) -> None:
        """Send a message; nothing happens if the process has ended."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def admit(self) -> None:
        """Let it join the group; further calls have no effect."""
        if not self._admitted:
            self._admitted = True
            self.tell(Admit())

    def stop(self, *, stay: bool = False) -> None:
        """Let it drain and end. Return at once.

        Args:
            stay: it does not leave the group: another takes its place.
        """
        if stay:
            self.tell(Stay())
        self._send(signal.SIGTERM)

    def abandon(self, reason: str) -> None:
        """Let it print its stacks and end, though it hangs. Return at once; `kill` it after a time.

        Args:
            reason: why, for `ending`.
        """
        self._killed_for = reason
        self._send(ABANDON)

    def kill(self, reason: str = "") -> None:
        """End it at once, from any thread; `reason`: why, for `ending`."""
        self._killed_for = reason
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        # Not by the process object: that takes the exit code away from asyncio, which then reports 255.
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def ending(self) -> str:
        """Why it ended, as a part of a message."""
        if self._failure:
            return self._failure
        if self._killed_for:
            return f"killed, because it was {self._killed_for}"
        if self.code < 0:
            return f"killed by signal {-self.code} ({signal.strsignal(-self.code)})"
        return f"ended with exit code {self.code}"


class _ReadToTheEnd(asyncio.StreamReaderProtocol):
    """A lost connection is its end. As an error it would hide what was received before it.

    A process that ends without having read all that it was told resets its connection. What is told to one
    that has ended breaks it, with the last words of the process unread.
    """

    def __init__(self, reader: asyncio.StreamReader, connection: socket.socket) -> None:
        super().__init__(reader)
        self._reader = reader
        self._connection = connection

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            with suppress(OSError):
                while words := self._connection.recv(_READ_BYTES):
                    self._reader.feed_data(words)
        super().connection_lost(None)


async def connect(connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LONGEST_MESSAGE)
    protocol = _ReadToTheEnd(reader, connection)
    transport, _ = await loop.create_connection(lambda: protocol, sock=connection)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
