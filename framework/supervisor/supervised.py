"""The process of one worker under a supervisor; its arguments are a file descriptor and a process id.

It has the settings of the command line, with what the supervisor decides: its own member id, its part of the
memory. Signals of a terminal do not reach it, and it ends with its supervisor.
"""

from __future__ import annotations

import asyncio
import os
import signal
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
    Ask,
    Done,
    Job,
    Joined,
    Left,
    MetricFamily,
    Prepared,
    Report,
    Reports,
    Serve,
    Served,
    Stay,
    WorkerFailed,
    decode_from_supervisor,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry

    from ..observe.status import WorkerStatus
    from .messages import FromWorker


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
        self._sending = threading.Lock()
        self._answer: Callable[[Ask], object]
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
        with self._sending:
            self._connection.sendall(encode(message))

    async def admitted(self) -> None:
        """Say that the worker is prepared, and return when it may join the group."""
        self.tell(Prepared())
        await asyncio.wrap_future(self._admitted)

    def report(self, status: Callable[[], WorkerStatus], registry: CollectorRegistry) -> None:
        """Answer each `Ask` from now on. Both are read on the event loop that runs now."""
        loop = asyncio.get_running_loop()

        answering = set[asyncio.Task[None]]()

        async def answer(asked: Ask) -> None:
            metrics = tuple(_families(registry)) if asked.metrics else ()
            report = Report(asked.number, status(), metrics)
            # A supervisor that is suspended does not read: the event loop must not wait for it.
            threading.Thread(target=self._try_to_tell, args=[report], daemon=True).start()

        def begin(asked: Ask) -> None:
            # In a task: anyio tells the time to nothing else.
            task = loop.create_task(answer(asked))
            answering.add(task)
            task.add_done_callback(answering.discard)

        self._answer = lambda asked: loop.call_soon_threadsafe(begin, asked)
        self.tell(Reports())

    def _try_to_tell(self, message: FromWorker) -> None:
        with suppress(OSError):  # the supervisor has ended
            self.tell(message)

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
                case Ask() as asked:
                    with suppress(RuntimeError):  # the event loop has ended
                        self._answer(asked)
        self._on_end()


def _families(registry: CollectorRegistry) -> Iterator[MetricFamily]:
    for family in registry.collect():
        samples = ((each.name, each.labels, str(each.value)) for each in family.samples)
        yield MetricFamily(family.name, family.documentation, family.type, tuple(samples))


def main() -> None:
    """Run the worker and exit with its code."""
    # A hangup is for the supervisor. It has blocked the signal, so that none ends us before this line.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    channel_number, parent = map(int, sys.argv[1:])
    end_with_parent(parent)
    connection = socket.socket(fileno=channel_number)
    connection.set_inheritable(False)
    # Where the kernel can kill us with our supervisor, it was faster.
    channel = Channel(connection, on_end=lambda: os._exit(ExitCode.FAILED))
    try:
        code = _run(channel)
    except KmrError as error:
        channel.tell(WorkerFailed(str(error)))
        code = ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.FAILED
    except BaseException as error:  # noqa: BLE001  the supervisor shows it
        traceback.print_exc()
        channel.tell(WorkerFailed(f"{type(error).__name__}: {error}"))
        code = ExitCode.FAILED
    if code == ExitCode.CLEAN:
        channel.tell(Done())
    sys.exit(code)


def _run(channel: Channel) -> int:
    job = channel.job()
    # Imported only now: from here on the process ends with its supervisor.
    from ..loading import load_strategy
    from ..observe.logs import setup_logs
    from ..settings import WORKER
    from ..sinks.clickhouse import client
    from ..worker import SupervisorLink
    from ..worker_process import run_worker

    config = None if job.config is None else Path(job.config)
    settings = WORKER.load(config, os.environ, {**job.flags, "strategy": job.strategy})
    setup_logs(settings.log, worker=job.index)
    client.serve_elsewhere(channel.serve)
    strategy = load_strategy(settings.strategy or "")
    strategy.validate()

    link = SupervisorLink(
        name=f"worker {job.index}",
        report=channel.report,
        admitted=channel.admitted,
        joined=lambda: channel.tell(Joined()),
        left=lambda: channel.tell(Left()),
        leaves=lambda: channel.leaves,
        failed=lambda reason: channel.tell(WorkerFailed(reason)),
    )
    return run_worker(strategy, settings, link)
