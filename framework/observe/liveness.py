"""Whether a worker makes progress, for `/live`: judged for each stage and each partition.

A worker is not live if a restart may mend it:

- a call of the map function, or an attempt to flush, has not ended for `stall_timeout`;
- a map has waited that long for room, and no rows are left whose flush could make any;
- a partition whose map has nothing to do has not been fetched for that long, though the broker has records
  of it, or is there and was not asked.

Work that waits for something else is live: a sink or a broker that does not answer and is asked again, rows
that wait for `max_age`, a stage that waits for the next one, a rebalance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .waits import ROOM

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..record import TopicPartition
    from .status import StageStatus


class IdlePartition(NamedTuple):
    """A partition that is ours, and whose map has nothing to do.

    Attributes:
        position: the next offset to read.
        end: the offset after the last record that is known; None before the first answer.
        answered_at: when the broker last answered a fetch of it; None if it cannot be asked.
    """

    partition: TopicPartition
    position: int | None
    end: int | None
    answered_at: float | None


class _Wait(NamedTuple):
    since: float
    idle: IdlePartition


class Liveness:
    """Remembers since when partitions wait to be fetched. All times are those of the event loop's clock.

    Args:
        stall_timeout: seconds.
    """

    def __init__(self, stall_timeout: float) -> None:
        self._stall_timeout = stall_timeout
        self._waits: dict[TopicPartition, _Wait] = {}

    def note(self, idle: Iterable[IdlePartition], now: float) -> None:
        """Note the partitions that have nothing to do now; call it at every interval."""
        self._waits = {new.partition: self._continued(new) or _Wait(now, new) for new in idle}

    def _continued(self, new: IdlePartition) -> _Wait | None:
        """Return the wait that a partition continues; None if it was fetched meanwhile."""
        wait = self._waits.get(new.partition)
        if wait is None or wait.idle.position != new.position:
            return None
        behind = new.end is not None and new.end > (new.position or 0)
        forgotten = new.answered_at is not None and new.answered_at <= wait.since
        return _Wait(wait.since, new) if behind or forgotten else None

    def problem(self, stages: Iterable[StageStatus], now: float) -> str | None:
        """Return why the worker is not live, naming the stage or the partition; None if it is."""
        stages = tuple(stages)
        for stage in stages:
            if stage.working > self._stall_timeout:
                call = "the map function" if stage.name.startswith("map ") else "flush"
                reason = "" if stage.reason is None else f"; before: {stage.reason}"
                return f"{stage.name}: {call} has not ended for {stage.working:.0f} s{reason}"
        if not any(stage.rows or stage.queued or stage.working for stage in stages):
            for stage in stages:
                if stage.waits_for == ROOM and stage.waited > self._stall_timeout:
                    return (
                        f"{stage.name}: waits for {ROOM} for {stage.waited:.0f} s, "
                        "and no rows are left to flush"
                    )
        for since, idle in self._waits.values():
            if now - since > self._stall_timeout:
                return (
                    f"{idle.partition}: no records were fetched for {now - since:.0f} s "
                    f"(next offset {idle.position}, known end {idle.end})"
                )
        return None
