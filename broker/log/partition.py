"""The log of one partition: segments of record batches, appended, read, expired and recovered.

Everything but `fsync` is called from one thread, the event loop's.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from broker.log.compaction_swap import commit_swap, discard_swap
from broker.log.durability import Durability
from broker.log.errors import LogFailed, OffsetOutOfRange
from broker.log.files import DELETED
from broker.log.recovery import recover
from broker.log.results import Appended, DeletedSegment, ReadResult, RecoveryReport, Span
from broker.log.segment import Segment
from broker.log.segments import Segments
from broker.log.snapshots import restore_producers, save_producers
from broker.producers.markers import read_marker
from broker.records import InvalidBatch, stamp_append_time, stamp_offset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from broker.log.compaction import Rewritten
    from broker.log.config import LogConfig
    from broker.log.recovery import Recovered
    from broker.producers.states import ProducerStates
    from broker.records import BatchHeader

__all__ = [
    "Appended",
    "DeletedSegment",
    "PartitionLog",
    "ReadResult",
    "RecoveryReport",
    "Span",
]


class PartitionLog:
    """The log of one partition; made by `open`.

    Offsets are contiguous from `log_start_offset` (inclusive) to `next_offset` (exclusive).

    Attributes:
        directory: where its files are.
        config: its settings; see `update_config`.
        recovery: what `open` found and did.
        producers: what is known of its idempotent producers.
    """

    @classmethod
    def open(cls, directory: Path, config: LogConfig, *, clean: bool) -> PartitionLog:
        """Opens or creates the log in `directory`, and recovers it.

        A log that was closed knows that by itself and is not scanned.

        Args:
            directory: one directory per partition; created if missing.
            config: see `LogConfig`; may change later by `update_config`.
            clean: False checks all of the newest segment, also what was on disk before the crash;
                damage there is reported, not cut off.

        Raises:
            LogFailed: the disk failed to sync what was recovered.
            OSError: the directory cannot be read or written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        recovered = recover(
            directory, index_interval_bytes=config.index_interval_bytes, clean=clean
        )
        log = cls(directory, config, recovered)
        if recovered.unsynced or recovered.report.lost_data:
            log._durability.sync(checkpoint=True)
        return log

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
    def recovery_point(self) -> int:
        """Everything below is on disk, and the checkpoint file says so."""
        return self._durability.recovery_point

    @property
    def durable_offset(self) -> int:
        """Everything below has been synced to disk; acks under fsync "always" wait for this."""
        return self._durability.durable_offset

    @property
    def dirty(self) -> bool:
        """Whether there are appended batches that `fsync` has not yet made durable."""
        return self._durability.durable_offset < self._next_offset

    @property
    def fsync_due(self) -> bool:
        """Whether a periodic task should call `fsync` now, by the policy.

        Under "os" only complete segments are synced, so that recovery after a crash stays short.
        """
        if self.config.fsync == "os":
            return self._durability.has_rolled
        return self.dirty

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

    def read_into(self, offset: int, buffer: memoryview) -> Span:
        """Fills `buffer` with whole batches from the one that contains `offset` on.

        May stop early, at the end of a segment.

        Raises:
            OffsetOutOfRange: `offset` is not in the log, and is not its end either.
            LogCorrupt: the batch is damaged; the message names file and position.
        """
        self._write_pending()
        if not self._log_start_offset <= offset <= self._next_offset:
            raise OffsetOutOfRange(offset, self._log_start_offset, self._next_offset)
        if offset == self._next_offset:
            return Span(0, offset, offset)
        active = self._segments.active
        segment = active if offset >= active.base_offset else self._segments.containing(offset)
        return segment.read_into(offset, buffer)

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

    def truncate_start(self, offset: int) -> None:
        """Deletes the records below `offset` for good (DeleteRecords).

        No effect at or below the log start.

        Raises:
            OffsetOutOfRange: `offset` is beyond the log end.
            LogFailed: the disk failed.
        """
        self._write_pending()
        self._raise_if_failed()
        if offset > self._next_offset:
            raise OffsetOutOfRange(offset, self._log_start_offset, self._next_offset)
        if offset <= self._log_start_offset:
            return
        if offset == self._next_offset:
            self.roll()
        try:
            self._durability.save_log_start(offset)
        except OSError as error:
            raise LogFailed(f"{self.directory}: the checkpoint cannot be saved: {error}") from error
        self._log_start_offset = offset
        self.producers.aborted.forget_below(offset)
        while len(self._segments) > 1 and self._segments.end_of_oldest() <= offset:
            self._delete_oldest()

    def apply_retention(self, now_ms: int) -> list[DeletedSegment]:
        """Deletes whole segments, oldest first, by age and bytes, and forgets idle producers.

        The active segment is rolled if all of it is too old. Raises `LogFailed`, OSError.
        """
        self._write_pending()
        self.producers.expire(now_ms, expiry_ms=self.config.producer_id_expiration_ms)
        deleted: list[DeletedSegment] = []
        keep_ms, keep_bytes = self.config.retention_ms, self.config.retention_bytes
        if not self.config.deletes:
            keep_ms = keep_bytes = -1
        while keep_ms >= 0 and self._segments.oldest.size:
            if self._segments.oldest.newest_ms() >= now_ms - keep_ms:
                break
            if len(self._segments) == 1:
                self.roll()
            deleted.append(self._delete_oldest())
        while keep_bytes >= 0 and len(self._segments) > 1:
            if self.size_bytes - self._segments.oldest.size < keep_bytes:
                break
            deleted.append(self._delete_oldest())
        return deleted

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

    def segments(self) -> Iterator[Segment]:
        """All of them, oldest first; the active one, without an end, is the last."""
        return iter(self._segments)

    def checkpoint(self) -> None:
        """Like `fsync`; afterwards recovery relies on no position in a closed segment.

        May run in another thread while this one appends. Raises `LogFailed`.
        """
        self._durability.sync(checkpoint=True)

    def put_in_place(self, rewritten: Rewritten) -> bool:
        """Replaces segments by their compacted form; False if they are no longer all there.

        There must have been a `checkpoint` since they were closed. Raises `LogFailed`, OSError.
        """
        group = rewritten.group
        paths = {each.path for each in group}
        old = [each for each in self._segments if each.path in paths]
        if self._closed or len(old) < len(group):
            discard_swap(self.directory, group[0].base_offset)
            return False
        commit_swap(self.directory, group[0].base_offset, group[-1].end_offset)
        for segment in old:
            self._durability.forget(segment)
        try:
            self._segments.swap(old, rewritten, self.config.index_interval_bytes)
        except OSError as error:
            self._broken = f"{self.directory}: broken until a restart: {error}"
            raise LogFailed(self._broken) from error
        return True

    def roll_if_older(self, since_ms: int) -> None:
        """Begins a new segment if the active one has records from before this time."""
        if self._active_since_ms < since_ms:
            self.roll()

    def update_config(self, config: LogConfig) -> None:
        """Settings for everything that is done from now on."""
        self.config = config

    def fsync(self) -> int:
        """Syncs what was flushed before the call; returns the new `durable_offset`.

        May run in another thread while this one appends.

        Raises:
            LogFailed: the disk failed; every later append fails too, until the log is opened again.
        """
        return self._durability.sync()

    def close(self) -> None:
        """Flushes, syncs, and saves a checkpoint, so that opening needs no scan. Twice is fine.

        Raises:
            LogFailed: the disk failed; the files are closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._write_pending()
            if not self._broken:
                self._durability.sync(checkpoint=True)
                self._segments.active.save_index(self._written_offset)
                save_producers(self.producers, self.directory, self._written_offset)
        except OSError as error:
            raise LogFailed(f"{self.directory}: {error}") from error
        finally:
            self._durability.stop()
            self._segments.release()
        if self._failed_write or self._broken:
            raise LogFailed(self._failed_write or self._broken)

    def delete(self) -> None:
        """Removes the log with its directory, without flushing. Raises OSError."""
        self._closed = True
        self._pending.clear()
        self._durability.stop()
        self._segments.release()
        # A crash in between leaves a directory that nobody takes for a log.
        doomed = self.directory.with_name(f"{self.directory.name}.{time.time_ns()}{DELETED}")
        self.directory.rename(doomed)
        shutil.rmtree(doomed)

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
        failure = self._broken or self._durability.failure or self._failed_write
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

    def _delete_oldest(self) -> DeletedSegment:
        segment = self._segments.remove_oldest()
        self._durability.forget(segment)
        segment.delete()
        start = self._segments.oldest.base_offset
        self._log_start_offset = max(self._log_start_offset, start)
        self.producers.aborted.forget_below(self._log_start_offset)
        return DeletedSegment(segment.base_offset, start, segment.size)
