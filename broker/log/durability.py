"""What of a log is on disk: syncs in another thread, and the checkpoint that recovery relies on."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from broker.log.checkpoint import Checkpoint
from broker.log.errors import LogFailed
from broker.log.files import mark_unsynced, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from broker.log.segment import Segment

__all__ = ["Durability", "Syncs"]


class _End(NamedTuple):
    """The end of what was written: replaced as a whole, so that another thread sees it whole."""

    segment: Segment
    position: int
    next_offset: int


class Syncs(NamedTuple):
    """How often the disk was asked to sync, and how many seconds it took in all."""

    number: int = 0
    seconds: float = 0.0


class Durability:
    """Knows which segments have to be synced; `sync` may run in a thread while others are written.

    Attributes:
        durable_offset: everything below has been synced.
        failure: why a sync failed, "" if none did. After a failure nobody knows what is on disk.
        syncs: how many there were.
    """

    def __init__(
        self,
        directory: Path,
        *,
        log_start_offset: int,
        active: Segment,
        next_offset: int,
        unsynced: Iterable[Segment],
    ) -> None:
        self._directory = directory
        self._end = _End(active, active.size, next_offset)
        self._rolled = [segment for segment in unsynced if segment is not active]
        self._names_changed = True
        self._checkpoint = Checkpoint(
            log_start_offset, next_offset, active.base_offset, active.size
        )
        self._state = threading.Lock()  # held for moments
        self._syncing = threading.Lock()  # held while the disk works
        self._saving = threading.Lock()
        self._stopped = False
        self.durable_offset = next_offset
        self.failure = ""
        self.syncs = Syncs()

    @property
    def recovery_point(self) -> int:
        """Everything below is on disk, and the checkpoint file says so."""
        return self._checkpoint.recovery_point

    @property
    def has_rolled(self) -> bool:
        """Whether complete segments wait for a sync."""
        return bool(self._rolled)

    def holds(self, segment: Segment) -> bool:
        """Whether the segment waits for a sync; then it must stay open."""
        return segment is self._end.segment or segment in self._rolled

    def wrote(self, segment: Segment, next_offset: int) -> None:
        """`segment` is the active one and has been written up to `next_offset` (exclusive)."""
        with self._state:
            if segment is not self._end.segment:
                self._rolled.append(self._end.segment)
                self._names_changed = True
            self._end = _End(segment, segment.size, next_offset)

    def forget(self, segment: Segment) -> None:
        """The segment is about to be deleted."""
        with self._state:
            if segment in self._rolled:
                self._rolled.remove(segment)

    def sync(self, *, checkpoint: bool = False) -> int:
        """Syncs what was written before the call; returns the new `durable_offset`.

        Args:
            checkpoint: whether to save a checkpoint in any case, not only after a roll.

        Raises:
            LogFailed: the disk failed, now or before; or the checkpoint that was asked for cannot be
                saved, or there are too many open files, then a later call may succeed.
        """
        with self._syncing:
            if self._stopped:
                return self.durable_offset
            self._raise_failure()
            began = monotonic()
            try:
                end, rolled = self._sync_files()
            except OSError as error:
                self.failure = f"{self._directory}: the disk failed to sync: {error}"
                mark_unsynced(self._directory)
                self._raise_failure()
            finally:
                self.syncs = Syncs(self.syncs.number + 1, self.syncs.seconds + monotonic() - began)
            self.durable_offset = end.next_offset
            if rolled or checkpoint:
                self._save_recovery_point(end, rolled, needed=checkpoint)
            return end.next_offset

    def save_log_start(self, log_start_offset: int) -> None:
        """Remembers durably where the log starts. Raises OSError."""
        self._save(log_start_offset=log_start_offset)

    def stop(self) -> None:
        """Waits for a sync that is running; later ones do nothing."""
        with self._syncing:
            self._stopped = True

    def _sync_files(self) -> tuple[_End, list[Segment]]:
        """Syncs what was written before; returns up to where, and the complete segments in it."""
        with ExitStack() as stack:
            with self._state:
                end, rolled, names_changed = self._end, list(self._rolled), self._names_changed
                files = [self._duplicate(segment, stack) for segment in (*rolled, end.segment)]
                self._names_changed = False
            for file in files:
                os.fsync(file)
            if names_changed:
                sync_directory(self._directory)
                sync_directory(self._directory.parent)
        return end, rolled

    def _duplicate(self, segment: Segment, stack: ExitStack) -> int:
        """A descriptor that stays valid when the segment is closed meanwhile."""
        try:
            file = os.dup(segment.descriptor)
        except OSError as error:  # too many are open: nothing is wrong with the disk
            raise LogFailed(f"{segment.path}: it cannot be opened for a sync: {error}") from error
        stack.callback(os.close, file)
        return file

    def _save_recovery_point(self, end: _End, rolled: list[Segment], *, needed: bool) -> None:
        try:
            self._save(
                recovery_point=end.next_offset,
                segment=end.segment.base_offset,
                position=end.position,
            )
        except OSError as error:
            if needed:
                message = f"{self._directory}: the checkpoint cannot be saved: {error}"
                raise LogFailed(message) from error
            return  # The records are on disk. The next sync tries again; a recovery scans more until then.
        with self._state:
            self._rolled = [segment for segment in self._rolled if segment not in rolled]

    def _save(self, **changes: int) -> None:
        with self._saving:
            checkpoint = msgspec.structs.replace(self._checkpoint, **changes)
            checkpoint.save(self._directory)
            self._checkpoint = checkpoint

    def _raise_failure(self) -> None:
        if self.failure:
            raise LogFailed(self.failure)
