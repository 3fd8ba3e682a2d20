"""The full-screen view of `kmr top`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.console import Group
from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Footer, Sparkline, Static

from framework.cli.watch import WorkerUnreachable
from framework.cli.watch_text import partitions_table, stages_table, summary

if TYPE_CHECKING:
    from textual.binding import BindingType

    from framework.cli.watch import View, Watch

__all__ = ["TopApp"]

_HISTORY = 120


class TopApp(App[None]):
    """Shows a worker's status, anew every `interval` seconds; a worker that is away is waited for."""

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
        """Ask the worker in a thread; only one question at a time."""
        if not self._paused:
            self.run_worker(self._look, thread=True, exclusive=True, group="look")

    def action_pause(self) -> None:
        self._paused = not self._paused

    def _look(self) -> None:
        try:
            view = self._watch.look()
        except WorkerUnreachable as error:
            self.call_from_thread(self._away, str(error))
        else:
            self.call_from_thread(self._show, view)

    def _away(self, reason: str) -> None:
        self.query_one("#summary", Static).update(Text(reason, "red"))

    def _show(self, view: View) -> None:
        self._rates = [*self._rates, view.settled_rate or 0.0][-_HISTORY:]
        self.query_one("#summary", Static).update(summary(view))
        self.query_one("#rates", Sparkline).data = self._rates
        tables = Group(stages_table(view.status), Text(), partitions_table(view.status))
        self.query_one("#tables", Static).update(tables)
