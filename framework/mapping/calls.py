"""How the calls of a per-record function are made: how many at a time, how often, how long."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ..arguments import Checked
from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Sequence

_BURST = 0.1
"""Seconds for which a rate may be exceeded, to make up for calls that began late."""


@dataclass(frozen=True)
class Retries(metaclass=Checked):
    """When a call of the map function is repeated before its record counts as failed.

    The pause before a repetition is random, between half and all of `backoff`, which doubles with each
    attempt. A drain, or the loss of the partition, ends the pause: then the record is read again.

    Example:
        ```python
        from kmr import Retries, map_record

        @map_record(retry=Retries(on=(TimeoutError, ConnectionError), attempts=3))
        def enriched(record):
            return {"value": record.value}
        ```

    Attributes:
        on: the exceptions after which a call is repeated; others fail at once.
        attempts: the most calls for one record, the first one included.
        backoff: the longest pause before the first repetition, in seconds.
        max_backoff: the longest pause of all, in seconds.

    Raises:
        StrategyError: a value is not allowed.
    """

    on: type[Exception] | Sequence[type[Exception]]
    attempts: int = 5
    backoff: float = 0.1
    max_backoff: float = 30.0

    def __post_init__(self) -> None:
        on: tuple[object, ...] = (self.on,) if isinstance(self.on, type) else tuple(self.on)
        if not on or not all(isinstance(each, type) and issubclass(each, Exception) for each in on):
            raise StrategyError(
                f"retry: on must be classes of exceptions, such as TimeoutError, not {self.on!r}"
            )
        object.__setattr__(self, "on", on)
        if self.attempts < 1 or self.backoff < 0 or self.max_backoff < 0:
            raise StrategyError(
                "retry: attempts must be at least 1, backoff and max_backoff at least 0, not "
                f"{self.attempts}, {self.backoff} and {self.max_backoff}"
            )

    def repeats(self, error: Exception, attempts: int) -> bool:
        """Return whether a call is repeated that has failed so many times."""
        return attempts < self.attempts and isinstance(error, self.on)  # type: ignore[arg-type]  # a tuple

    def pause(self, attempts: int) -> float:
        """Return the seconds to wait after so many attempts."""
        longest = min(self.max_backoff, self.backoff * 2.0 ** min(attempts - 1, 30))
        share = random.uniform(0.5, 1.0)  # noqa: S311  no secret
        return longest * share


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How the calls of a per-record function are made.

    Attributes:
        concurrency: how many records of a batch are mapped at a time.
        retry: which calls are repeated.
        timeout: seconds for one call of a coroutine function, then it is cancelled with TimeoutError.
        rate_limit: the most calls in a second, in one process.

    Raises:
        StrategyError: a value is not allowed.
    """

    concurrency: int = 1
    retry: Retries | None = None
    timeout: float | None = None
    rate_limit: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise StrategyError(f"concurrency must be at least 1, not {self.concurrency!r}")
        if self.retry is not None and not isinstance(self.retry, Retries):
            raise StrategyError(f"retry must be Retries(on=...), not {self.retry!r}")
        for name in ("timeout", "rate_limit"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise StrategyError(f"{name} must be above 0, not {value!r}")

    def describe(self) -> str:
        """Return the options in words; empty if there are none."""
        retry = self.retry
        parts = [
            f"{self.concurrency} at a time" if self.concurrency > 1 else "",
            "" if self.timeout is None else f"at most {self.timeout:g} s each",
            "" if retry is None else f"at most {retry.attempts} attempts",
            "" if self.rate_limit is None else f"at most {self.rate_limit:g} calls a second",
        ]
        return ", ".join(part for part in parts if part)


class RateLimit:
    """Distributes calls evenly over time. Threads and tasks of one process share it."""

    def __init__(self, rate: float) -> None:
        self._interval = 1 / rate
        self._next = 0.0
        self._lock = threading.Lock()

    def reserve(self, calls: int = 1) -> float:
        """Take the next places; return the seconds until the first of them, 0 if it is now."""
        with self._lock:
            now = time.monotonic()
            at = max(self._next, now - _BURST)
            self._next = at + calls * self._interval
            return max(0.0, at - now)


rate_limit_of = cache(RateLimit)
"""The limit of a rate that all maps of this process share."""
