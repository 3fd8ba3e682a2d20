"""Kafka clients as their users install them, and brokers in processes of their own."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest

from kmr.chaos.services import free_port

from .clients.via_aiokafka import Aiokafka
from .clients.via_kafka_python import KafkaPython
from .clients.via_kcat import Kcat
from .clients.via_librdkafka import Librdkafka
from .outside import BOOTSTRAP_VARIABLE, OutsideBroker, only_ours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kmr.broker import Broker
    from kmr.testing import StartBroker

    from .clients.base import AdminClient, Client

ADMIN_CLIENTS = (Aiokafka(), Librdkafka(), KafkaPython())
CLIENTS = (*ADMIN_CLIENTS, Kcat())
MEMBERS = (*CLIENTS, Librdkafka(cooperative=True))


OUTSIDE = os.environ.get(BOOTSTRAP_VARIABLE)
"""The address of another broker to test in place of ours; None: ours."""

LEAKS = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""kafka-python forgets to close sockets that could not connect."""


@pytest.fixture
def start_broker(start_broker: StartBroker) -> StartBroker:
    """Our own broker, with settings that a test chooses."""

    async def refuse(**settings: Any) -> Broker:
        only_ours("settings")

    return refuse if OUTSIDE else start_broker


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    """A broker without topics and groups: one of this process, or another that was named."""
    if OUTSIDE is None:
        return await start_broker()
    outside = OutsideBroker(OUTSIDE)
    await outside.topics.delete_all()
    return cast("Broker", outside)


@pytest.fixture(params=[pytest.param(each, id=each.name, marks=LEAKS) for each in CLIENTS])
def client(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Client]:
    """Each client in turn."""
    yield from _usable(request.param, caplog)


@pytest.fixture(params=[pytest.param(each, id=each.name, marks=LEAKS) for each in MEMBERS])
def group_client(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[Client]:
    """Each client in turn, with each of its ways to be a member of a group."""
    yield from _usable(request.param, caplog)


def _usable(client: Client, caplog: pytest.LogCaptureFixture) -> Iterator[Client]:
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
    """`kmr broker serve` as a process; `servers` is its address."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        kmr = Path(sys.executable).with_name("kmr")
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [kmr, "broker", "serve", "--log-format", "json", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdout is not None
        with self._process.stdout as out:
            ready = out.readline().decode()
        if not ready.startswith("listening on "):
            self.kill()
            raise AssertionError(log.read_text())
        self.servers = ready.split()[2].rstrip(",")

    @property
    def port(self) -> int:
        return int(self.servers.rpartition(":")[2])

    @property
    def errors(self) -> list[str]:
        """What it has logged as errors; damage by clients is none."""
        lines = self._log.read_text().splitlines()
        return [line for line in lines if '"level": "error"' in line]

    @property
    def memory(self) -> int:
        """Bytes of memory that it uses and shares with no other process."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
        return int(kib) * 1024

    @property
    def open_files(self) -> int:
        """Files and sockets that it has open."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def kill(self) -> None:
        """SIGKILL: nothing more is written, nothing is closed."""
        self._process.kill()
        self._process.wait()


class Serve(Protocol):
    """Starts a broker process, which is killed at the end."""

    def __call__(self, data: Path, *, port: int = 0, **settings: object) -> BrokerProcess:
        """`message_max_bytes=1000` is `--message-max-bytes 1000`."""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """For as long as a test runs."""
    yield from _serve(tmp_path / "broker.log")


@pytest.fixture(scope="module")
def serve_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """For all tests of a module."""
    yield from _serve(tmp_path_factory.mktemp("logs") / "broker.log")


def _serve(log: Path) -> Iterator[Serve]:
    if OUTSIDE:
        only_ours("a process")
    with ExitStack() as started:

        def serve(data: Path, *, port: int | None = None, **settings: object) -> BrokerProcess:
            port = port or free_port()
            flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
            broker = BrokerProcess(log, f"--data={data}", f"--port={port}", *flags)
            started.callback(broker.kill)
            return broker

        yield serve
