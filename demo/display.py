"""What the demo shows while it works: progress, the workers, and what happens to them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from framework.status import WorkerStatus

__all__ = ["Display"]


class Display:
    """A live display on a terminal; elsewhere, one line for each event and every few seconds."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._progress = Progress(
            TextColumn("  {task.description:<10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._produced = self._progress.add_task("produced", total=total)
        self._delivered = self._progress.add_task("delivered", total=total)
        self._workers: dict[str, WorkerStatus | None] = {}
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
        self._console.print(f"  [dim]{seconds:5.1f} s[/dim]  {text}", highlight=False)

    def update(
        self, produced: int, delivered: int, workers: dict[str, WorkerStatus | None]
    ) -> None:
        """Show the newest figures."""
        self._progress.update(self._produced, completed=produced)
        self._progress.update(self._delivered, completed=delivered)
        self._workers = workers
        if self._console.is_terminal:
            self._live.update(self._picture())
        elif time.monotonic() - self._last_line > 2:
            self._last_line = time.monotonic()
            self.event(f"produced {produced:,}, delivered {delivered:,} of {self._total:,}")

    def _picture(self) -> Group:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for heading in ("worker", "state", "partitions", "records", "lag", "in flight"):
            table.add_column(heading, justify="left" if heading in ("worker", "state") else "right")
        for name, status in self._workers.items():
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
        return Group(self._progress, Text(), table)
