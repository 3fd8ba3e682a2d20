"""kmr top, against a worker's real HTTP endpoints."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest
from anyio import to_thread
from textual.widgets import Sparkline, Static

from kmr.cli.top import Watch
from kmr.cli.top_app import TopApp
from kmr.observe.health import HealthServer
from kmr.observe.metrics import Metrics
from kmr.observe.status import PartitionStatus, StageStatus, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kmr.cli.top import View

STUCK = WorkerStatus(
    state="running",
    live=True,
    ready=True,
    problem="reduce-1: no answer from the database",
    group="flights-group",
    topics=("flights",),
    stages=(StageStatus("reduce-1", "retrying", 3, 1000, 2000, 4.5, "no answer"),),
    partitions=(PartitionStatus("flights", 0, 50, 40, 90, 0, 1250, paused=True),),
    inflight_bytes=2**20,
    inflight_limit=2**21,
    consumed=90,
    settled=50,
    uptime=1.0,
)


class Worker:
    """Each time it is asked, half a second has passed and so many records were settled."""

    def __init__(self) -> None:
        self.now = STUCK
        self.asked = 0

    def status(self) -> WorkerStatus:
        self.asked += 1
        self.now = msgspec.structs.replace(
            self.now,
            uptime=self.now.uptime + 0.5,
            consumed=self.now.consumed + 100,
            settled=self.now.settled + 50,
        )
        return self.now

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        async with HealthServer("127.0.0.1", port, self.status, Metrics()) as server:
            yield server.url


async def test_once_prints_state_rates_lag_and_the_reason(kmr: Callable[..., Any]) -> None:
    async with Worker().serving() as url:
        run = partial(kmr, "top", "--once", "--interval", "0.01", "--url", url)
        output = await to_thread.run_sync(run)
    assert output.code == 0
    text = output.out
    assert "flights-group  running  flights" in text
    assert "consumed 200/s (290)  settled 100/s (150)  lag 1,200  in flight 1.0 MiB (50%)" in text
    assert "reduce-1: no answer from the database" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["reduce-1", "retrying", "4.5", "s", "3", "1,000", "2,000", "no", "answer"] in rows
    assert ["flights-0", "1,200", "50", "40", "90", "1,250", "paused"] in rows


async def test_no_rates_across_a_restart_of_the_worker() -> None:
    worker = Worker()
    async with worker.serving() as url:
        watch = Watch(url)
        first = await to_thread.run_sync(watch.look)
        second = await to_thread.run_sync(watch.look)
        worker.now = msgspec.structs.replace(STUCK, uptime=0.0, consumed=0, settled=0)
        third = await to_thread.run_sync(watch.look)
    assert (first.consumed_rate, second.consumed_rate, third.consumed_rate) == (None, 200.0, None)


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("http://127.0.0.1:1", 1, "no worker answers at http://127.0.0.1:1 "),
        ("127.0.0.1:8080", 2, "--url must begin with http:// or https://, not '127.0.0.1:8080'"),
    ],
)
def test_an_address_without_a_worker_is_one_message(
    kmr: Callable[..., Any], url: str, code: int, message: str
) -> None:
    output = kmr("top", "--once", "--url", url)
    assert output.code == code
    assert output.err.startswith(f"kmr: {message}")
    assert output.err.count("\n") == 1


class Screen(TopApp):
    """Tells when what it shows has changed."""

    def __init__(self, url: str) -> None:
        super().__init__(Watch(url), 0.02)
        self.changed = anyio.Event()

    def _show(self, view: View) -> None:
        super()._show(view)
        self._tell()

    def _show_reason(self, reason: str) -> None:
        super()._show_reason(reason)
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def until_shown(self, text: str) -> None:
        with anyio.fail_after(15):
            while text not in str(self.query_one("#summary", Static).render()):
                await self.changed.wait()


async def test_the_screen_follows_the_worker() -> None:
    worker = Worker()
    async with worker.serving() as url:
        screen = Screen(url)
        async with screen.run_test() as pilot:
            await screen.until_shown("running")
            await screen.until_shown("settled 100/s")
            assert len(list(screen.query_one("#rates", Sparkline).data or [])) >= 2
            await pilot.press("q")


async def test_a_paused_screen_asks_no_more() -> None:
    worker = Worker()
    async with worker.serving() as url:
        screen = Screen(url)
        async with screen.run_test() as pilot:
            await screen.until_shown("running")
            await pilot.press("p")
            await screen.workers.wait_for_complete()
            asked = worker.asked
            screen.refresh_status()
            await screen.workers.wait_for_complete()
            assert worker.asked == asked
            changed = screen.changed
            await pilot.press("p")
            screen.refresh_status()
            await changed.wait()
            assert worker.asked > asked


async def test_the_screen_waits_for_a_worker_that_is_show_reason() -> None:
    worker = Worker()
    async with worker.serving() as url:
        port = int(url.rpartition(":")[2])
    screen = Screen(url)
    async with screen.run_test():
        await screen.until_shown("no worker answers at")
        async with worker.serving(port):
            await screen.until_shown("running")
