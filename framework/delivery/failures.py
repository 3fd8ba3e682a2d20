"""Failed records: their rows for the error sink, their limit, and the port to the error stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import structlog

from ..errors import RecordFailed, SinkError, storable, traceback_of, type_of
from ..record import OFFSET_COLUMNS, PLACED, SCHEMA, Range, Rows
from .ranges import merge_ranges, ranges_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from anyio.streams.memory import MemoryObjectSendStream
    from numpy.typing import NDArray

    from ..mapping.results import Failure
    from ..observe.metrics import Metrics
    from ..record import Batch
    from .error_limit import LimitWindow

_FAILED_COLUMNS: list[pa.Field[Any]] = [
    pa.field("reason", pa.string()),
    pa.field("stage", pa.string()),
    pa.field("attempt", pa.int32()),
    pa.field("exception", pa.string()),
    pa.field("traceback", pa.string()),
]
FAILED_SCHEMA = pa.schema([*SCHEMA, *_FAILED_COLUMNS])
"""The columns of the rows for `reduce_err`: the original record, the reason, the stage, the attempts, and the
class and traceback of the exception, null if there was none."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RowLetters(Rows):
    """Letters of rows that are made of many records (`kmr.delivery.row_letters`), as rows for `reduce_err`.

    `ranges` are those of all these records: they are settled with the letters. Letters of windows have none,
    because the records may be in open windows: who has written the other rows waits for `accepted`.

    Attributes:
        accepted: set when the error sink has the letters, or when they are dropped.
    """

    accepted: Event = field(default_factory=Event, compare=False)


def tell_accepted(held: Iterable[Rows]) -> None:
    """Tell who waits that the letters of rows are written, or dropped. Settle their ranges after it."""
    for rows in held:
        if isinstance(rows, RowLetters):
            rows.accepted.set()


def failed_records(batch: Batch, failures: Sequence[Failure], stage: str, generation: int) -> Rows:
    """Make rows of the records of a batch that failed in the map."""
    offsets = np.array([failure.offset for failure in failures], dtype=np.int64)
    _, reasons, attempts, exceptions, tracebacks = zip(*failures, strict=True)
    return _rows(batch, offsets, stage, generation, reasons, attempts, exceptions, tracebacks)


def original_records(
    rows: Rows,
    reason: str | Sequence[str],
    stage: str,
    attempt: int,
    error: BaseException | None = None,
) -> list[Rows]:
    """Make rows of the original records of refused rows, by batch.

    The records are those of the rows' `offsets` or `places`, or else of all their ranges.

    Args:
        reason: for all rows, or one for each.
        error: the exception behind the refusal, if there is one.

    Raises:
        SinkError: the rows have no sources, so their records would be lost.
    """
    exception = None if error is None else type_of(error)
    traceback = None if error is None else traceback_of(error)
    found = []
    for batch in rows.sources:
        offsets = batch.offsets()
        ranges = [r for r in rows.ranges if r.topic_partition == batch.topic_partition]
        numbers, of_rows = _records_in(rows, batch)
        if of_rows is not None:
            wanted = np.isin(offsets, of_rows)
        else:
            wanted = np.zeros(len(offsets), dtype=np.bool_)
            for r in ranges:
                wanted |= (offsets >= r.first) & (offsets <= r.last)
        if ranges and wanted.any():
            failed = offsets[wanted]
            count = len(failed)
            found.append(
                _rows(
                    batch,
                    failed,
                    stage,
                    ranges[0].generation,
                    _reasons(of_rows, _some(reason, numbers), failed),
                    [attempt] * count,
                    [exception] * count,
                    [traceback] * count,
                )
            )
    if not found:
        raise SinkError(
            f"{stage}: refused rows of {rows.ranges} ({reason}) have no sources; keep them in Refusal.rows"
        )
    return found


def _records_in(rows: Rows, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the numbers and the offsets of the rows of records in the partition of a batch.

    The offsets are None where the rows do not say of which records of `sources` they are: those of dead
    letters that several partitions have say where the records were before.
    """
    every = np.arange(len(rows))
    if rows.offsets is not None or rows.places is None:
        return every, rows.offsets
    columns = [rows.places.column(name).to_pylist() for name in ("topic", "partition")]
    at = list(zip(*columns, strict=True))
    if not {each.topic_partition for each in rows.sources} >= set(at):
        return every, None
    here = np.flatnonzero([each == batch.topic_partition for each in at])
    return here, rows.places.column("offset").to_numpy()[here]


def _some(reason: str | Sequence[str], numbers: NDArray[np.int64]) -> str | Sequence[str]:
    return reason if isinstance(reason, str) else [reason[number] for number in numbers.tolist()]


def _reasons(
    offsets: NDArray[np.int64] | None, reason: str | Sequence[str], failed: NDArray[np.int64]
) -> Sequence[str]:
    """Return the reason of each failed record: that of its first row, or of the first one of all."""
    if isinstance(reason, str):
        return [reason] * len(failed)
    if offsets is None:
        return [f"{reason[0]} (and {len(reason) - 1} more rows)"] * len(failed)
    known, first = np.unique(offsets, return_index=True)
    return [reason[at] for at in first[np.searchsorted(known, failed)].tolist()]


def _rows(
    batch: Batch,
    offsets: NDArray[np.int64],
    stage: str,
    generation: int,
    reasons: Sequence[str],
    attempts: Sequence[int],
    exceptions: Sequence[str | None],
    tracebacks: Sequence[str | None],
) -> Rows:
    """Make rows of `FAILED_SCHEMA` of the records of a batch at these offsets."""
    at = np.searchsorted(batch.offsets(), offsets)
    columns = [
        *batch.records.take(pa.array(at, pa.int64())).columns,
        texts(reasons),
        pa.array([stage] * len(reasons), pa.string()),
        pa.array(attempts, pa.int32()),
        pa.array(exceptions, pa.string()),
        texts(tracebacks),
    ]
    whole = Range(batch.topic, batch.partition, batch.first, batch.last, generation)
    return Rows(
        table=pa.Table.from_arrays(columns, schema=FAILED_SCHEMA.with_metadata(PLACED)),
        ranges=ranges_of(offsets, whole),
        offsets=offsets,
        sources=(batch,),
    )


def settled_together(letters: Sequence[Rows]) -> list[Rows]:
    """Join letters that settle the same records, so that a record is settled when all its letters are stored.

    Branches, or several refusals of a flush, may refuse rows of one record: it has a letter of each, and a
    replay gives each to its branch.
    """
    ranges = [r for rows in letters for r in rows.ranges]
    merged = merge_ranges(ranges)
    if sum(map(_offsets_in, ranges)) == sum(map(_offsets_in, merged)):
        return list(letters)
    settling = [each for each in letters if each.ranges]
    joined = Rows(
        pa.concat_tables([each.table for each in settling]),
        merged,
        sources=tuple(batch for each in settling for batch in each.sources),
    )
    return [joined, *(each for each in letters if not each.ranges)]


def _offsets_in(r: Range) -> int:
    return r.last + 1 - r.first


def texts(given: Sequence[str | None]) -> pa.Array[Any]:
    """Return a column of texts. What has no UTF-8 form is escaped."""
    try:
        return pa.array(given, pa.string())
    except UnicodeEncodeError:
        return pa.array([None if each is None else storable(each) for each in given], pa.string())


@dataclass(eq=False)
class ErrorPort:
    """Sends failed records to the error stage. Each stage has its own port, and closes it when it ends.

    Args:
        stream: the inbox of the error stage; None if the strategy has no `reduce_err`.
        window: the failures that count for the limit, shared by all ports.
        settle: called with the ranges of records that `on_limit="drop"` drops.
    """

    stream: MemoryObjectSendStream[Rows] | None
    window: LimitWindow
    settle: Callable[[Iterable[Range]], None]
    metrics: Metrics

    @property
    def has_sink(self) -> bool:
        """Whether the strategy has a `reduce_err`."""
        return self.stream is not None

    def clone(self) -> ErrorPort:
        """Return a port for another stage."""
        stream = self.stream.clone() if self.stream is not None else None
        return ErrorPort(stream, self.window, self.settle, self.metrics)

    def close(self) -> None:
        """Close the port; the error stage ends when all ports are closed."""
        if self.stream is not None:
            self.stream.close()

    async def send(self, rows: Rows, stage: str, *, is_limited: bool = True) -> None:
        """Send failed records; wait while the error stage is busy, or while the limit pauses.

        Args:
            is_limited: whether they count for the limit.

        Raises:
            RecordFailed: there is no error sink, or the limit is exceeded with `on_limit="stop"`.
        """
        reason = rows.table.column("reason")[0].as_py()
        at = ":".join(str(rows.table.column(name)[0].as_py()) for name in OFFSET_COLUMNS)
        self.metrics.count_failed(stage, len(rows), reason, at)
        stream = self.stream
        place = rows.ranges[0] if rows.ranges else at
        if stream is None:
            raise RecordFailed.without_sink(place, stage, reason)
        first = f"{place} in {stage}: {reason}"
        limit = self.window.limit if is_limited else None
        rest: Rows | None = rows
        while rest is not None:
            room = self.window.room()
            if limit is None or room >= len(rest):
                part, rest = rest, None
            elif limit.on_limit == "stop":
                raise RecordFailed(
                    f"more than {limit} failed, the last {first}; fix the cause, or change err_limit= of the "
                    "strategy (None: any number may fail)"
                )
            elif room > 0:
                part, rest = rest.cut(room)
            elif limit.on_limit == "drop":
                self._drop(rest)
                return
            else:
                _log.warning("too many failed records: paused", stage=stage, failed=first)
                await self.window.wait()
                continue
            if is_limited:
                self.window.count(len(part))
            self.metrics.dead_letters.labels("sent").inc(len(part))
            await stream.send(part)

    def _drop(self, rows: Rows) -> None:
        _log.warning("failed records dropped: over the limit", ranges=[str(r) for r in rows.ranges])
        self.metrics.dead_letters.labels("dropped").inc(len(rows))
        tell_accepted([rows])
        self.settle(rows.ranges)
