"""The demo's display: progress of history and present, and events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, RenderableType

    from demo.outcome import Standing
    from kmr.observe.status import WorkerStatus

__all__ = ["Display"]

_LINE_EVERY: Final = 2.0  # seconds, where there is no terminal


class Display:
    """A live display on a terminal; elsewhere, one line for each event and every few seconds.

    Args:
        total: how many records there will be.
        history: how many of them the topic has at the cut.
    """

    def __init__(self, console: Console, total: int, history: int) -> None:
        self._console = console
        self._total = total
        self._history = history
        self._progress = Progress(
            TextColumn("  {task.description:<10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        totals = {"produced": total, "history": history, "present": total - history}
        self._bars = {name: self._progress.add_task(name, total=n) for name, n in totals.items()}
        self._detail: RenderableType = Text()
        self._live = Live(self._picture(), console=console, refresh_per_second=8, transient=True)
        self._started = time.monotonic()
        self._last_line = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def event(self, text: str) -> None:
        """Something happened: it stays on the screen."""
        seconds = time.monotonic() - self._started
        line = Text.assemble((f"  {seconds:5.1f} s  ", "dim"), text)
        self._console.print(line, soft_wrap=True)

    def show(self, standing: Standing) -> None:
        """Show the newest figures."""
        for name, bar in self._bars.items():
            self._progress.update(bar, completed=getattr(standing, name))
        phase = f"history: {standing.phase}"
        self._detail = Group(Text(f"  {phase}"), Text(), _workers_table(standing.workers))
        if self._console.is_terminal:
            self._live.update(self._picture())
        elif time.monotonic() - self._last_line > _LINE_EVERY:
            self._last_line = time.monotonic()
            present = self._total - self._history
            self.event(
                f"produced {standing.produced:,} of {self._total:,}; in the table: history "
                f"{standing.history:,} of {self._history:,} ({standing.phase}), present "
                f"{standing.present:,} of {present:,}"
            )

    def _picture(self) -> Group:
        return Group(self._progress, Text(), self._detail)


def _workers_table(statuses: dict[str, WorkerStatus | None]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in ("worker", "state", "partitions", "records", "lag", "in flight"):
        table.add_column(heading, justify="left" if heading in ("worker", "state") else "right")
    for name, status in statuses.items():
        if status is None:
            table.add_row(f"  {name}", "starting", "", "", "", "")
            continue
        lag = sum(partition.lag or 0 for partition in status.partitions)
        table.add_row(
            f"  {name}",
            status.state,
            " ".join(str(p.partition) for p in status.partitions) or "-",
            f"{status.settled:,}",
            f"{lag:,}",
            f"{status.inflight_bytes / 1024:,.0f} KiB",
        )
    return table
