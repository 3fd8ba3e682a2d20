"""A worker's status as text and tables, for `kmr top` and its `--once`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from framework.cli.watch import View
    from framework.status import WorkerStatus

__all__ = ["partitions_table", "stages_table", "summary"]

_ACTIVITY = {"retrying": "yellow", "held": "yellow", "flushing": "green", "idle": "dim"}
_STATE = {"running": "green", "failed": "red", "stopped": "dim"}


def summary(view: View) -> Text:
    """State, rates, lag, memory, and what is wrong."""
    status = view.status
    lags = [partition.lag for partition in status.partitions if partition.lag is not None]
    used = status.inflight_bytes / status.inflight_limit if status.inflight_limit else 0.0
    text = Text()
    text.append(status.group, "bold")
    text.append("  ")
    text.append(status.state, _STATE.get(status.state, "yellow"))
    text.append(f"  {', '.join(status.topics)}  up {status.uptime:.0f} s\n")
    text.append(f"consumed {_rate(view.consumed_rate)} ({status.consumed:,})  ")
    text.append(f"settled {_rate(view.settled_rate)} ({status.settled:,})  ")
    text.append(f"lag {sum(lags):,}  " if lags else "lag unknown  ")
    text.append(f"in flight {status.inflight_bytes / 2**20:.1f} MiB ({used:.0%})")
    if status.problem is not None:
        text.append(f"\n{status.problem}", "yellow" if status.live else "bold red")
    return text


def stages_table(status: WorkerStatus) -> Table:
    """One row a stage."""
    table = _table("Stage", "Activity", "For", "Queued", "Rows", "Bytes", "Reason", left=(0, 1, 6))
    for stage in status.stages:
        table.add_row(
            Text(stage.name),
            Text(stage.activity, _ACTIVITY.get(stage.activity, "blue")),
            "" if stage.activity == "idle" else f"{stage.seconds:.1f} s",
            f"{stage.queued:,}",
            f"{stage.rows:,}",
            f"{stage.bytes:,}",
            Text(stage.reason or "", "yellow"),
        )
    return table


def partitions_table(status: WorkerStatus) -> Table:
    """One row a partition."""
    table = _table("Partition", "Lag", "Watermark", "Committed", "Position", "End", "", left=(0, 6))
    for at in status.partitions:
        figures = (at.lag, at.watermark, at.committed, at.position, at.end)
        table.add_row(
            Text(f"{at.topic}-{at.partition}"),
            *("-" if figure is None else f"{figure:,}" for figure in figures),
            Text("paused", "yellow") if at.paused else "",
        )
    return table


def _table(*columns: str, left: tuple[int, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position in left else "right")
    return table


def _rate(rate: float | None) -> str:
    return "-/s" if rate is None else f"{rate:,.0f}/s"
