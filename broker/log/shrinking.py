"""A log whose records go: by request, by retention, by compaction."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from broker.log.compaction_swap import commit_swap, discard_swap
from broker.log.errors import LogFailed, OffsetOutOfRange
from broker.log.reading import ReadableLog
from broker.log.results import Cleanings, DeletedSegment

if TYPE_CHECKING:
    from broker.log.compaction import Rewritten

__all__ = ["ShrinkingLog"]


class ShrinkingLog(ReadableLog):
    """The part of `PartitionLog` that deletes: whole segments, and what a compaction left out.

    Attributes:
        retained: what `apply_retention` did.
        compacted: what compactions did.
    """

    retained = Cleanings()
    compacted = Cleanings()

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
        if not self._note_log_start(offset):
            self._delete_below(offset)  # which makes room on a full disk
            try:
                self._durability.save_log_start(offset)
            except OSError as error:
                message = f"{self.directory}: the checkpoint cannot be saved: {error}"
                raise LogFailed(message) from error
        self._log_start_offset = offset
        self.producers.aborted.forget_below(offset)
        self._delete_below(offset)

    def apply_retention(self, now_ms: int) -> list[DeletedSegment]:
        """Deletes whole segments, oldest first, by age and bytes, and forgets idle producers.

        The active segment is rolled if all of it is too old. Raises `LogFailed`, OSError.
        """
        self._write_pending()
        self.producers.expire(now_ms, expiry_ms=self.config.producer_id_expiration_ms)
        count = self._count_expired(now_ms) if self.config.deletes else 0
        if not count:
            return []
        if count == len(self._segments):
            self.roll()
        deleted = self._delete_segments(count)
        self.retained = self.retained.and_one(sum(each.size_bytes for each in deleted))
        return deleted

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
        self.compacted = self.compacted.and_one(sum(each.size for each in old) - rewritten.size)
        return True

    def _count_expired(self, now_ms: int) -> int:
        """How many of the oldest segments are too old, or too much beside those after them."""
        keep_ms, keep_bytes = self.config.retention_ms, self.config.retention_bytes
        count, size = 0, self.size_bytes
        for segment in self._segments:
            size -= segment.size
            too_much = 0 <= keep_bytes <= size and segment is not self._segments.active
            too_old = keep_ms >= 0 < segment.size and segment.newest_ms() < now_ms - keep_ms
            if not too_much and not too_old:
                break
            count += 1
        return count

    def _delete_segments(self, count: int) -> list[DeletedSegment]:
        """Deletes the oldest, whose loss would otherwise be taken for damage: so it is noted before.

        On a full disk it is noted afterwards, when there is room.
        """
        start = next(islice(self._segments, count, None)).base_offset
        start = max(start, self._log_start_offset)
        noted = self._note_log_start(start)
        deleted = [self._delete_oldest() for _ in range(count)]
        if not noted:
            self._note_log_start(start)
        return deleted

    def _delete_below(self, offset: int) -> None:
        while len(self._segments) > 1 and self._segments.end_of_oldest() <= offset:
            self._delete_oldest()

    def _note_log_start(self, offset: int) -> bool:
        try:
            self._durability.save_log_start(offset)
        except OSError:
            return False
        return True

    def _delete_oldest(self) -> DeletedSegment:
        segment = self._segments.remove_oldest()
        self._durability.forget(segment)
        segment.delete()
        start = self._segments.oldest.base_offset
        self._log_start_offset = max(self._log_start_offset, start)
        self.producers.aborted.forget_below(self._log_start_offset)
        return DeletedSegment(segment.base_offset, start, segment.size)
