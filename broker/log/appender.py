"""The writing end of a log: offsets for new batches, one write per flush, and new segments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .producers import ProducerError, read_marker, restore_producers, save_producers
from .recent_batches import RecentBatches
from .records import NO_TIMESTAMP, InvalidBatch, plain_batch, stamp_append_time, stamp_offset
from .results import Appended, LogFailed
from .segment import Segment
from .validation import stores_as_sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .durability import Durability
    from .log_config import LogConfig
    from .records import BatchHeader
    from .segments import Segments


class Appender:
    """Append batches to the active segment; begin a new one when it is full or too old.

    Appended batches are kept in memory until `write_pending`. A failed write is undone, without reading the
    log: it is then as it was before the appends since the last write.

    Attributes:
        next_offset: offset of the next record: the log end offset.
        producers: the idempotent producers, as of `next_offset`.
        broken: why nothing can be written until the log is opened again, "" while it can.
        pending_bytes: bytes that were appended and are not written yet.
        recent: where the newest batches are, those that are pending included.
        closed: whether `close` or `discard` was called.
    """

    def __init__(
        self, segments: Segments, durability: Durability, config: LogConfig, next_offset: int
    ) -> None:
        self.configure(config)
        self.next_offset = next_offset
        self.broken = ""
        self.closed = False
        self._segments = segments
        self._durability = durability
        self._written_offset = next_offset
        self._pending: list[memoryview | bytearray] = []
        self.pending_bytes = 0
        self.recent = RecentBatches()
        self._failed_write = ""  # why a write failed, until `flush_pending` reports it
        now_ms = int(time.time() * 1000)
        self._active_since_ms = segments.active.first_timestamp(now_ms)
        self._active = segments.active
        self._written_index = self._active.index.end()
        self.producers = restore_producers(
            segments.directory, list(segments), next_offset, now_ms=now_ms
        )
        self.producers.aborted.forget_below(segments.log_start_offset)

    def configure(self, config: LogConfig) -> None:
        """Use these settings from now on."""
        self._config = config
        self._stores_as_sent = stores_as_sent(config)

    @property
    def failure(self) -> str:
        """Why nothing can be appended until the log is opened again, "" while it can."""
        return self.broken or self._durability.failure

    def append(
        self, data: memoryview | bytearray, batches: Sequence[BatchHeader], *, now_ms: int
    ) -> Appended:
        """Append checked batches; see `PartitionLog.append`."""
        self.check_writable()
        if not batches or batches[-1].end != len(data):
            raise ValueError(f"{len(batches)} batches do not make up {len(data)} bytes")
        stamps_append_time = self._config.message_timestamp_type == "LogAppendTime"
        log_start_offset = self._segments.log_start_offset
        if len(batches) == 1:
            sent = self.producers.check(batches[0])
            if sent is not None:
                time_ms = sent.timestamp if stamps_append_time else -1
                first, last = sent.first_offset, sent.last_offset
                return Appended(first, last, time_ms, log_start_offset, duplicate=True)
        elif any(batch.producer_id >= 0 for batch in batches):
            raise InvalidBatch("a producer with an id appends one batch at a time")
        self._roll_if_due(len(data), now_ms)
        first_offset, time_ms = self.next_offset, now_ms if stamps_append_time else -1
        self._add(data, batches, time_ms, now_ms)
        return Appended(first_offset, self.next_offset - 1, time_ms, log_start_offset)

    def append_plain(self, data: memoryview, now_ms: int) -> int | None:
        """Append one batch as a client sent it, if nothing about it or the log is special.

        Return the offset of its first record. None: nothing was appended; `split_batches`,
        `validate_batches` and `append` may take it, or say why not. `data` is patched and kept as by
        `append`. Most topics take nearly all their batches here, with less work.
        """
        config, active_bytes = self._config, self._active.size + self.pending_bytes
        if (
            not self._stores_as_sent
            or len(data) > config.max_message_bytes
            or not active_bytes
            or self._is_roll_due(active_bytes, len(data), now_ms)
            or self._refusal
        ):
            return None
        batch = plain_batch(data)
        if batch is None or batch.max_timestamp > now_ms + config.message_timestamp_after_max_ms:
            return None
        if batch.producer_id >= 0:
            try:
                if self.producers.check(batch) is not None:
                    return None
            except ProducerError:
                return None
        first_offset = self.next_offset
        self._add(data, (batch,), -1, now_ms)
        return first_offset

    def _add(
        self,
        data: memoryview | bytearray,
        batches: Sequence[BatchHeader],
        append_time_ms: int,
        now_ms: int,
    ) -> None:
        """Give the batches their offsets, and unless it is -1 their time; keep them until the next write."""
        index, interval, offset = (
            self._active.index,
            self._config.index_interval_bytes,
            self.next_offset,
        )
        if not self._pending:
            self._written_index = index.end()
        end = self._active.size + self.pending_bytes
        for batch in batches:
            timestamp = batch.max_timestamp
            stamp_offset(data, batch, offset)
            if append_time_ms >= 0:
                timestamp = append_time_ms
                stamp_append_time(data, batch, append_time_ms)
            if batch.is_control:
                timestamp = NO_TIMESTAMP  # searches by timestamp skip markers
                marker = read_marker(data, batch)
                self.producers.end_transaction(batch, marker, offset=offset, now_ms=now_ms)
            elif batch.producer_id >= 0:
                self.producers.update(
                    batch, first_offset=offset, timestamp=timestamp, now_ms=now_ms
                )
            index.add(offset, end + batch.position, timestamp, interval)
            self.recent.add(offset, end + batch.position)
            offset += batch.last_offset_delta + 1
        self.next_offset = offset
        self._pending.append(data)
        self.pending_bytes += len(data)

    def flush_pending(self) -> None:
        """Write the pending batches; see `PartitionLog.flush_pending`."""
        self.write_pending()
        failure, self._failed_write = self._failed_write, ""
        if failure:
            raise LogFailed(failure)

    def write_pending(self) -> None:
        """Write the pending batches with one system call; after a failure, undo their appends.

        Reads, rolls and deletions call this too. They must not take a failure away from the producers,
        so the next `flush_pending` raises it.
        """
        if not self._pending:
            return
        active = self._active
        try:
            active.write(self._pending, self.pending_bytes)
        except OSError as error:
            self._undo_appends(error)
        else:
            self._written_offset = self.next_offset
            self.producers.keep()
            self._durability.wrote(active, self._written_offset)
        finally:
            self._pending = []
            self.pending_bytes = 0

    def roll(self) -> None:
        """Begin a new segment; no effect if the active one is empty. Raises `LogFailed`."""
        self.write_pending()
        self.check_writable()
        old, directory = self._active, self._segments.directory
        if not old.size:
            return
        try:
            old.save_index(self.next_offset)
            save_producers(self.producers, directory, self.next_offset)
            interval = self._config.index_interval_bytes
            active = Segment.create(directory, self.next_offset, interval)
        except OSError as error:
            raise LogFailed(f"{directory}: no new segment can begin: {error}") from error
        self._segments.add(active)
        self._active = active
        self.recent.clear()
        self._durability.wrote(active, self.next_offset)

    def roll_if_older(self, since_ms: int) -> None:
        """Begin a new segment if the active one has records from before this time."""
        if self._active_since_ms < since_ms:
            self.roll()

    def check_writable(self) -> None:
        """Raise `LogFailed` if the log is closed, broken, or has a failed write to report."""
        refusal = self._refusal
        if refusal:
            raise LogFailed(refusal)

    @property
    def _refusal(self) -> str:
        """Why nothing can be appended now, "" if it can."""
        if self.closed:
            return f"{self._segments.directory}: the log is closed"
        return self.broken or self._durability.failure or self._failed_write

    def close(self) -> None:
        """Write and sync everything, and save a checkpoint, the index and the producers.

        Raises:
            LogFailed: the disk failed.
        """
        self.closed = True
        directory = self._segments.directory
        self.write_pending()
        if not self.broken:
            try:
                self._durability.sync(checkpoint=True)
                self._active.save_index(self._written_offset)
                save_producers(self.producers, directory, self._written_offset)
            except OSError as error:
                raise LogFailed(f"{directory}: {error}") from error
        if self._failed_write or self.broken:
            raise LogFailed(self._failed_write or self.broken)

    def discard(self) -> None:
        """Drop the pending batches and refuse further appends, because the log is being deleted."""
        self.closed = True
        self._pending.clear()
        self.pending_bytes = 0

    def _roll_if_due(self, size: int, now_ms: int) -> None:
        active_bytes = self._active.size + self.pending_bytes
        if active_bytes and self._is_roll_due(active_bytes, size, now_ms):
            self.roll()
            active_bytes = 0
        if not active_bytes:
            self._active_since_ms = now_ms

    def _is_roll_due(self, active_bytes: int, size: int, now_ms: int) -> bool:
        """Whether the active segment has no room for `size` bytes more, or is too old for them."""
        return (
            active_bytes + size > self._config.segment_bytes
            or now_ms - self._active_since_ms >= self._config.segment_ms
        )

    def _undo_appends(self, error: OSError) -> None:
        """Return the log to its state before the appends whose write failed."""
        active = self._active
        self._failed_write = f"{active.path}: {error.strerror or error}; nothing was appended"
        self.next_offset = self._written_offset
        active.index.cut(self._written_index)
        self.recent.cut(self._written_offset)
        self.producers.undo(self._written_offset)
        try:
            active.truncate(active.size)
        except OSError as second:
            self.broken = f"{active.path}: broken until a restart: {error}, then {second}"
            self._failed_write = self.broken
