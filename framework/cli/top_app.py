"""The full-screen view of `kmr top`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from anyio import to_thread
from rich.console import Group
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Footer, Sparkline, Static

from .top import (
    WorkerUnreachable,
    failures_table,
    partitions_table,
    stages_table,
    summary,
    workers_table,
)

if TYPE_CHECKING:
    from textual.binding import BindingType

    from .top import View, Watch

__all__ = ["TopApp"]

_HISTORY = 120  # rates


class TopApp(App[None]):
    """Shows a worker's status and refreshes it every `interval` seconds.

    While no worker answers, it shows the reason and keeps trying.
    """

    TITLE = "kmr top"
    CSS = """
    Static { padding: 0 1; height: auto; margin-bottom: 1; }
    Sparkline { height: 3; margin: 0 1 1 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit"), ("p", "pause", "Pause")]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, watch: Watch, interval: float) -> None:
        super().__init__()
        self._watch = watch
        self._interval = interval
        self._paused = False
        self._looking = False
        self._rates: list[float] = []

    def compose(self) -> ComposeResult:
        yield Static(id="summary")
        yield Sparkline(id="rates")
        with VerticalScroll():
            yield Static(id="tables")
        yield Footer()

    def on_mount(self) -> None:
        self.set_interval(self._interval, self.refresh_status)
        self.refresh_status()

    def refresh_status(self) -> None:
        """Request the status, unless paused or a request is still under way."""
        if not self._paused and not self._looking:
            self._looking = True
            self._look()

    def action_pause(self) -> None:
        self._paused = not self._paused

    @work
    async def _look(self) -> None:
        reason, view = "", None
        try:
            view = await to_thread.run_sync(self._watch.look, abandon_on_cancel=True)
        except WorkerUnreachable as error:
            reason = str(error)
        finally:
            self._looking = False
        if not self.is_running:
            return  # the screen was closed during the request
        if view is None:
            self._show_reason(reason)
        else:
            self._show(view)

    def _show_reason(self, reason: str) -> None:
        self.query_one("#summary", Static).update(Text(reason, "red"))

    def _show(self, view: View) -> None:
        self._rates = [*self._rates, view.settled_rate or 0.0][-_HISTORY:]
        self.query_one("#summary", Static).update(summary(view))
        self.query_one("#rates", Sparkline).data = self._rates
        tables = Group(stages_table(view.status), Text(), partitions_table(view.status))
        if view.status.failures:
            tables = Group(failures_table(view.status, time.time()), Text(), tables)
        if view.status.workers:
            tables = Group(workers_table(view.status), Text(), tables)
        self.query_one("#tables", Static).update(tables)
