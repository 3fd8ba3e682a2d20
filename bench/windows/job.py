"""The job of `bench.windows`, for all contenders; it imports nothing of kmr."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from bench.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS: Final = 4
TABLE: Final = "hits_per_minute"
DDL: Final = (
    f"CREATE TABLE {TABLE} (window_start DateTime64(6, 'UTC'), window_end DateTime64(6, 'UTC'), path String, "
    "hits Int64) ENGINE = MergeTree ORDER BY (window_start, path) "
    "SETTINGS non_replicated_deduplication_window = 10000"
)
_BEGIN: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Hit(msgspec.Struct):
    """A record's value."""

    ts: datetime
    path: str


@dataclass(frozen=True)
class WindowJob(Job):
    """What to count.

    Attributes:
        rows: the number of windows and keys that come out.
        results: the topic of the rows, if there is no ClickHouse.
    """

    rows: int
    results: str


@dataclass(frozen=True)
class Log:
    """Hits in the order of their times, evenly spread; each key in one partition.

    Attributes:
        seconds: from the first to the last one.
    """

    records: int
    keys: int
    seconds: int

    def chunks(self) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
        """Yield partitions, with the keys and the values of the next records."""
        names = [f"/items/{number:05d}".encode() for number in range(self.keys)]
        at = 0
        for second in range(self.seconds):
            end = self.records * (second + 1) // self.seconds
            moment = (_BEGIN + timedelta(seconds=second)).isoformat().encode()
            for partition in range(PARTITIONS):
                first = at + (partition - at) % PARTITIONS
                found = [names[i % self.keys] for i in range(first, end, PARTITIONS)]
                yield partition, found, [_value(moment, name) for name in found]
            at = end

    def ends(self) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
        """Yield for each partition a record that closes all windows before it."""
        moment = (_BEGIN + timedelta(days=1)).isoformat().encode()
        for partition in range(PARTITIONS):
            yield partition, [b"end"], [_value(moment, b"end")]

    def rows(self, window: int) -> int:
        """Return how many pairs of a window of so many seconds and a key there are."""
        total = 0
        for start in range(0, self.seconds, window):
            first = self.records * start // self.seconds
            end = self.records * min(start + window, self.seconds) // self.seconds
            total += min(end - first, self.keys)
        return total


def _value(moment: bytes, path: bytes) -> bytes:
    return b'{"ts":"%b","path":"%b","ms":17}' % (moment, path)
