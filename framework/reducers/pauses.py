"""The pauses between the attempts of a stage whose flush or map has to be repeated."""

from __future__ import annotations

import random
from typing import Final

import structlog

_FIRST: Final = 0.1  # seconds
_LAST: Final = 30.0
_MOST_DOUBLINGS: Final = 20  # far beyond the last pause; keeps the power small
_LOGGED_AGAIN: Final = 60.0  # seconds after which a reason that stays is logged again

_log = structlog.get_logger(__name__)


class Pauses:
    """Pauses that grow up to 30 s, for as long as it takes.

    Args:
        stage: its name, for the log. A reason is logged when it differs from the one before, and again after
            each minute.
        message: for the log.

    Attributes:
        reason: why the last attempt failed; None if it did not.
        attempts: how many have failed in a row.
    """

    def __init__(self, stage: str, message: str) -> None:
        self.reason: str | None = None
        self.attempts = 0
        self._stage, self._message = stage, message
        self._began = self._logged = 0.0

    def next(self, reason: str, now: float, after: float | None = None) -> float:
        """Note an attempt that failed; return the seconds until the next one.

        Args:
            now: the time in seconds, of any clock that does not go back.
            after: the seconds to wait; None: half of the limit that doubles up to all of it, at random.
        """
        if self.reason is None:
            self._began, self.attempts = now, 0
        self.attempts += 1
        limit = min(_LAST, _FIRST * 2.0 ** min(self.attempts - 1, _MOST_DOUBLINGS))
        seconds = limit * random.uniform(0.5, 1.0) if after is None else after  # noqa: S311  spreads retries
        if reason != self.reason or now - self._logged >= _LOGGED_AGAIN:
            self.reason, self._logged = reason, now
            _log.warning(
                self._message,
                stage=self._stage,
                reason=reason,
                seconds=round(seconds, 3),
                attempts=self.attempts,
                failing=round(now - self._began, 1),
            )
        return seconds

    def over(self, message: str, now: float) -> None:
        """Note that an attempt has succeeded."""
        if self.reason is not None:
            self.reason = None
            _log.info(message, stage=self._stage, seconds=round(now - self._began, 1))
