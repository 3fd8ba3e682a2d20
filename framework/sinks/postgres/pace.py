"""How many rows a statement gets, so that the server ends it within the timeout."""

from __future__ import annotations

from typing import Final

import structlog

_FEWER: Final = 8
_QUICK: Final = 4  # a statement that takes less than this part of the timeout
_UNLIMITED: Final = 1 << 20  # rows

_log = structlog.get_logger(__name__)


class Pace:
    """Gives statements fewer rows after one that exceeded the timeout, and more after quick ones.

    Args:
        timeout: seconds for each statement.

    Attributes:
        rows: the most rows of a statement; None: no limit.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.rows: int | None = None

    def exceeded(self, rows: int) -> None:
        """Note that a statement with so many rows was cancelled for the timeout."""
        self.rows = max(1, rows // _FEWER)
        _log.warning(
            "a statement exceeded the timeout: the next ones have fewer rows",
            timeout=self.timeout,
            rows=rows,
            next=self.rows,
        )

    def took(self, rows: int, seconds: float) -> None:
        """Note how long a statement took."""
        if self.rows is None or rows < self.rows or seconds * _QUICK > self.timeout:
            return
        doubled = self.rows * 2
        self.rows = doubled if doubled < _UNLIMITED else None

    def limit(self, rows: int | None) -> int | None:
        """Return how many rows the next flush has at most, where `rows` are configured."""
        if rows is None or self.rows is None:
            return self.rows if rows is None else rows
        return min(rows, self.rows)
