"""The log of one partition: segments of record batches, appended, read, expired and recovered.

Everything but `fsync` is called from one thread, the event loop's.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from broker.log.errors import LogFailed
from broker.log.files import DELETED, UNSYNCED_FILE
from broker.log.recovery import recover
from broker.log.results import Appended, DeletedSegment, ReadResult, RecoveryReport, Span
from broker.log.shrinking import ShrinkingLog
from broker.log.snapshots import save_producers

if TYPE_CHECKING:
    from pathlib import Path

    from broker.log.config import LogConfig
    from broker.log.durability import Syncs

__all__ = [
    "Appended",
    "DeletedSegment",
    "PartitionLog",
    "ReadResult",
    "RecoveryReport",
    "Span",
]


class PartitionLog(ShrinkingLog):
    """The log of one partition; made by `open`.

    Offsets are contiguous from `log_start_offset` (inclusive) to `next_offset` (exclusive). How it
    grows, is read and shrinks is in the classes that it is made of, one on top of the other; here it is
    opened, synced and closed.
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
        report = recovered.report
        if recovered.unsynced or report.lost_data or report.lost_checkpoint:
            try:
                log._durability.sync(checkpoint=True)
            except LogFailed:
                log._segments.release()
                raise
        (directory / UNSYNCED_FILE).unlink(missing_ok=True)
        return log

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
    def syncs(self) -> Syncs:
        """How often the files were synced since the log is open."""
        return self._durability.syncs

    def fsync(self) -> int:
        """Syncs what was flushed before the call; returns the new `durable_offset`.

        May run in another thread while this one appends.

        Raises:
            LogFailed: the disk failed; every later append fails too, until the log is opened again.
        """
        return self._durability.sync()

    def checkpoint(self) -> None:
        """Like `fsync`; afterwards recovery relies on no position in a closed segment.

        May run in another thread while this one appends. Raises `LogFailed`.
        """
        self._durability.sync(checkpoint=True)

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
