"""The limit of failed records, and the failures of the last minute that it is compared with."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

import anyio

from ..arguments import Checked
from ..config.schema import Duration, parse_duration
from ..errors import StrategyError

OnLimit = Literal["stop", "pause", "drop"]


@dataclass(frozen=True, slots=True)
class ErrorLimit(metaclass=Checked):
    """The acceptable number of failed records.

    Example:
        ```python
        from kmr import ErrorLimit

        limit = ErrorLimit(records=100, per=60, on_limit="pause")
        ```

    Attributes:
        records: the most failed records within `per` seconds; None: any number.
        per: the length of the window, in seconds; text has a unit: `"5m"`.
        on_limit: `stop` the worker; `pause` until the window has room again; or `drop` the records above
            the limit: they count as settled and are lost, which is logged and counted.
        share: the most failed records within `per` seconds as a part of those that were mapped and not
            filtered, 0 to 1; it counts from `at_least` failures on. None: any part. The worker alone knows
            it, not Spark.
        at_least: see `share`.
    """

    records: int | None = None
    per: Duration = 60.0
    on_limit: OnLimit = "stop"
    share: float | None = None
    at_least: int = 10_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "per", self.seconds)
        if self.records is not None and self.records < 0:
            raise StrategyError(f"err_limit: records must be at least 0, not {self.records}")
        if self.records is None and self.share is None:
            raise StrategyError("err_limit: set records, share or both; err_limit=None is no limit")
        if (self.share is not None and not 0 < self.share < 1) or self.at_least < 1:
            raise StrategyError(
                "err_limit: share must be between 0 and 1 and at_least at least 1, not "
                f"{self.share} and {self.at_least}"
            )
        if self.on_limit == "pause" and self.records == 0:
            raise StrategyError(
                "err_limit: on_limit='pause' needs records of at least 1: with 0 it would pause for ever"
            )

    def allowed(self, mapped: int) -> int:
        """Return how many of so many mapped records may fail."""
        of_all = 2**63 if self.records is None else self.records
        return (
            of_all
            if self.share is None
            else min(of_all, max(self.at_least, int(self.share * mapped)))
        )

    def __str__(self) -> str:
        """The limit in words."""
        parts = [] if self.records is None else [f"{self.records:,} records"]
        if self.share is not None:
            parts.append(f"{self.share:.0%} of the records (or {self.at_least:,} if that is more)")
        return f"{' or '.join(parts)} in {self.seconds:g} s"

    @property
    def seconds(self) -> float:
        """`per`."""
        return parse_duration(self.per, "err_limit: per")


MOSTLY_FAILED: Final = ErrorLimit(share=0.95)
"""The default limit: if almost all records fail, the strategy is wrong, or the topic."""


class LimitWindow:
    """The failures of all stages of a strategy in a sliding window."""

    def __init__(self, limit: ErrorLimit | None) -> None:
        self.limit = limit
        per = 0.0 if limit is None else limit.seconds
        self._failed, self._mapped = _Recent(per), _Recent(per)

    def room(self) -> int:
        """Return how many more failures the limit allows now."""
        if self.limit is None:
            return 2**63
        return max(0, self.limit.allowed(self._mapped.sum()) - self._failed.sum())

    def count(self, failures: int) -> None:
        """Count failures that were sent to the error sink."""
        if self.limit is not None and failures:
            self._failed.add(failures)

    def count_mapped(self, records: int) -> None:
        """Count records that were mapped and not filtered, whether they failed or not."""
        if self.limit is not None and self.limit.share is not None:
            self._mapped.add(records)

    async def wait(self) -> None:
        """Sleep until the oldest failure leaves the window."""
        await self._failed.wait()


class _Recent:
    """A sum over the last `per` seconds."""

    def __init__(self, per: float) -> None:
        self._per = per
        self._added: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, number: int) -> None:
        self._forget()  # `sum` is not called while no record fails
        self._added.append((anyio.current_time(), number))
        self._sum += number

    def sum(self) -> int:
        self._forget()
        return self._sum

    def _forget(self) -> None:
        begin = anyio.current_time() - self._per
        while self._added and self._added[0][0] <= begin:
            self._sum -= self._added.popleft()[1]

    async def wait(self) -> None:
        """Sleep until the oldest number leaves the sum."""
        if self._added:
            await anyio.sleep_until(self._added[0][0] + self._per)
