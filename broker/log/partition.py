"""The log of one partition: segments of record batches that are appended, read, deleted and recovered.

`PartitionLog` is the API, and deletes records: by request, by age and size, and by compaction. `Segments`
owns the files and reads them, `Appender` owns the log's end, and `Durability` the syncs and the checkpoint.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from .appender import Appender
from .durability import Durability
from .durable_files import DELETED, UNSYNCED_FILE
from .records import first_batches, parse_header
from .recovery import recover
from .results import LogCorrupt, LogFailed, OffsetNotInLog, ReadResult, ReadSpan, SegmentGone
from .segments import Segments
from .swap import commit_swap, discard_swap, finish_swap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .compaction import Rewritten
    from .disk_work import DiskWork
    from .durability import Syncs
    from .log_config import LogConfig
    from .producers import ProducerStates
    from .records import BatchHeader
    from .recovery import Recovered
    from .results import Appended
    from .segment import Segment


_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DeletedSegment:
    """A segment that retention deleted: offsets `base_offset` to `next_offset` (exclusive)."""

    base_offset: int
    next_offset: int
    size_bytes: int


class Cleanings(NamedTuple):
    """How often a log was made smaller since it was opened, and the bytes that this freed."""

    number: int = 0
    freed_bytes: int = 0

    def and_one(self, freed_bytes: int) -> Cleanings:
        """Return the sum with one more cleaning."""
        return Cleanings(self.number + 1, self.freed_bytes + freed_bytes)


class PartitionLog:
    """The log of one partition; made by `open`.

    Offsets are contiguous from `log_start_offset` (inclusive) to `next_offset` (exclusive). Call all
    methods in one thread, the event loop's, except `fsync` and `checkpoint`. `truncation`, `retention` and
    `replacement` return work for `do_in_thread` or `do_now`: one at a time, not during `close` and `delete`.

    Attributes:
        directory: the directory of its files.
        config: its settings; see `update_config`.
        append_plain: see `Appender.append_plain`.
        recovery: what `open` found and did.
        retained: total of `retention` since the log was opened.
        compacted: total of `replacement` since the log was opened.
    """

    def __init__(self, directory: Path, config: LogConfig, recovered: Recovered) -> None:
        self.directory = directory
        self.config = config
        self.recovery = recovered.report
        self._durability = Durability(directory, recovered)
        self._segments = Segments(directory, recovered, must_stay_open=self._durability.holds)
        self._removed: list[Segment] = []  # their files are not deleted yet
        self._appender = Appender(self._segments, self._durability, config, recovered.next_offset)
        self.append_plain = self._appender.append_plain
        self.retained = Cleanings()
        self.compacted = Cleanings()

    @classmethod
    def open(cls, directory: Path, config: LogConfig, *, clean: bool) -> PartitionLog:
        """Open or create the log in `directory`, and recover it.

        Recovery does not scan a log that was closed.

        Args:
            directory: one directory per partition; created if missing.
            config: see `LogConfig`.
            clean: False checks all of the newest segment, including batches that were on disk before the
                crash; damage there is reported, not cut off.

        Raises:
            LogFailed: the disk failed to sync the recovered files.
            OSError: the directory cannot be read or written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        recovered = recover(
            directory, index_interval_bytes=config.index_interval_bytes, clean=clean
        )
        log = cls(directory, config, recovered)
        report = recovered.report
        if recovered.unsynced or report.lost_data or report.lost_checkpoint:
            try:
                log.checkpoint()
            except LogFailed:
                log._segments.release()
                raise
        (directory / UNSYNCED_FILE).unlink(missing_ok=True)
        return log

    # -- state -------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self._segments.log_start_offset

    @property
    def next_offset(self) -> int:
        """Offset of the next record: the log end offset."""
        return self._appender.next_offset

    @property
    def last_stable_offset(self) -> int:
        """Offsets below belong to no open transaction; the log end without transactions."""
        appender = self._appender
        first_open = appender.producers.first_open_offset
        if first_open is None:
            return appender.next_offset
        return max(first_open, self._segments.log_start_offset)

    @property
    def producers(self) -> ProducerStates:
        """The idempotent producers, and their transactions."""
        return self._appender.producers

    @property
    def failure(self) -> str:
        """Why nothing can be appended until the log is opened again, "" while it can."""
        return self._appender.failure

    @property
    def segment_count(self) -> int:
        """Number of segment files."""
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return self._segments.size_bytes + self._appender.pending_bytes

    def segments(self) -> Iterator[Segment]:
        """Yield the segments, oldest first; the last one is active and has no end."""
        return iter(self._segments)

    def update_config(self, config: LogConfig) -> None:
        """Use these settings from now on."""
        self.config = config
        self._appender.configure(config)

    # -- append ------------------------------------------------------------------------------------

    def append(
        self, data: memoryview | bytearray, batches: Sequence[BatchHeader], *, now_ms: int
    ) -> Appended:
        """Append checked batches, all or none, and assign their offsets.

        `data` is patched in place and kept by reference until `flush_pending`: the caller must not change
        it before. Reads see the batches at once. They survive a kill of this process after
        `flush_pending`, and a power loss once `durable_offset` has passed them.

        Args:
            data: the batches, without any other bytes.
            batches: the result of `split_batches(data)`; only one if it has a producer id.
            now_ms: milliseconds since the epoch, for LogAppendTime, rolling and idle producers.

        Raises:
            ProducerError: sequence, epoch or transaction are wrong; nothing was appended.
            InvalidBatch: several batches with a producer id in one append.
            LogFailed: the disk failed, now or since the last `flush_pending`.
        """
        return self._appender.append(data, batches, now_ms=now_ms)

    def flush_pending(self) -> None:
        """Write the appended batches with one system call; call it before acknowledging them.

        Raises:
            LogFailed: nothing that was appended since the last call may be acknowledged. The log is as
                it was then, unless the message says that it is broken.
        """
        self._appender.flush_pending()

    def roll(self) -> None:
        """Begin a new segment; no effect if the active one is empty. Raises `LogFailed`."""
        self._appender.roll()

    def roll_if_older(self, since_ms: int) -> None:
        """Begin a new segment if the active one has records from before this time."""
        self._appender.roll_if_older(since_ms)

    # -- read --------------------------------------------------------------------------------------

    def read_into(self, offset: int, buffer: memoryview, limit: int | None = None) -> ReadSpan:
        """Fill `buffer` with whole batches, beginning with the one that contains `offset`.

        It may stop early, at the end of a segment, and stops at the offset `limit`, at which a batch ends. It
        skips leading batches without records, which compaction leaves, when nothing else would be read.

        Raises:
            OffsetNotInLog: `offset` is neither in the log nor its end.
            LogCorrupt: the batch is damaged; the message names file and position.
        """
        appender, segments = self._appender, self._segments
        appender.write_pending()
        end_offset = appender.next_offset
        if limit is None or limit > end_offset:
            limit = end_offset
        if segments.log_start_offset <= offset < limit:
            active = segments.active
            recent = appender.recent.find(offset, limit, len(buffer), active.size)
            if recent is not None:
                position, end, first_offset, next_offset = recent
                active.fill(buffer[: end - position], position)
                return ReadSpan(end - position, first_offset, next_offset)
        span = segments.read_into(offset, end_offset, buffer)
        if span.next_offset <= limit:
            return span
        size, next_offset = first_batches(
            buffer[: span.size], lambda each: each.next_offset <= limit
        )
        if not size and limit == end_offset:
            reason = f"the batch with offset {offset} ends behind the end of the log, {limit}"
            raise LogCorrupt(self.directory, 0, reason)
        return ReadSpan(size, span.first_offset, next_offset or offset)

    def are_few(self, offset: int, limit: int, most_bytes: int) -> bool:
        """Whether the batches from `offset` to `limit` are new and have up to `most_bytes`."""
        size = self._segments.active.size
        found = self._appender.recent.find(offset, limit, most_bytes, size)
        return found is not None and found[3] == limit

    def read(self, offset: int, max_bytes: int, *, min_one: bool) -> ReadResult:
        """Read like `read_into`, into new memory.

        `min_one`: return at least one whole batch, even if it is larger than `max_bytes`.
        """
        buffer = memoryview(bytearray(min(max_bytes, self.size_bytes)))
        span = self.read_into(offset, buffer)
        if min_one and span.needed_bytes > len(buffer):
            buffer = memoryview(bytearray(span.needed_bytes))
            span = self.read_into(offset, buffer)
        return ReadResult(buffer[: span.size], span.first_offset, span.next_offset)

    def batches(self, start: int = 0) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the header of each batch from `start`, and the data that its position refers to.

        The first batch may begin before `start`. Raises `LogCorrupt`, OSError.
        """
        at = max(start, self.log_start_offset)
        while at < self.next_offset:
            span = self.read(at, _READ_BYTES, min_one=True)
            position = 0
            while position < len(span.data):
                header = parse_header(span.data, position)
                yield header, span.data
                position = header.end
            at = span.next_offset

    def search(self, timestamp_ms: int | None = None) -> DiskWork[tuple[int, int] | None]:
        """Find `(offset, timestamp)` of the first record with this timestamp or a later one, in steps.

        Without a timestamp: of the first record with the latest one. None if there is none. Exact to the
        record. It begins again if retention or compaction takes a segment away between two steps. Raises
        `LogCorrupt`, OSError.
        """
        while True:
            self._appender.write_pending()
            most_bytes = self.config.max_uncompressed_bytes
            try:
                wanted_ms = timestamp_ms
                if wanted_ms is None:
                    wanted_ms = yield from self._segments.finding_latest(most_bytes)
                    if wanted_ms < 0:
                        return None
                return (yield from self._segments.search(wanted_ms, most_bytes))
            except SegmentGone:
                continue

    # -- sync --------------------------------------------------------------------------------------

    @property
    def recovery_point(self) -> int:
        """Offsets below are on disk, and the checkpoint file says so."""
        return self._durability.recovery_point

    @property
    def durable_offset(self) -> int:
        """Offsets below have been synced to disk; acks under fsync "always" wait for this."""
        return self._durability.durable_offset

    @property
    def dirty(self) -> bool:
        """Whether there are appended batches that `fsync` has not yet made durable."""
        return self._durability.durable_offset < self._appender.next_offset

    @property
    def fsync_due(self) -> bool:
        """Whether a periodic task should call `fsync` now, by the policy.

        Under "os" only complete segments are synced, so that recovery after a crash stays short.
        """
        if self.config.fsync == "os":
            return self._durability.has_rolled
        return self.dirty

    @property
    def syncs(self) -> Syncs:
        """Number and duration of the syncs since the log was opened."""
        return self._durability.syncs

    def fsync(self) -> int:
        """Sync the batches flushed before the call; return the new `durable_offset`.

        May run in another thread while this one appends.

        Raises:
            LogFailed: the disk failed; every later append fails too, until the log is opened again.
        """
        return self._durability.sync()

    def checkpoint(self) -> None:
        """Sync, and save a checkpoint: recovery then relies on no position in a closed segment.

        May run in another thread while this one appends. Raises `LogFailed`.
        """
        self._durability.sync(checkpoint=True)

    # -- delete ------------------------------------------------------------------------------------

    def truncation(self, offset: int) -> DiskWork[None]:
        """Delete the records below `offset` for good (DeleteRecords).

        No effect at or below the log start.

        Raises:
            OffsetNotInLog: `offset` is beyond the log end.
            LogFailed: the disk failed.
        """
        yield from self._deleting_files()
        self._appender.write_pending()
        self._appender.check_writable()
        start, end = self._segments.log_start_offset, self._appender.next_offset
        if offset > end:
            raise OffsetNotInLog(offset, start, end)
        if offset <= start:
            return
        if offset == end:
            self._appender.roll()
        if not (yield from self._saving_log_start(offset)):
            yield from self._deleting_below(offset)  # makes room on a full disk
            try:
                yield partial(self._durability.save_log_start, offset)
            except OSError as error:
                message = f"{self.directory}: the checkpoint cannot be saved: {error}"
                raise LogFailed(message) from error
        self._move_log_start(offset)
        yield from self._deleting_below(offset)

    def retention(self, now_ms: int) -> DiskWork[list[DeletedSegment]]:
        """Delete whole segments, oldest first, by age and bytes; forget idle producers.

        The active segment is rolled if all of it is too old. Raises `LogFailed`, OSError.
        """
        yield from self._deleting_files()
        self._appender.write_pending()
        expiry_ms = self.config.producer_id_expiration_ms
        self._appender.producers.expire(now_ms, expiry_ms=expiry_ms)
        count = self._count_expired(now_ms) if self.config.deletes else 0
        if not count:
            return []
        if count == len(self._segments):
            self._appender.roll()
        deleted = yield from self._deleting_segments(count)
        self.retained = self.retained.and_one(sum(each.size_bytes for each in deleted))
        return deleted

    def replacement(self, rewritten: Rewritten) -> DiskWork[bool]:
        """Replace segments by their compacted form; return False if retention has deleted one of them.

        Call `checkpoint` after they were closed and before this. Raises `LogFailed`, OSError.
        """
        group, directory = rewritten.group, self.directory
        base_offset, end_offset = group[0].base_offset, group[-1].end_offset
        paths = {each.path for each in group}
        old = [each for each in self._segments if each.path in paths]
        if self._appender.closed or len(old) < len(group):
            yield partial(discard_swap, directory, base_offset)
            return False
        yield partial(commit_swap, directory, base_offset, end_offset)
        for segment in old:
            self._durability.forget(segment)
        try:
            new = self._segments.swap(old, rewritten, self.config.index_interval_bytes)
            yield partial(finish_swap, directory, base_offset, end_offset)
            self._segments.finish_swap(new)
        except OSError as error:
            self._appender.broken = f"{directory}: broken until a restart: {error}"
            raise LogFailed(self._appender.broken) from error
        self.compacted = self.compacted.and_one(sum(each.size for each in old) - rewritten.size)
        return True

    def has_deleted(self, offset: int) -> bool:
        """Whether the segment that began with `offset` was deleted by retention or by request."""
        return offset < self._segments.oldest.base_offset

    def _count_expired(self, now_ms: int) -> int:
        """Count the oldest segments that are too old or not needed to keep `retention_bytes`."""
        keep_ms, keep_bytes = self.config.retention_ms, self.config.retention_bytes
        count, size = 0, self._segments.size_bytes
        for segment in self._segments:
            size -= segment.size
            too_much = 0 <= keep_bytes <= size and segment is not self._segments.active
            too_old = keep_ms >= 0 < segment.size and segment.newest_ms() < now_ms - keep_ms
            if not too_much and not too_old:
                break
            count += 1
        return count

    def _deleting_segments(self, count: int) -> DiskWork[list[DeletedSegment]]:
        """Delete the oldest segments.

        Save the new log start first: recovery would otherwise report the missing segments as damage. If
        the disk is full, save it afterwards, when there is room.
        """
        start = next(islice(self._segments, count, None)).base_offset
        start = max(start, self._segments.log_start_offset)
        saved = yield from self._saving_log_start(start)
        deleted: list[DeletedSegment] = []
        while len(deleted) < count:
            deleted += [(yield from self._deleting_oldest())]
        if not saved:
            yield from self._saving_log_start(start)
        return deleted

    def _deleting_below(self, offset: int) -> DiskWork[None]:
        while (end := self._segments.oldest.end_offset) is not None and end <= offset:
            yield from self._deleting_oldest()

    def _deleting_oldest(self) -> DiskWork[DeletedSegment]:
        self._durability.forget(self._segments.oldest)
        segment = self._segments.remove_oldest()
        start = self._segments.oldest.base_offset
        self._move_log_start(max(self._segments.log_start_offset, start))
        self._removed.append(segment)
        yield from self._deleting_files()
        return DeletedSegment(segment.base_offset, start, segment.size)

    def _deleting_files(self) -> DiskWork[None]:
        """Delete the files of removed segments, also of those that could not be deleted before."""
        for segment in tuple(self._removed):
            yield segment.delete
            if segment in self._removed:
                self._removed.remove(segment)

    def _move_log_start(self, offset: int) -> None:
        self._segments.log_start_offset = offset
        self._appender.producers.aborted.forget_below(offset)

    def _saving_log_start(self, offset: int) -> DiskWork[bool]:
        try:
            yield partial(self._durability.save_log_start, offset)
        except OSError:
            return False
        return True

    # -- close -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, sync, and save a checkpoint, so that opening needs no scan. Idempotent.

        Raises:
            LogFailed: the disk failed; the files are closed all the same.
        """
        if self._appender.closed:
            return
        try:
            self._appender.close()
        finally:
            self._release()

    def delete(self) -> None:
        """Remove the log with its directory, without flushing. Raises OSError."""
        self._appender.discard()
        self._release()
        # After a crash, the suffix shows that this directory is no log.
        doomed = self.directory.with_name(f"{self.directory.name}.{time.time_ns()}{DELETED}")
        self.directory.rename(doomed)
        shutil.rmtree(doomed)

    def _release(self) -> None:
        self._durability.stop()
        self._segments.release()
