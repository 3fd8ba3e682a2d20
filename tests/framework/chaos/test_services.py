"""Processes that are killed, stopped in their tracks and restarted; and none is left behind."""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread

from chaos.history import Recorder
from kmr.broker.client import BatchProducer, ProduceError
from kmr.chaos.services import ProcessRecord, RunningServices, Service, ServiceFailed, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


pytestmark = pytest.mark.slow


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_it(changed: int, pid: int) -> None:
    with anyio.fail_after(60):
        await to_thread.run_sync(
            os.waitid, os.P_PID, pid, changed | os.WNOWAIT, abandon_on_cancel=True
        )


class Broker:
    """A broker as a service."""

    def __init__(self, service: Service, port: int, recorder: Recorder) -> None:
        self.service = service
        self.address = f"127.0.0.1:{port}"
        self.recorder = recorder

    async def produce(self) -> None:
        # an idempotent producer would never give up
        async with BatchProducer(self.address, "t", acks=1, request_timeout_ms=6_000) as producer:
            await producer.send([b"x"])

    def processes(self) -> list[tuple[str, int | None]]:
        lines = self.recorder.history().processes.to_pylist()
        return [(line["ending"], line["code"]) for line in lines]


@asynccontextmanager
async def broker_in(directory: Path) -> AsyncIterator[Broker]:
    recorder, port = Recorder(), free_port()
    async with RunningServices(directory / "logs", recorder) as services:
        flags = ["--data", str(directory / "data"), "--port", str(port)]
        service = services.add(
            "broker", lambda: ["broker", "serve", *flags], ready_line="listening on"
        )
        await service.start()
        yield Broker(service, port, recorder)


async def test_a_service_is_killed_started_anew_and_stopped_at_the_end(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.produce()
        assert (broker.service.resident_bytes() or 0) > 10 * 2**20
        first = broker.service.pid
        await broker.service.kill()
        assert not broker.service.running
        assert not broker.service.wanted
        assert broker.service.resident_bytes() is None
        await broker.service.start()
        assert broker.service.pid != first
        await broker.produce()
        last = broker.service.pid
        assert broker.processes() == [("killed", -signal.SIGKILL), ("running", None)]
    assert broker.processes() == [("killed", -signal.SIGKILL), ("stopped", 0)]
    assert not lives(last)
    log = (tmp_path / "logs" / "broker.log").read_text()
    assert log.count("listening on") == 2


async def test_a_service_that_ends_unexpectedly_is_noticed(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        os.kill(broker.service.pid, signal.SIGTERM)
        with anyio.fail_after(60):
            while broker.processes() == [("running", None)]:  # noqa: ASYNC110  its end is not ours
                await anyio.sleep(0.01)
        assert broker.processes() == [("died", 0)]
        assert broker.service.wanted
        (event,) = broker.recorder.history().events.to_pylist()
        assert (event["kind"], event["name"]) == ("noticed", "broker")


async def test_a_paused_service_stands_still_until_it_is_resumed(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.produce()
        broker.service.pause()
        await until_it(os.WSTOPPED, broker.service.pid)
        broker.service.resume()
        await until_it(os.WCONTINUED, broker.service.pid)
        await broker.produce()


async def test_a_full_disk_takes_no_record_until_there_is_room_again(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.produce()
        broker.service.limit_files(1)
        with pytest.raises(ProduceError):
            await broker.produce()
        broker.service.limit_files(None)
        await broker.produce()


async def test_a_service_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    arguments = ["broker", "serve", "--data", str(tmp_path), "--port", "70000"]
    async with RunningServices(tmp_path / "logs", Recorder()) as services:
        service = services.add("broker", lambda: arguments, ready_line="listening")
        with pytest.raises(ServiceFailed, match="port must be a whole number >= 0 and <= 65535"):
            await service.start()


def test_only_processes_that_ended_without_a_signal_of_ours_have_died() -> None:
    journal = ProcessRecord(lambda text: None)
    one = journal.line("processes", name="worker-1", pid=7, ending="running", code=None)
    journal.line("processes", name="worker-2", pid=8, ending="killed", code=-9)
    journal.line("commits", name="worker-2", offset=3)
    assert journal.died() == []
    one |= {"ending": "died", "code": 1}
    assert journal.died() == ["worker-1 (process 7) with exit code 1"]


def test_what_was_noticed_is_said_at_once_by_its_first_line() -> None:
    said: list[str] = []
    journal = ProcessRecord(said.append)
    journal.event("fault", "kill-worker")
    journal.event("noticed", "worker-1", "ended\nTraceback")
    assert said == ["noticed: worker-1 ended"]
    assert journal.noticed == ["worker-1: ended\nTraceback"]


def test_a_free_port_is_none_that_the_system_gives_to_connections() -> None:
    assert 20_000 <= free_port() < 30_000
