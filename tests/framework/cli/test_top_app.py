"""The full-screen view of kmr top, against a worker's real HTTP endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from textual.widgets import Sparkline, Static

from kmr.cli.top import Watch
from kmr.cli.top_app import TopApp
from tests.framework.cli.watched_worker import Worker

if TYPE_CHECKING:
    from kmr.cli.top import View


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
