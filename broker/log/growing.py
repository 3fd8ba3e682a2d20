"""A log at its end: record batches are appended, written and put into segments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from broker.log.durability import Durability
from broker.log.errors import LogFailed
from broker.log.results import Appended
from broker.log.segment import Segment
from broker.log.segments import Segments
from broker.log.snapshots import restore_producers, save_producers
from broker.producers.markers import read_marker
from broker.records import InvalidBatch, stamp_append_time, stamp_offset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from broker.log.config import LogConfig
    from broker.log.recovery import Recovered
    from broker.producers.states import ProducerStates
    from broker.records import BatchHeader

__all__ = ["GrowingLog"]


class GrowingLog:
    """The part of `PartitionLog` that appends.

    Attributes:
        directory: where its files are.
        config: its settings; see `update_config`.
        recovery: what `PartitionLog.open` found and did.
        producers: what is known of its idempotent producers.
    """

    def __init__(self, directory: Path, config: LogConfig, recovered: Recovered) -> None:
        self.directory = directory
        self.config = config
        self.recovery = recovered.report
        self._log_start_offset = recovered.log_start_offset
        self._next_offset = self._written_offset = recovered.next_offset
        self._durability = Durability(
            directory,
            log_start_offset=self._log_start_offset,
            active=recovered.segments[-1],
            next_offset=self._next_offset,
            unsynced=recovered.unsynced,
        )
        self._segments = Segments(recovered.segments, must_stay_open=self._durability.holds)
        self._pending: list[memoryview | bytearray] = []
        self._pending_bytes = 0
        self._failed_write = ""  # why a write failed, until `flush_pending` reports it
        self._closed = False
        self._broken = ""  # why nothing more can be written, until the log is opened again
        now_ms = int(time.time() * 1000)
        self._active_since_ms = self._segments.active.first_timestamp(now_ms)
        self.producers = self._restored_producers(now_ms)

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self._log_start_offset

    @property
    def next_offset(self) -> int:
        """Offset of the next record to be appended: the log end offset."""
        return self._next_offset

    @property
    def high_watermark(self) -> int:
        """Offsets below are visible to consumers; on a single node the log end offset."""
        return self._next_offset

    @property
    def last_stable_offset(self) -> int:
        """Offsets below belong to no open transaction; the log end without transactions."""
        first_open = self.producers.first_open_offset
        if first_open is None:
            return self._next_offset
        return max(first_open, self._log_start_offset)

    @property
    def failure(self) -> str:
        """Why nothing can be appended until the log is opened again; "" if it can."""
        return self._broken or self._durability.failure

    @property
    def segment_count(self) -> int:
        """Files that the records are in, without indexes."""
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return self._segments.size_bytes + self._pending_bytes

    def append(
        self, data: memoryview | bytearray, batches: Sequence[BatchHeader], *, now_ms: int
    ) -> Appended:
        """Appends checked batches, all or none, and assigns their offsets.

        `data` is patched in place and kept by reference until `flush_pending`: the caller must not
        change it before. Reads see the batches at once; they survive a kill of this process after
        `flush_pending`, a power loss when `durable_offset` has passed them.

        Args:
            data: nothing but the batches.
            batches: what `split_batches(data)` returned; one only, if it has a producer id.
            now_ms: milliseconds since the epoch, for LogAppendTime, rolling and idle producers.

        Raises:
            ProducerError: sequence, epoch or transaction are wrong; nothing was appended.
            InvalidBatch: several batches with a producer id in one append.
            LogFailed: the disk failed, now or since the last `flush_pending`.
        """
        self._raise_if_failed()
        if not batches or batches[-1].end != len(data):
            raise ValueError(f"{len(batches)} batches do not make up {len(data)} bytes")
        if any(batch.producer_id >= 0 for batch in batches):
            if len(batches) > 1:
                raise InvalidBatch("a producer with an id appends one batch at a time")
            sent = self.producers.check(batches[0])
            if sent is not None:
                time_ms = sent.timestamp if self._stamps_append_time else -1
                first, last = sent.first_offset, sent.last_offset
                return Appended(first, last, time_ms, self._log_start_offset, duplicate=True)
        self._roll_if_due(len(data), now_ms)
        active = self._segments.active
        first_offset, end = self._next_offset, active.size + self._pending_bytes
        for batch in batches:
            offset, timestamp = self._next_offset, batch.max_timestamp
            stamp_offset(data, batch, offset)
            if self._stamps_append_time:
                timestamp = now_ms
                stamp_append_time(data, batch, now_ms)
            active.add_to_index(batch, offset, end + batch.position, timestamp)
            self._note_producer(batch, data, offset, timestamp, now_ms)
            self._next_offset = offset + batch.last_offset_delta + 1
        self._pending.append(data)
        self._pending_bytes += len(data)
        return Appended(
            first_offset,
            self._next_offset - 1,
            now_ms if self._stamps_append_time else -1,
            self._log_start_offset,
        )

    def flush_pending(self) -> None:
        """Writes what `append` collected with one system call; call it before acknowledging.

        Raises:
            LogFailed: nothing that was appended since the last call may be acknowledged. The log is
                as it was then, unless the message says that it is broken.
        """
        self._write_pending()
        failure, self._failed_write = self._failed_write, ""
        if failure:
            raise LogFailed(failure)

    def roll(self) -> None:
        """Begins a new segment; no effect if the active one is empty. Raises `LogFailed`."""
        self._write_pending()
        self._raise_if_failed()
        old = self._segments.active
        if not old.size:
            return
        try:
            old.save_index(self._next_offset)
            save_producers(self.producers, self.directory, self._next_offset)
            interval = self.config.index_interval_bytes
            active = Segment.create(self.directory, self._next_offset, interval)
        except OSError as error:
            raise LogFailed(f"{self.directory}: no new segment can begin: {error}") from error
        self._segments.add(active)
        self._durability.wrote(active, self._next_offset)

    def roll_if_older(self, since_ms: int) -> None:
        """Begins a new segment if the active one has records from before this time."""
        if self._active_since_ms < since_ms:
            self.roll()

    def update_config(self, config: LogConfig) -> None:
        """Settings for everything that is done from now on."""
        self.config = config

    @property
    def _stamps_append_time(self) -> bool:
        return self.config.message_timestamp_type == "LogAppendTime"

    def _note_producer(
        self,
        batch: BatchHeader,
        data: memoryview | bytearray,
        offset: int,
        timestamp: int,
        now_ms: int,
    ) -> None:
        if batch.is_control:
            marker = read_marker(data, batch)
            self.producers.end_transaction(batch, marker, offset=offset, now_ms=now_ms)
        elif batch.producer_id >= 0:
            self.producers.update(batch, first_offset=offset, timestamp=timestamp, now_ms=now_ms)

    def _roll_if_due(self, size: int, now_ms: int) -> None:
        active_bytes = self._segments.active.size + self._pending_bytes
        too_large = active_bytes + size > self.config.segment_bytes
        too_old = now_ms - self._active_since_ms >= self.config.segment_ms
        if active_bytes and (too_large or too_old):
            self.roll()
            active_bytes = 0
        if not active_bytes:
            self._active_since_ms = now_ms

    def _write_pending(self) -> None:
        """Writes; a failure is undone and kept for `flush_pending`, whoever is calling now."""
        if not self._pending:
            return
        active = self._segments.active
        try:
            active.write(self._pending, self._pending_bytes)
        except OSError as error:
            self._undo_appends(error)
        else:
            self._written_offset = self._next_offset
            self._durability.wrote(active, self._written_offset)
        finally:
            self._pending = []
            self._pending_bytes = 0

    def _undo_appends(self, error: OSError) -> None:
        """Brings the log back to what was written before the write that failed."""
        active = self._segments.active
        self._failed_write = f"{active.path}: {error.strerror or error}; nothing was appended"
        self._next_offset = self._written_offset
        try:
            active.truncate(active.size)
            active.forget_index()
            self.producers = self._restored_producers(int(time.time() * 1000))
        except OSError as second:
            self._broken = f"{active.path}: broken until a restart: {error}, then {second}"
            self._failed_write = self._broken

    def _raise_if_failed(self) -> None:
        failure = self.failure or self._failed_write
        if self._closed:
            failure = f"{self.directory}: the log is closed"
        if failure:
            raise LogFailed(failure)

    def _restored_producers(self, now_ms: int) -> ProducerStates:
        producers = restore_producers(
            self.directory, list(self._segments), self._written_offset, now_ms=now_ms
        )
        producers.aborted.forget_below(self._log_start_offset)
        return producers
