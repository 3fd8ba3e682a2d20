"""A worker's progress: what the log says of it, and when everything of the start is read."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from time import process_time
from typing import TYPE_CHECKING, Final

import structlog

from ..service.process import processor_limit
from ..strategy import MAP_STAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .status import PartitionStatus, WorkerStatus

_log = structlog.get_logger(__name__)

_PATIENCE: Final = 3.0
"""Seconds: a rebalance without a member that is missing takes less."""

_INTERVAL: Final = 60.0
"""Seconds between messages while behind."""

_BUSY: Final = 0.8
"""Processors that a worker uses, from which on others are worth a message."""


@dataclass(slots=True)
class Summary:
    """What a worker has done, as `kmr.run` returns it.

    Attributes:
        read: records that were mapped; those that are mapped again after a rebalance count again.
        written: rows that the last reducer accepted.
        filtered: records that the map made no rows of.
        failed: records that failed, in the map or in a reducer.
    """

    read: int = 0
    written: int = 0
    filtered: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return (
            f"records: {self.read:,} read, {self.filtered:,} filtered, {self.failed:,} failed; "
            f"rows: {self.written:,} written"
        )


class ProgressLog:
    """Logs the progress of one worker.

    A partition has caught up when all records that the broker has are read, at one moment: new ones may
    follow. The worker is behind while a partition has not caught up within the last minute.

    Args:
        session_timeout: seconds after which the group removes a member that died.
        rebalance_timeout: seconds after which it removes one that does not join again.
        now: time of the start.
        workers: of this machine, this one included.
        used: returns the seconds of processor time that this process has used.
    """

    def __init__(
        self,
        session_timeout: float,
        rebalance_timeout: float,
        now: float,
        workers: int = 1,
        used: Callable[[], float] = process_time,
    ) -> None:
        self._session_timeout = session_timeout
        self._rebalance_timeout = rebalance_timeout
        self._waiting_since: float | None = None
        self._told_waiting = False
        self._begun = self._since = now
        self._settled = 0
        self._reached: set[tuple[str, int]] = set()
        self._caught_up = False
        self._workers, self._used = workers, used
        self._used_before, self._told_busy = used(), False

    def note(self, status: WorkerStatus, now: float) -> None:
        """Note the status of this moment; call it about once a second."""
        if status.state in ("starting", "suspended"):
            self._note_waiting(status.group, now)
        else:
            self._waiting_since, self._told_waiting = None, False
        if status.state == "running" and status.partitions:
            self._note_running(status, now)

    def _note_waiting(self, group: str, now: float) -> None:
        if self._waiting_since is None:
            self._waiting_since = now
        elif not self._told_waiting and now - self._waiting_since >= _PATIENCE:
            self._told_waiting = True
            _log.info(
                "waiting for the group: a member has not joined again; it is removed if it died "
                "(session_timeout) or takes too long (rebalance_timeout)",
                group=group,
                died_at_most_seconds=self._session_timeout,
                busy_at_most_seconds=self._rebalance_timeout,
            )

    def _note_running(self, status: WorkerStatus, now: float) -> None:
        partitions = {(p.topic, p.partition) for p in status.partitions}
        self._reached = (self._reached & partitions) | _at_end(status.partitions)
        behind = partitions - self._reached
        if not behind and not self._caught_up:
            self._caught_up = True
            _log.info("caught up", seconds=round(now - self._begun, 1))
        if now - self._since < _INTERVAL:
            return
        if behind:
            self._caught_up = False
            rate = (status.settled - self._settled) / (now - self._since)
            lag = sum(partition.lag or 0 for partition in status.partitions)
            _log.info(
                "behind",
                lag=lag,
                partitions_behind=len(behind),
                partitions=len(partitions),
                settled_per_second=round(rate),
                seconds_left=round(lag / rate) if rate else None,
            )
            if len(behind) > 1 and not self._told_busy:
                self._note_busy(now)
        self._reached.clear()
        self._since, self._settled, self._used_before = now, status.settled, self._used()

    def _note_busy(self, now: float) -> None:
        processors = processor_limit()
        busy = (self._used() - self._used_before) / (now - self._since)
        if busy >= _BUSY and processors > self._workers:
            self._told_busy = True
            _log.info(
                "records wait, and this worker keeps one processor busy: --workers auto starts one for each",
                used=round(busy, 1),
                processors=processors,
                workers=self._workers,
            )


class RecentRate:
    """The rate of the last minute, and the time until the rest is done at it."""

    def __init__(self) -> None:
        self._moments: deque[tuple[float, int]] = deque()

    def note(self, done: int, now: float) -> None:
        """Note how many are done now."""
        self._moments.append((now, done))
        while now - self._moments[0][0] > _INTERVAL:
            self._moments.popleft()

    @property
    def rate(self) -> float:
        """How many a second."""
        if len(self._moments) < 2:
            return 0.0
        (begun, before), (now, done) = self._moments[0], self._moments[-1]
        return max(0, done - before) / max(now - begun, 1e-9)

    def seconds_left(self, left: int) -> float:
        """Return the seconds until so many more are done; infinite while nothing moves."""
        if not left:
            return 0.0
        return left / self.rate if self.rate else math.inf


class CatchUp:
    """Decides when a worker has mapped everything that its partitions had when they were assigned to it.

    What its reducers have collected then is flushed by the drain. A partition that goes to another member
    is that member's to read.
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], int] = {}

    def is_reached(self, status: WorkerStatus) -> bool:
        """Return whether every partition is mapped to the end that it had when its end was first known."""
        if status.state != "running":
            return False
        for each in status.partitions:
            if each.end is not None:
                self._ends.setdefault((each.topic, each.partition), each.end)
        is_read = all(
            (end := self._ends.get((each.topic, each.partition))) is not None
            and (each.position or each.start or 0) >= end
            for each in status.partitions
        )
        maps = (stage for stage in status.stages if stage.name.startswith(MAP_STAGE))
        return is_read and all(stage.activity == "idle" and not stage.queued for stage in maps)


def _at_end(partitions: Iterable[PartitionStatus]) -> set[tuple[str, int]]:
    return {
        (each.topic, each.partition)
        for each in partitions
        if each.end is not None and (each.position or each.start or 0) >= each.end
    }
