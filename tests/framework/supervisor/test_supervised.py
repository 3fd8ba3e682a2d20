"""A worker's end of the channel to its supervisor."""

from __future__ import annotations

import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from kmr.errors import SinkError
from kmr.settings import Settings
from kmr.strategy import Strategy
from kmr.supervisor.messages import (
    Admit,
    FromSupervisor,
    Job,
    Prepared,
    Serve,
    Served,
    Stay,
    decode_from_worker,
    encode,
)
from kmr.supervisor.process import COMMAND
from kmr.supervisor.supervised import Channel
from kmr.testing import Journal, MemoryConsumer, MemoryWriter
from kmr.worker import SupervisorLink, Worker
from tests.framework.workers import P0, locate, put

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB = Job(0, "flow", None, {}, leaves=True)


class Supervisor:
    """The other end."""

    def __init__(self) -> None:
        self.connection, self.worker = socket.socketpair()
        self.ended = threading.Event()
        self._lines = self.connection.makefile("rb")

    def tell(self, message: FromSupervisor) -> None:
        self.connection.sendall(encode(message))

    def hears(self) -> object:
        return decode_from_worker(self._lines.readline())

    def end(self) -> None:
        """End as the process does."""
        self.connection.shutdown(socket.SHUT_RDWR)
        assert self.ended.wait(60)
        self._lines.close()
        self.connection.close()
        self.worker.close()


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor()
    yield supervisor
    supervisor.end()


@pytest.fixture
def channel(supervisor: Supervisor) -> Channel:
    channel = Channel(supervisor.worker, supervisor.ended.set)
    supervisor.tell(JOB)
    assert channel.job() == JOB
    return channel


async def test_a_worker_says_that_it_is_prepared_and_waits(
    supervisor: Supervisor, channel: Channel
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.admitted)
        assert await anyio.to_thread.run_sync(supervisor.hears) == Prepared()
        assert channel.leaves
        supervisor.tell(Stay())
        supervisor.tell(Admit())
    assert not channel.leaves


def test_a_worker_asks_where_a_directory_is_served(
    supervisor: Supervisor, channel: Channel
) -> None:
    with ThreadPoolExecutor() as threads:
        url = threads.submit(channel.serve, Path("/data"))
        assert supervisor.hears() == Serve("/data")
        supervisor.tell(Served("http://127.0.0.1:1"))
        assert url.result() == "http://127.0.0.1:1"
        refused = threads.submit(channel.serve, Path("/other"))
        assert supervisor.hears() == Serve("/other")
        supervisor.tell(Served(None, "in use"))
        with pytest.raises(SinkError, match="in use"):
            refused.result()


def test_a_worker_whose_supervisor_ends_before_its_job_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = subprocess.Popen(
            [*COMMAND, str(theirs.fileno()), "1"],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
        )
        _, errors = worker.communicate(timeout=60)
    assert (worker.returncode, errors) == (1, b"")


async def test_a_worker_of_several_joins_when_it_is_admitted_and_says_when_it_has_left() -> None:
    consumer, journal = MemoryConsumer(), Journal()
    prepared, admission, said = anyio.Event(), anyio.Event(), list[str]()

    async def admitted() -> None:
        prepared.set()
        await admission.wait()

    link = SupervisorLink(
        name="worker 1",
        report=lambda status, registry: said.append("reports"),
        admitted=admitted,
        joined=lambda: said.append("joined"),
        left=lambda: said.append("left"),
        leaves=lambda: True,
        failed=said.append,
    )
    strategy = Strategy(locate, [MemoryWriter(journal, max_rows=1)])
    worker = Worker(
        strategy, Settings(topics=("t",), group="g"), consumer=consumer, supervisor=link
    )
    async with anyio.create_task_group() as tasks:
        tasks.cancel_scope.deadline = anyio.current_time() + 60
        tasks.start_soon(worker.run)
        await prepared.wait()
        assert said == ["reports"]
        assert not consumer.started.is_set()
        admission.set()
        await consumer.started.wait()
        await consumer.assign([P0])
        put(consumer, 0, 0, b"a")
        await journal.until(lambda j: j.count == 1)
        worker.shutdown("the test is over")
    assert said == ["reports", "joined", "left"]


class Leaving(MemoryConsumer):
    """Knows whether it has left the group."""

    leaves: bool | None = None

    async def stop(self, *, leave: bool = False) -> None:
        self.leaves = leave
        await super().stop(leave=leave)


@pytest.mark.parametrize(("replaced", "fails"), [(False, False), (True, False), (False, True)])
async def test_a_worker_leaves_the_group_unless_it_is_replaced_or_has_failed(
    replaced: bool, fails: bool
) -> None:
    consumer, journal = Leaving(), Journal()

    async def admitted() -> None:
        pass

    link = SupervisorLink(
        name="worker 1",
        report=lambda status, registry: None,
        admitted=admitted,
        joined=lambda: None,
        left=lambda: None,
        leaves=lambda: not replaced,
        failed=lambda reason: None,
    )
    strategy = Strategy(locate, [MemoryWriter(journal, max_rows=1)])
    settings = Settings(topics=("t",), group="g", commit_interval=3600)
    worker = Worker(strategy, settings, consumer=consumer, supervisor=link)
    with suppress(BaseExceptionGroup):
        async with anyio.create_task_group() as tasks:
            tasks.cancel_scope.deadline = anyio.current_time() + 60
            tasks.start_soon(worker.run)
            await consumer.started.wait()
            await consumer.assign([P0])
            put(consumer, 0, 0, b"a")
            await journal.until(lambda j: j.count == 1)
            while not worker.status().settled:  # noqa: ASYNC110  the journal is told before
                await anyio.sleep(0.01)
            if fails:
                put(consumer, 0, 1, b"poison")
            else:
                worker.shutdown("the test is over")
    assert (worker.failure is not None) == fails
    assert consumer.leaves == (not replaced and not fails)
    assert consumer.commits[-1] == {P0: 1}, "a worker that fails commits what is settled, too"
