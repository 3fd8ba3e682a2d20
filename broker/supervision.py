"""Supervision of the work that a broker repeats: what fails is logged once, and tried again later."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from .log.results import LogError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

STALL_SECONDS: Final = 30.0
"""Work that is this late counts as stalled."""
_LONGEST_PAUSE: Final = 60.0  # seconds between two attempts, if the work is not repeated less often
_MOST_DOUBLINGS: Final = 16
_EXPECTED: Final = (LogError, OSError)  # of these, the message says enough

logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Schedule:
    every: float = 1.0
    due: float = 0.0


@dataclass(slots=True)
class FailedWork:
    """Consecutive failed attempts at one subject; `retry_at` is in the clock's seconds."""

    work: str
    subject: str
    reason: str = ""
    attempts: int = 0
    retry_at: float = 0.0
    seen: bool = True
    """Whether the subject still exists: the present pass of the work has asked for it."""

    def __str__(self) -> str:
        what = f"{self.work} ({self.subject})" if self.subject else self.work
        return f"{what} fails: {self.reason}"


class Supervision:
    """Repeats work, such as compaction, on subjects, such as partitions. Any thread may call.

    An exception of one subject ends only that attempt. It is logged once while the reason stays the same, and
    the subject is left out for a time, which doubles with each failure up to a minute.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._schedules: dict[str, _Schedule] = {}
        self._failures: dict[tuple[str, str], FailedWork] = {}

    async def repeat(
        self, work: str, action: Callable[[], Awaitable[None]], *, every: float
    ) -> None:
        """Run `action` every `every` seconds until cancelled, whatever it raises."""
        self.expect(work, every)
        while True:
            await anyio.sleep(self._pause(work))
            self.beat(work)
            for failure in self._of(work):
                failure.seen = False
            with self.attempt(work, f"{work} failed; it is tried again"):
                await action()
                for failure in self._of(work):
                    if not failure.seen:
                        self._failures.pop((work, failure.subject), None)

    def expect(self, work: str, every: float) -> None:
        """Expect a `beat` of the work every `every` seconds, from now on."""
        self._schedules[work] = _Schedule(every)
        self.beat(work)

    def beat(self, work: str) -> None:
        """The work makes progress."""
        schedule = self._schedules[work]
        schedule.due = self._clock() + max(schedule.every, self._pause(work))

    def may_try(self, work: str, **subject: object) -> bool:
        """Whether it is time for an attempt: the subject has not failed, or long enough ago."""
        failure = self._failures.get((work, _text(subject)))
        if failure is None:
            return True
        failure.seen = True
        return self._clock() >= failure.retry_at

    @contextmanager
    def attempt(self, work: str, event: str, **subject: object) -> Iterator[None]:
        """Work on the subject; an exception of the block is logged as `event`, and goes no further."""
        key = (work, _text(subject))
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever it is, the others go on
            self._failed(key, event, subject, error)
        else:
            self._failures.pop(key, None)

    @property
    def failures(self) -> list[FailedWork]:
        """What fails now, and is tried again."""
        return list(self._failures.values())

    @property
    def stalled(self) -> str:
        """The work that does not move and for how long, "" if there is none."""
        now = self._clock()
        late = [
            f"{work} has not moved for {now - each.due:.0f} seconds"
            for work, each in self._schedules.items()
            if now > each.due + STALL_SECONDS
        ]
        return "; ".join(late)

    def _failed(
        self, key: tuple[str, str], event: str, subject: dict[str, object], error: Exception
    ) -> None:
        failure = self._failures.setdefault(key, FailedWork(*key))
        reason = str(error) or type(error).__name__
        if failure.reason != reason:
            unexpected = None if isinstance(error, _EXPECTED) else error
            logger.error(event, **subject, error=reason, exc_info=unexpected)
        every = self._schedules.get(key[0], _Schedule()).every
        pause = min(every * 2 ** min(failure.attempts, _MOST_DOUBLINGS), max(_LONGEST_PAUSE, every))
        failure.reason = reason
        failure.attempts += 1
        failure.retry_at = self._clock() + pause
        failure.seen = True

    def _pause(self, work: str) -> float:
        every = self._schedules[work].every
        failure = self._failures.get((work, ""))
        return every if failure is None else max(every, failure.retry_at - self._clock())

    def _of(self, work: str) -> list[FailedWork]:
        return [each for each in self.failures if each.work == work and each.subject]


def _text(subject: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in subject.items())
