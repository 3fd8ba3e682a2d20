"""A log that is read, by offset and by timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.errors import OffsetOutOfRange
from broker.log.growing import GrowingLog
from broker.log.results import ReadResult, Span
from broker.records import HEADER_BYTES, parse_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.log.segment import Segment

__all__ = ["ReadableLog"]


class ReadableLog(GrowingLog):
    """The part of `PartitionLog` that reads; what was appended and is not written yet is written first."""

    def read_into(self, offset: int, buffer: memoryview) -> Span:
        """Fills `buffer` with whole batches from the one that contains `offset` on.

        May stop early, at the end of a segment. Batches that compaction has left without records are
        passed over where there would be nothing else.

        Raises:
            OffsetOutOfRange: `offset` is not in the log, and is not its end either.
            LogCorrupt: the batch is damaged; the message names file and position.
        """
        self._write_pending()
        if not self._log_start_offset <= offset <= self._next_offset:
            raise OffsetOutOfRange(offset, self._log_start_offset, self._next_offset)
        if offset == self._next_offset:
            return Span(0, offset, offset)
        while True:
            segment = self._segment(offset)
            span = segment.read_into(offset, buffer)
            if span.needed_bytes == HEADER_BYTES:
                offset = segment.batch_at(offset).next_offset
            elif _have_no_records(buffer[: span.size]):
                offset = span.next_offset
            else:
                return span
            # Some clients take an answer without any record for one that was cut off, or stay where they are.
            if offset == self._next_offset:
                return span

    def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        """Like `read_into` with memory of its own.

        `min_one`: at least one whole batch, even if it takes more than `max_bytes`.
        """
        buffer = memoryview(bytearray(min(max_bytes, self.size_bytes)))
        span = self.read_into(offset, buffer)
        if min_one and span.needed_bytes > len(buffer):
            buffer = memoryview(bytearray(span.needed_bytes))
            span = self.read_into(offset, buffer)
        return ReadResult(
            buffer[: span.size], span.first_offset, span.next_offset, self.high_watermark
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """`(offset, timestamp)` of the first record with this timestamp or a later one, or None.

        Exact to the record, by the timestamps in the records; raises `LogCorrupt`.
        """
        self._write_pending()
        return self._segments.first_record_since(timestamp_ms, self._log_start_offset)

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """`(offset, timestamp)` of the first record with the latest timestamp, or None.

        None also if no record has a timestamp. Raises `LogCorrupt`.
        """
        self._write_pending()
        latest = self._segments.latest_timestamp(self._log_start_offset)
        return self.offset_for_timestamp(latest) if latest >= 0 else None

    def segments(self) -> Iterator[Segment]:
        """All of them, oldest first; the active one, without an end, is the last."""
        return iter(self._segments)

    def _segment(self, offset: int) -> Segment:
        active = self._segments.active
        return active if offset >= active.base_offset else self._segments.containing(offset)


def _have_no_records(batches: memoryview) -> bool:
    """Whether there are batches, and none of them has a record."""
    position = 0
    while position < len(batches):
        header = parse_header(batches, position)
        if header.record_count:
            return False
        position = header.end
    return position > 0
