"""The process of one worker under a supervisor; its arguments are two file descriptors and a process id.

It has the settings of the command line, with what the supervisor decides: its own member id, its part of the
memory, its own address for HTTP. Signals of a terminal do not reach it, and it ends with its supervisor.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import traceback
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import KmrError, SettingsError, SinkError
from ..service.process import end_with_parent
from ..service.process_end import ExitCode
from .messages import (
    Admit,
    Failed,
    Job,
    Joined,
    Left,
    Prepared,
    Serve,
    Served,
    Serving,
    Stay,
    decode_from_supervisor,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .messages import FromWorker

__all__ = ["Channel", "main"]


class Channel:
    """The worker's end of the socket pair. A thread reads it: the event loop may stand still.

    Args:
        connection: the socket.
        on_end: called in that thread when the supervisor has ended.
    """

    def __init__(self, connection: socket.socket, on_end: Callable[[], None]) -> None:
        self._connection = connection
        self._on_end = on_end
        self._lines = self._read()
        self._admitted: Future[None] = Future()
        self._served: Future[Served] = Future()
        self._asking = threading.Lock()
        self.leaves = False

    def job(self) -> Job:
        """Return the first message; read the others in a thread from now on."""
        job = decode_from_supervisor(next(self._lines))
        assert isinstance(job, Job)  # noqa: S101
        self.leaves = job.leaves
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()
        return job

    def tell(self, message: FromWorker) -> None:
        """Send a message, from any thread."""
        self._connection.sendall(encode(message))

    async def admitted(self) -> None:
        """Say that the worker is prepared, and return when it may join the group."""
        self.tell(Prepared())
        await asyncio.wrap_future(self._admitted)

    def serve(self, path: Path) -> str:
        """Ask for the URL of the server of a ClickHouse directory. Blocks. Raises SinkError."""
        with self._asking:
            self._served = Future()
            self.tell(Serve(str(path)))
            served = self._served.result()
        if served.url is None:
            raise SinkError(served.problem)
        return served.url

    def _read(self) -> Iterator[bytes]:
        # A supervisor that ends without having read all that it was told resets the connection.
        with self._connection.makefile("rb") as lines, suppress(ConnectionError):
            yield from lines

    def _listen(self) -> None:
        for line in self._lines:
            match decode_from_supervisor(line):
                case Admit():
                    self._admitted.set_result(None)
                case Stay():
                    self.leaves = False
                case Served() as served:
                    self._served.set_result(served)
        self._on_end()


def main() -> None:
    """Run the worker and exit with its code."""
    channel_number, listener_number, parent = map(int, sys.argv[1:])
    end_with_parent(parent)
    listener = socket.socket(fileno=listener_number)
    connection = socket.socket(fileno=channel_number)
    for each in (listener, connection):
        each.set_inheritable(False)
    # Where the kernel can kill us with our supervisor, it was faster.
    channel = Channel(connection, on_end=lambda: os._exit(ExitCode.FAILED))
    try:
        code = _run(channel, listener)
    except KmrError as error:
        channel.tell(Failed(str(error)))
        code = ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.FAILED
    except Exception as error:  # noqa: BLE001  the supervisor shows it
        traceback.print_exc()
        channel.tell(Failed(f"{type(error).__name__}: {error}"))
        code = ExitCode.FAILED
    sys.exit(code)


def _run(channel: Channel, listener: socket.socket) -> int:
    job = channel.job()
    # Imported only now: from here on the process ends with its supervisor.
    from ..loading import load_strategy
    from ..observe.logs import setup_logs
    from ..settings import WORKER
    from ..sinks.clickhouse import client
    from ..worker import Seat, run_worker

    config = None if job.config is None else Path(job.config)
    settings = WORKER.load(config, os.environ, {**job.flags, "strategy": job.strategy})
    setup_logs(settings.log, worker=job.index)
    client.serve_elsewhere(channel.serve)
    strategy = load_strategy(settings.strategy or "")
    strategy.validate()

    def listen() -> socket.socket:
        channel.tell(Serving())
        return listener

    seat = Seat(
        name=f"worker {job.index}",
        listen=listen,
        admitted=channel.admitted,
        joined=lambda: channel.tell(Joined()),
        left=lambda: channel.tell(Left()),
        leaves=lambda: channel.leaves,
        failed=lambda reason: channel.tell(Failed(reason)),
    )
    return run_worker(strategy, settings, seat)
