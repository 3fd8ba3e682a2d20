"""The latest failures of a worker, with their reasons: what went wrong, where, when and how often."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

FailureKind = Literal[
    "record failed", "map repeated", "flush repeated", "commit failed", "worker ended"
]

_MOST: Final = 20
_LONGEST: Final = 1_000
"""Characters of a reason; the log has all of it."""


class FailureSummary(msgspec.Struct, frozen=True):
    """Failures of one kind with the same reason.

    Attributes:
        time: of the last one, in seconds since 1970.
        stage: `map`, `reduce-1`, `reduce-err`; empty for commits and workers.
        count: how many: records, attempts, commits or ends.
        worker: the number of one of several workers.
        place: `topic:partition:offset` of the latest record that failed, by which `kmr dlq show` finds its
            letter; None if no record failed.
    """

    time: float
    kind: FailureKind
    stage: str
    reason: str
    count: int = 1
    worker: int | None = None
    place: str | None = None


class FailureLog:
    """Keeps the last 20 different failures. A failure that comes again is counted, and is the latest one."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str, str], FailureSummary] = {}

    def note(
        self, kind: FailureKind, stage: str, reason: str, count: int = 1, place: str | None = None
    ) -> None:
        """Note a failure of this moment."""
        reason = reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 1]}…"
        known = self._failures.pop((kind, stage, reason), None)
        before = 0 if known is None else known.count
        failure = FailureSummary(time.time(), kind, stage, reason, before + count, place=place)
        self._failures[kind, stage, reason] = failure
        if len(self._failures) > _MOST:
            del self._failures[next(iter(self._failures))]

    def newest_first(self) -> tuple[FailureSummary, ...]:
        """Return the failures, the latest one first."""
        return tuple(reversed(self._failures.values()))


def latest(failures: Iterable[FailureSummary]) -> tuple[FailureSummary, ...]:
    """Return the last 20 of the failures of several workers, the latest one first."""
    return tuple(sorted(failures, key=lambda each: each.time, reverse=True)[:_MOST])
