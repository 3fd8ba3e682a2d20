"""For how long partitions have had no record, as a part of a query's offsets.

A window of such a partition closes by the wall clock. Spark runs a task only where the offsets of a
micro-batch end elsewhere than they begin, and repeats it with the same ones: so the time is in them, and the
checkpoint has it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Idle: TypeAlias = dict[TopicPartition, int]
"""For how long partitions have had no record, in microseconds; those without a time had one."""

_MOST_STEPS: Final = 20
_MICROS: Final = 1_000_000


def read_idle(shown: Mapping[str, Mapping[str, Any]]) -> Idle:
    """Return the times of a query's offsets: `[offset, time]` stands in place of an offset."""
    return {
        TopicPartition(topic, int(partition)): position[1]
        for topic, partitions in shown.items()
        for partition, position in partitions.items()
        if isinstance(position, list)
    }


class IdleClock:
    """Measures for how long partitions have no record.

    Times grow in steps, and end: each is a micro-batch.

    Args:
        idle: the shortest time that counts, in microseconds.
        longest: nothing is open any more after that.
        now: returns seconds.
    """

    def __init__(self, idle: int, longest: int, now: Callable[[], float] = time.monotonic) -> None:
        self._step = max(idle, longest // _MOST_STEPS)
        self._longest = -(-longest // self._step) * self._step
        self._now = now
        self._heard: dict[TopicPartition, tuple[int, float]] = {}

    def passed(
        self, start: Mapping[TopicPartition, int], before: Idle, end: Mapping[TopicPartition, int]
    ) -> Idle:
        """Return the times at the end of a micro-batch.

        Args:
            start: its first offsets, with the times `before`.
            end: the offsets after its last ones.
        """
        now, found = self._now(), Idle()
        for partition, offset in end.items():
            idle = before.get(partition, 0)
            if offset != start.get(partition):
                self._heard[partition] = offset, now
                continue
            if self._heard.get(partition, (-1, now))[0] != offset:  # this query has just started
                self._heard[partition] = offset, now - idle / _MICROS
            passed = round((now - self._heard[partition][1]) * _MICROS)
            idle = max(idle, min(passed // self._step * self._step, self._longest))
            if idle:
                found[partition] = idle
        return found
