"""The HTTP endpoints of a worker, over a real socket."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import aiohttp
import anyio
import anyio.lowlevel
import msgspec
import pytest

from kmr.chaos.services import free_port
from kmr.errors import SettingsError, SinkError
from kmr.observe.health import STEP, HealthServer, HistoryAnswer, StatusHistory
from kmr.observe.metrics import Metrics
from kmr.observe.status import PartitionStatus, StageStatus, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


HOST = "127.0.0.1"

RUNNING = WorkerStatus(
    state="running",
    live=True,
    ready=True,
    problem=None,
    group="flights",
    topics=("flights",),
    stages=(StageStatus("map flights-0", "mapping", 2), StageStatus("reduce-1", "idle", 0)),
    partitions=(PartitionStatus("flights", 0, 5, 3, 9, 0, 10, paused=False),),
    inflight_bytes=100,
    inflight_limit=1000,
    consumed=9,
    settled=5,
    uptime=1.5,
)


class Worker:
    """Stands where the worker stands: what it says can be changed."""

    def __init__(self) -> None:
        self.now = RUNNING
        self.metrics = Metrics()

    def status(self) -> WorkerStatus:
        return self.now

    def say(self, **changes: object) -> None:
        self.now = msgspec.structs.replace(self.now, **changes)

    def server(self, port: int = 0) -> HealthServer:
        return HealthServer.of_worker(HOST, port, self.status, self.metrics)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def get(client: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    async with client.get(url) as response:
        return response.status, await response.text()


async def test_live_and_ready_say_ok_or_the_reason(
    worker: Worker, client: aiohttp.ClientSession
) -> None:
    async with worker.server() as server:
        assert await get(client, f"{server.url}/live") == (200, "ok\n")
        assert await get(client, f"{server.url}/ready") == (200, "ok\n")
        worker.say(live=False, ready=False, problem="reduce-1: no answer from db:8123")
        assert await get(client, f"{server.url}/live") == (
            503,
            "reduce-1: no answer from db:8123\n",
        )
        worker.say(live=True, problem=None, state="starting")
        assert await get(client, f"{server.url}/live") == (200, "ok\n")
        assert await get(client, f"{server.url}/ready") == (503, "the worker is starting\n")


async def test_status_is_the_workers_status_as_json(
    worker: Worker, client: aiohttp.ClientSession
) -> None:
    async with worker.server() as server, client.get(f"{server.url}/status") as response:
        assert response.content_type == "application/json"
        assert msgspec.json.decode(await response.read(), type=WorkerStatus) == RUNNING


async def test_metrics_are_those_of_the_worker_only(
    worker: Worker, client: aiohttp.ClientSession
) -> None:
    worker.metrics.consumed.labels("flights").inc(9)
    async with worker.server() as server:
        status, text = await get(client, f"{server.url}/metrics")
    assert status == 200
    assert 'kmr_consumed_records_total{topic="flights"} 9.0' in text
    assert "python_info" not in text


async def test_the_page_loads_nothing_from_elsewhere(
    worker: Worker, client: aiohttp.ClientSession
) -> None:
    async with worker.server() as server, client.get(server.url) as response:
        page = await response.text()
        policy = response.headers["Content-Security-Policy"]
    assert response.content_type == "text/html"
    assert "default-src 'none'" in policy
    assert "https://" not in page
    assert page.count("http://") == page.count("http://www.w3.org/2000/svg") == 1


async def test_a_taken_port_is_a_clear_error(worker: Worker) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"http.port: {port} on {HOST} is taken"):
            await worker.server(port).__aenter__()


async def test_an_address_of_another_machine_is_a_clear_error(worker: Worker) -> None:
    with pytest.raises(SettingsError, match=r"http.host: '192\.0\.2\.1' is no address of this"):
        await HealthServer.of_worker("192.0.2.1", 0, worker.status, worker.metrics).__aenter__()


async def test_signals_stay_with_the_worker(worker: Worker) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with worker.server():
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


async def test_the_port_is_free_again_after_the_end_even_with_a_browser_connected(
    worker: Worker, client: aiohttp.ClientSession
) -> None:
    port = free_port()
    async with worker.server(port) as server:
        await get(client, f"{server.url}/status")
        url = server.url
    async with worker.server(port) as again:
        assert again.url == url
        assert (await get(client, f"{url}/live"))[0] == 200


async def test_an_error_inside_reaches_the_user_as_it_is(worker: Worker) -> None:
    with pytest.raises(SinkError, match="refused"):
        async with worker.server():
            raise SinkError("refused")


async def test_cancelling_the_worker_closes_the_server(
    worker: Worker, client: aiohttp.ClientSession
) -> None:
    url = ""
    with anyio.CancelScope() as scope:
        async with worker.server() as server:
            url = server.url
            assert (await get(client, f"{url}/live"))[0] == 200
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(client, f"{url}/live")


async def status() -> WorkerStatus:
    return RUNNING


def after(seconds: float, **changes: object) -> WorkerStatus:
    return msgspec.structs.replace(RUNNING, uptime=RUNNING.uptime + seconds, **changes)


def noted(*statuses: WorkerStatus) -> StatusHistory:
    history = StatusHistory(status)
    for at, each in enumerate(statuses):
        history.note(each, at * STEP, 1_000.0 + at * STEP)
    return history


def test_a_sample_has_the_rates_of_its_step_and_the_figures_of_its_end() -> None:
    then = after(5, consumed=59, settled=30, failed=2, repeated=1, inflight_bytes=70)
    [sample] = noted(RUNNING, then).past().samples
    assert (sample.time, sample.consumed, sample.settled) == (1_005.0, 10.0, 5.0)
    assert (sample.lag, sample.inflight_bytes) == (5, 70)
    assert (sample.failed, sample.repeated) == (2, 1)


def test_lag_is_unknown_while_it_is_unknown_of_one_partition() -> None:
    unknown = PartitionStatus("flights", 1, None, None, None, None, None, paused=False)
    partitions = (*RUNNING.partitions, unknown)
    now = after(5, partitions=partitions)
    assert [each.lag for each in noted(RUNNING, now).past().samples] == [None]


def test_counts_that_begin_anew_are_no_negative_rate() -> None:
    [sample] = noted(RUNNING, after(5, consumed=0, settled=0)).past().samples
    assert (sample.consumed, sample.settled) == (0, 0)


def test_an_hour_is_kept() -> None:
    history = noted(*(after(5 * at) for at in range(900)))
    past = history.past()
    assert len(past.samples) * past.step == 3_600
    assert past.samples[-1].time == 1_000 + 899 * STEP
    newest = history.past(after=past.samples[-3].time)
    assert newest.samples == past.samples[-2:]
    assert history.past(after=past.samples[-1].time) == HistoryAnswer(STEP, ())


async def test_samples_are_taken_while_the_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmr.observe.health.STEP", 0.001)
    three = anyio.Event()
    taken = 0

    def now() -> WorkerStatus:
        nonlocal taken
        taken += 1
        if taken == 3:
            three.set()
        return RUNNING

    async with HealthServer.of_worker("127.0.0.1", 0, now, Metrics()):
        with anyio.fail_after(60):
            await three.wait()
    ended_with = taken
    await anyio.lowlevel.checkpoint()
    assert taken == ended_with
