"""`kmr top`: watch a running worker from a terminal."""

from __future__ import annotations

import time
import urllib.error
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..errors import KmrError, SettingsError
from ..observe.status import read_status
from .output import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ..observe.status import WorkerStatus

_TIMEOUT: Final = 5.0  # seconds
_ACTIVITY: Final = {"retrying": "yellow", "held": "yellow", "flushing": "green", "idle": "dim"}
_FAILURES: Final = 5
_REPEATED: Final = ("map repeated", "flush repeated", "commit failed")
_STATE: Final = {"running": "green", "failed": "red", "stopped": "dim"}


def top(
    url: str = "http://127.0.0.1:8080",
    *,
    interval: float = 1.0,
    once: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Watch a running worker: its stages, its partitions with their lag, its rates. Ctrl-C ends it.

    The worker must serve HTTP: `kmr run ... --http-port 8080`. While none answers, the reason is shown.

    Parameters
    ----------
    url
        Address of the worker's status page.
    interval
        Seconds between two requests.
    once
        Print the status after one interval as plain text, and exit.
    """
    watch = StatusPoller(url)
    console = Console(highlight=False, emoji=False)
    if once:
        console.print(screen(watch.look_twice(interval)))
        return
    with (
        Live(console=console, screen=True, auto_refresh=False) as live,
        suppress(KeyboardInterrupt),
    ):
        while True:
            live.update(_screen_or_reason(watch), refresh=True)
            time.sleep(interval)


class WorkerUnreachable(KmrError):
    """No worker answers at the address."""


@dataclass(frozen=True, slots=True)
class StatusView:
    """A status, with rates since the one before in records per second; None at first."""

    status: WorkerStatus
    consumed_rate: float | None
    settled_rate: float | None


class StatusPoller:
    """Polls the status of one worker. Raises SettingsError unless `url` is an HTTP address."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"--url must begin with http:// or https://, not {url!r}")
        self.url = url.rstrip("/")
        self._last: WorkerStatus | None = None

    def look(self) -> StatusView:
        """Request the worker's status; block for at most 5 seconds.

        Raises:
            WorkerUnreachable: nothing answers, or not a worker of this version.
        """
        status = self._ask()
        last, self._last = self._last, status
        # A shorter uptime is another process behind the same address: no rates across that.
        if last is None or status.uptime <= last.uptime:
            return StatusView(status, None, None)
        seconds = status.uptime - last.uptime
        return StatusView(
            status,
            max(0.0, (status.consumed - last.consumed) / seconds),
            max(0.0, (status.settled - last.settled) / seconds),
        )

    def look_twice(self, interval: float) -> StatusView:
        """Return the status after `interval` seconds, with rates. Raises what `look` raises."""
        self.look()
        time.sleep(interval)
        return self.look()

    def _ask(self) -> WorkerStatus:
        try:
            return read_status(self.url, _TIMEOUT)
        except urllib.error.HTTPError as error:
            raise WorkerUnreachable(
                f"{self.url} is not a worker: /status answers {error.code}"
            ) from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise WorkerUnreachable(
                f"no worker answers at {self.url} ({reason}); start it with --http-port"
            ) from error
        except msgspec.DecodeError as error:
            raise WorkerUnreachable(
                f"{self.url} is not a worker of this version: {error}"
            ) from error


def screen(view: StatusView) -> Group:
    """Lay out everything that is known of a worker, or of several."""
    status = view.status
    parts: list[RenderableType] = [_summary(view)]
    if status.workers:
        parts.append(_workers_table(status))
    if status.tables:
        parts.append(_tables_table(status))
    if status.failures:
        parts.append(_failures_table(status, time.time()))
    return Group(*parts, _stages_table(status), _partitions_table(status))


def _screen_or_reason(watch: StatusPoller) -> RenderableType:
    try:
        return screen(watch.look())
    except WorkerUnreachable as error:
        return Text(str(error), "red")


def _summary(view: StatusView) -> Text:
    """Format the worker's state, rates, lag, memory and problem, if it has one."""
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
    if status.failed or status.repeated:
        text.append(f"  failed {status.failed:,}", "red" if status.failed else "")
        text.append(f"  repeated {status.repeated:,}", "yellow" if status.repeated else "")
    if (past := status.backfill) is not None and past.done < past.offsets:
        left = "?" if past.seconds_left is None else f"{past.seconds_left:.0f} s"
        text.append(
            f"\nbackfill {past.done:,} of {past.offsets:,}, {_rate(past.rate)}, {left} left"
        )
    if status.problem is not None:
        text.append(f"\n{status.problem}", "yellow" if status.live else "bold red")
    return text


def _workers_table(status: WorkerStatus) -> Table:
    columns = ("Worker", "State", "Up", "Partitions", "Settled", "Restarts", "Problem")
    table = plain_table(*columns, left=("Worker", "State", "Problem"))
    for worker in status.workers:
        state = worker.state if worker.ready or worker.state != "running" else "not ready"
        table.add_row(
            f"{worker.index}" + ("" if worker.pid is None else f" (process {worker.pid})"),
            Text(state, _STATE.get(state, "yellow")),
            f"{worker.uptime:.0f} s",
            f"{worker.partitions:,}",
            f"{worker.settled:,}",
            f"{worker.restarts:,}",
            Text(worker.problem or "", "yellow" if worker.live else "bold red"),
        )
    return table


def _tables_table(status: WorkerStatus) -> Table:
    table = plain_table(
        "Table", "Rows", "Loaded", "Stale", "Problem", left=("Table", "Loaded", "Problem")
    )
    for each in status.tables:
        table.add_row(
            Text(each.name),
            f"{each.rows:,}",
            "yes" if each.is_loaded else Text(each.progress, "yellow"),
            "-" if each.stale is None else f"{each.stale:.1f} s",
            Text(each.problem or "", "yellow"),
        )
    return table


def _failures_table(status: WorkerStatus, now: float) -> Table:
    """Make a table with a row for each of the latest failures.

    Args:
        now: seconds since 1970.
    """
    table = plain_table(
        "Last", "Failure", "Where", "Times", "Reason", left=("Failure", "Where", "Reason")
    )
    for failure in status.failures[:_FAILURES]:
        where = [failure.stage, "" if failure.worker is None else f"worker {failure.worker}"]
        table.add_row(
            f"{max(0.0, now - failure.time):.0f} s ago",
            Text(failure.kind, "yellow" if failure.kind in _REPEATED else "red"),
            Text(", ".join(filter(None, where))),
            f"{failure.count:,}",
            Text(failure.reason),
        )
    return table


def _stages_table(status: WorkerStatus) -> Table:
    columns = ("Stage", "Activity", "For", "Queued", "Rows", "Bytes", "Reason")
    table = plain_table(*columns, left=("Stage", "Activity", "Reason"))
    for stage in status.stages:
        table.add_row(
            Text(stage.name),
            Text(stage.activity, _ACTIVITY.get(stage.activity, "blue")),
            "" if stage.activity == "idle" else f"{stage.seconds:.1f} s",
            f"{stage.queued:,}",
            f"{stage.rows:,}",
            f"{stage.bytes:,}",
            Text(stage.why, "yellow"),
        )
    return table


def _partitions_table(status: WorkerStatus) -> Table:
    columns = ("Partition", "Lag", "Watermark", "Committed", "Position", "End", "")
    table = plain_table(*columns, left=("Partition", ""))
    for at in status.partitions:
        figures = (at.lag, at.watermark, at.committed, at.position, at.end)
        table.add_row(
            Text(f"{at.topic}-{at.partition}"),
            *("-" if figure is None else f"{figure:,}" for figure in figures),
            Text("paused", "yellow") if at.paused else "",
        )
    return table


def _rate(rate: float | None) -> str:
    return "-/s" if rate is None else f"{rate:,.0f}/s"
