"""The demo's display: progress of both engines, and events."""

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

    from kmr.observe.status import WorkerStatus

__all__ = ["Display"]

_LINE_EVERY: Final = 2.0  # seconds, where there is no terminal


class Display:
    """A live display on a terminal; elsewhere, one line for each event and every few seconds.

    Args:
        total: how many records there will be.
        spark: whether Spark follows the workers.
    """

    def __init__(self, console: Console, total: int, *, spark: bool) -> None:
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
        self._by_workers = self._progress.add_task("workers", total=total)
        self._by_spark = self._progress.add_task("Spark", total=total, start=False, visible=spark)
        self._detail: RenderableType = Text()
        self._live = Live(self._picture(), console=console, refresh_per_second=8, transient=True)
        self._phase, self._phase_since = "", 0.0
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

    def workers(
        self, produced: int, delivered: int, statuses: dict[str, WorkerStatus | None]
    ) -> None:
        """Show the newest figures of the first half."""
        self._progress.update(self._produced, completed=produced)
        self._progress.update(self._by_workers, completed=delivered)
        self._detail = _workers_table(statuses)
        self._show(f"produced {produced:,}, delivered {delivered:,} of {self._total:,}")

    def spark(self, phase: str, delivered: int) -> None:
        """Show the newest figures of the second half."""
        self._progress.start_task(self._by_spark)
        self._progress.update(self._by_spark, completed=delivered)
        if phase != self._phase:
            self._phase, self._phase_since = phase, time.monotonic()
        text = f"{phase}, {time.monotonic() - self._phase_since:.0f} s"
        self._detail = Text(f"  Spark: {text}")
        self._show(f"Spark: {text}; delivered {delivered:,} of {self._total:,}")

    def _show(self, line: str) -> None:
        if self._console.is_terminal:
            self._live.update(self._picture())
        elif time.monotonic() - self._last_line > _LINE_EVERY:
            self._last_line = time.monotonic()
            self.event(line)

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
