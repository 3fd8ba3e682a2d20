"""What both kinds of table with versions share: times of versions, of records, and what is forgotten."""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from ..columns.times import shown_time
from ..errors import StrategyError
from .table import NoRow

if TYPE_CHECKING:
    from collections.abc import Iterator

ALWAYS: Final = -(2**62)
"""The time of versions that were there before all records, in microseconds since 1970."""

RECORD_TIME: Final[ContextVar[int]] = ContextVar("kmr_record_time")
"""The timestamp of the record that a per-record map is called with, in microseconds since 1970."""


Stamp: TypeAlias = tuple[int, int, int]
"""Time, offset and partition: the order of the versions of a key. Of equal times the later offset wins."""


def stamps_of(records: pa.RecordBatch) -> Iterator[Stamp]:
    """Return the stamp of each record of the table's topic."""
    times = records.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    columns: Any = (times.fill_null(ALWAYS), records.column("offset"), records.column("partition"))
    return zip(*(column.to_pylist() for column in columns), strict=True)


class Horizon:
    """How far back versions are kept: from the newest version of the topic, or from now if that is earlier.

    Args:
        keep: how far, in seconds.

    Attributes:
        since: lookups before this time fail, in microseconds since 1970.
    """

    def __init__(self, keep: float) -> None:
        self._keep = round(keep * 1e6)
        self._newest = ALWAYS
        self.since = ALWAYS

    def note(self, stamp: Stamp) -> None:
        """Note the time of a version."""
        self._newest = max(self._newest, stamp[0])

    def advance(self) -> None:
        """Set `since`; it never goes back."""
        newest = min(self._newest, round(time.time() * 1e6))
        self.since = max(self.since, newest - self._keep)


class TooOld(NoRow):
    """A record is older than the versions that a table keeps; it fails with this reason."""

    @classmethod
    def of(cls, name: str, at: int, since: int) -> TooOld:
        """Return the error of a lookup at a time, both in microseconds since 1970."""
        return cls(
            f"{name} keeps versions since {shown_time(since)}, and the lookup is at {shown_time(at)}: "
            "raise keep= of the Lookup"
        )


def microseconds(name: str, at: Any) -> int:
    """Return the time of a lookup: `at=`, or the timestamp of the record that the map is called with.

    Raises:
        StrategyError: `at` is no time, or there is none.
    """
    if at is None:
        try:
            return RECORD_TIME.get()
        except LookupError:
            raise StrategyError(
                f"{name}.get: no record is mapped here whose time could be taken; say at=, or in a per-batch "
                "map call join"
            ) from None
    if not isinstance(at, datetime):
        raise StrategyError(f"{name}.get: at={at!r} must be a datetime")
    moment = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
