"""Kafka clients as their users install them, and brokers in processes of their own."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from .clients.via_aiokafka import Aiokafka
from .clients.via_kafka_python import KafkaPython
from .clients.via_kcat import Kcat
from .clients.via_librdkafka import Librdkafka

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Iterator

    from .clients.base import AdminClient, Client

ADMIN_CLIENTS = (Aiokafka(), Librdkafka(), KafkaPython())
CLIENTS = (*ADMIN_CLIENTS, Kcat())


LEAKS = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""kafka-python forgets to close sockets that could not connect."""


@pytest.fixture(params=[pytest.param(each, id=each.name, marks=LEAKS) for each in CLIENTS])
def client(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Client]:
    """Each client in turn."""
    client: Client = request.param
    if client.missing:
        pytest.skip(client.missing)
    with caplog.at_level(logging.CRITICAL, "kafka"):  # log records would keep the sockets alive
        yield client
    if isinstance(client, KafkaPython):
        gc.collect()  # while the warnings are ignored


@pytest.fixture(params=[pytest.param(each, id=each.name) for each in ADMIN_CLIENTS])
def admin_client(request: pytest.FixtureRequest) -> AdminClient:
    """Each client with an admin API in turn."""
    client: AdminClient = request.param
    return client


@pytest.fixture(scope="session")
def clients() -> list[Client]:
    """All clients that are installed."""
    return [client for client in CLIENTS if not client.missing]


class BrokerProcess:
    """`kmr broker serve` as a process: `servers` is its address, `log` what it logs."""

    def __init__(self, process: Process, servers: str, log: Path) -> None:
        self.servers = servers
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def memory(self) -> int:
        """Resident bytes of memory that the process has of its own."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
        return int(kib) * 1024

    @property
    def port(self) -> int:
        return int(self.servers.rpartition(":")[2])

    async def kill(self) -> None:
        """SIGKILL: nothing is written, nothing is closed."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM: it must end well."""
        self._process.terminate()
        assert await self._process.wait() == 0


class Serve(Protocol):
    """Starts a broker process, which is killed at the end of the test."""

    async def __call__(self, data: Path, *, port: int = 0, **settings: str) -> BrokerProcess:
        """Settings are flags: `topic_x="1"` for `--topic-x 1`."""


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def serve(data: Path, *, port: int = 0, **settings: str) -> BrokerProcess:
            flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
            running = _running(tmp_path / "broker.log", f"--data={data}", f"--port={port}", *flags)
            return await stack.enter_async_context(running)

        yield serve


@asynccontextmanager
async def _running(log: Path, *arguments: str) -> AsyncIterator[BrokerProcess]:
    kmr = Path(sys.executable).with_name("kmr")
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            kmr, "broker", "serve", *arguments, stdout=PIPE, stderr=errors
        )
    assert process.stdout is not None
    try:
        ready = (await process.stdout.readline()).decode()
        assert ready.startswith("listening on "), "its log says why"
        yield BrokerProcess(process, ready.split()[2].rstrip(","), log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
