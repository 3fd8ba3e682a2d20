"""The progress of a backfill, from the committed offsets of its group: the same for workers and Spark."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from ..observe.backfill import Pace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..record import TopicPartition
    from .plan import BackfillPlan

_log = structlog.get_logger(__name__)

_INTERVAL: Final = 10.0  # seconds between lines of the log
_MOST: Final = 16
"""Partitions with a bar, or in a line of the log: those with the most left."""


class ProgressView(ExitStack):
    """Shows progress while it is entered."""

    @abstractmethod
    def show(self, done: Mapping[TopicPartition, int], now: float) -> None:
        """Show how many offsets of each partition are done at a time of a monotonic clock, in seconds."""


class LogLines(ProgressView):
    """A `ProgressView` that logs a line every ten seconds, and one at the end."""

    def __init__(self, plan: BackfillPlan) -> None:
        super().__init__()
        self._plan = plan
        self._pace = Pace(plan.offsets)
        self._logged = -math.inf

    def show(self, done: Mapping[TopicPartition, int], now: float) -> None:
        self._pace.note(sum(done.values()), now)
        is_done = self._pace.done >= self._pace.total
        if now - self._logged < _INTERVAL and not is_done:
            return
        self._logged = now
        left = self._pace.seconds_left
        _log.info(
            "backfill",
            done=self._pace.done,
            of=self._pace.total,
            records_per_second=round(self._pace.rate),
            seconds_left=None if math.isinf(left) else round(left),
            records_left={str(at): behind for at, behind in most_behind(self._plan, done)},
        )


class ProgressBars(ProgressView):
    """A `ProgressView` of bars in a terminal: one for all, and one for each partition."""

    def __init__(self, plan: BackfillPlan, console: Console | None = None) -> None:
        super().__init__()
        self._plan = plan
        self._pace = Pace(plan.offsets)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            console=console or Console(stderr=True),
        )
        self._all = self._progress.add_task("history", total=plan.offsets, pace="")
        self._bars: dict[TopicPartition, TaskID] = {}

    def __enter__(self) -> Self:
        self.enter_context(self._progress)
        return super().__enter__()

    def show(self, done: Mapping[TopicPartition, int], now: float) -> None:
        self._pace.note(sum(done.values()), now)
        self._progress.update(self._all, completed=self._pace.done, pace=str(self._pace))
        for at, _ in most_behind(self._plan, done):
            if at not in self._bars and len(self._bars) < _MOST:
                history = self._plan.histories[at]
                total = history.until - history.first
                self._bars[at] = self._progress.add_task(str(at), total=total, pace="")
        for at, bar in self._bars.items():
            self._progress.update(bar, completed=done[at])


def most_behind(
    plan: BackfillPlan, done: Mapping[TopicPartition, int]
) -> list[tuple[TopicPartition, int]]:
    """Return the partitions with the most offsets left, and how many; without those that are done."""
    left = {at: each.until - each.first - done[at] for at, each in plan.histories.items()}
    behind = sorted(left.items(), key=lambda item: (-item[1], item[0]))
    return [(at, offsets) for at, offsets in behind if offsets][:_MOST]


def view_of(plan: BackfillPlan) -> ProgressView:
    """Return bars if stderr is a terminal, else lines of the log."""
    return ProgressBars(plan) if sys.stderr.isatty() else LogLines(plan)
