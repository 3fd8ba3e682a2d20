"""Failed records on their way to the error sink: as rows with the original columns, and under a limit."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
import structlog

from framework.errors import RecordFailed, SinkError
from framework.ranges import ranges_of
from framework.record import SCHEMA, Range, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from anyio.streams.memory import MemoryObjectSendStream
    from numpy.typing import NDArray

    from framework.record import Batch
    from framework.results import Failure
    from framework.strategy import ErrorLimit
    from framework.telemetry import Metrics

__all__ = ["FAILED_SCHEMA", "ErrorPort", "LimitWindow", "failed_records", "original_records"]

_FAILED_COLUMNS: list[pa.Field[Any]] = [
    pa.field("reason", pa.string()),
    pa.field("stage", pa.string()),
    pa.field("attempt", pa.int32()),
]
FAILED_SCHEMA = pa.schema([*SCHEMA, *_FAILED_COLUMNS])
"""What `reduce_err` is given: the original record, why and where it failed, and after how many attempts."""

_log = structlog.get_logger(__name__)


def failed_records(batch: Batch, failures: Sequence[Failure], stage: str, generation: int) -> Rows:
    """The records of a batch that the map failed on."""
    failed = np.array([failure.offset for failure in failures], dtype=np.int64)
    offsets = batch.offsets()
    at = np.searchsorted(offsets, failed)
    records = batch.records.take(pa.array(at, pa.int64()))
    return _failed(
        batch, records, failed, [failure.reason for failure in failures], stage, 1, generation
    )


def original_records(rows: Rows, reason: str, stage: str, attempt: int) -> list[Rows]:
    """The records that rows came from, by batch: those of their `offsets`, or of all their ranges.

    Raises:
        SinkError: the rows name no sources, so that their records would be lost.
    """
    found = []
    for batch in rows.sources:
        offsets = batch.offsets()
        ranges = [r for r in rows.ranges if r.topic_partition == batch.topic_partition]
        if rows.offsets is not None:
            wanted = np.isin(offsets, rows.offsets)
        else:
            wanted = np.zeros(len(offsets), dtype=np.bool_)
            for r in ranges:
                wanted |= (offsets >= r.first) & (offsets <= r.last)
        if ranges and wanted.any():
            records = batch.records.filter(pa.array(wanted))
            reasons = [reason] * records.num_rows
            generation = ranges[0].generation
            found.append(
                _failed(batch, records, offsets[wanted], reasons, stage, attempt, generation)
            )
    if not found:
        raise SinkError(
            f"{stage}: rows of {rows.ranges} were refused ({reason}), but name no sources"
        )
    return found


def _failed(
    batch: Batch,
    records: pa.RecordBatch,
    offsets: NDArray[np.int64],
    reasons: list[str],
    stage: str,
    attempt: int,
    generation: int,
) -> Rows:
    columns = [
        *records.columns,
        pa.array(reasons, pa.string()),
        pa.array([stage] * len(reasons), pa.string()),
        pa.array([attempt] * len(reasons), pa.int32()),
    ]
    whole = Range(batch.topic, batch.partition, batch.first, batch.last, generation)
    return Rows(
        table=pa.Table.from_arrays(columns, schema=FAILED_SCHEMA),
        ranges=ranges_of(offsets, whole),
        offsets=offsets,
        sources=(batch,),
    )


class LimitWindow:
    """Counts failures in a sliding window, for all stages of a strategy together."""

    def __init__(self, limit: ErrorLimit | None) -> None:
        self.limit = limit
        self._seen: deque[tuple[float, int]] = deque()
        self._count = 0

    def room(self) -> int:
        """How many more failures the window takes now; without a limit, any number."""
        if self.limit is None:
            return 2**63
        now = anyio.current_time()
        while self._seen and self._seen[0][0] <= now - self.limit.per:
            self._count -= self._seen.popleft()[1]
        return max(0, self.limit.records - self._count)

    def count(self, failures: int) -> None:
        """Take note of failures that were let through."""
        if self.limit is not None and failures:
            self._seen.append((anyio.current_time(), failures))
            self._count += failures

    async def wait(self) -> None:
        """Sleep until the oldest failure leaves the window."""
        if self.limit is not None and self._seen:
            await anyio.sleep_until(self._seen[0][0] + self.limit.per)


class ErrorPort:
    """Where a stage hands over failed records; each stage has its own, and closes it when it ends.

    Args:
        stream: the inbox of the error stage; None when the strategy has no `reduce_err`.
        window: the limit, shared by all ports.
        settle: settles ranges that are dropped by policy.
    """

    def __init__(
        self,
        stream: MemoryObjectSendStream[Rows] | None,
        window: LimitWindow,
        settle: Callable[[Iterable[Range]], None],
        metrics: Metrics,
    ) -> None:
        self._stream = stream
        self._window = window
        self._settle = settle
        self._metrics = metrics

    def clone(self) -> ErrorPort:
        """A port of its own for another stage."""
        stream = self._stream.clone() if self._stream is not None else None
        return ErrorPort(stream, self._window, self._settle, self._metrics)

    def close(self) -> None:
        """Send no more; the error stage ends when all ports are closed."""
        if self._stream is not None:
            self._stream.close()

    async def send(self, rows: Rows, stage: str) -> None:
        """Hand failed records over; waits while the error stage is busy, or while the limit pauses.

        Raises:
            RecordFailed: there is no error sink, or the limit says stop.
        """
        self._metrics.failed.labels(stage).inc(len(rows))
        first = f"{rows.ranges[0]} in {stage}: {rows.table.column('reason')[0].as_py()}"
        stream = self._stream
        if stream is None:
            raise RecordFailed(
                f"record failed, {first}; set reduce_err= in the strategy to keep such records and go on"
            )
        limit = self._window.limit
        rest: Rows | None = rows
        while rest is not None:
            room = self._window.room()
            if limit is None or room >= len(rest):
                part, rest = rest, None
            elif limit.on_limit == "stop":
                raise RecordFailed(
                    f"more than {limit.records} records failed within {limit.per:g} s, the last {first}; "
                    "mend the cause, or raise err_limit"
                )
            elif room > 0:
                part, rest = rest.cut(room)
            elif limit.on_limit == "drop":
                self._drop(rest)
                return
            else:
                _log.warning("too many failed records: paused", stage=stage, failed=first)
                await self._window.wait()
                continue
            self._window.count(len(part))
            self._metrics.dead_letters.labels("sent").inc(len(part))
            await stream.send(part)

    def _drop(self, rows: Rows) -> None:
        _log.warning("failed records dropped: over the limit", ranges=[str(r) for r in rows.ranges])
        self._metrics.dead_letters.labels("dropped").inc(len(rows))
        self._settle(rows.ranges)
