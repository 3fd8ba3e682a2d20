"""Durability of a log: syncs in another thread, and the checkpoint that recovery relies on."""

from __future__ import annotations

import os
import threading
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from .durable_files import mark_unsynced, read_sealed, write_sealed
from .results import LogCorrupt, LogFailed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .recovery import Recovered
    from .segment import Segment

    _End: TypeAlias = tuple[Segment, int, int]
    """The active segment, the position in it and the next offset."""


CHECKPOINT_FILE: Final = "checkpoint"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY


class Checkpoint(msgspec.Struct, frozen=True):
    """The state that recovery may rely on.

    Attributes:
        log_start_offset: first offset that may be read.
        recovery_point: offsets below are on disk.
        segment: base offset of the segment that contains the recovery point.
        position: its byte position in that segment.
    """

    log_start_offset: int
    recovery_point: int
    segment: int
    position: int

    def save(self, directory: Path) -> None:
        """Replace the checkpoint of the log in `directory`, durably."""
        write_sealed(directory / CHECKPOINT_FILE, msgspec.json.encode(self), durable=True)

    @classmethod
    def load(cls, directory: Path) -> Checkpoint | None:
        """Return the log's checkpoint; None if it is missing or damaged."""
        try:
            payload = read_sealed(directory / CHECKPOINT_FILE)
            return None if payload is None else msgspec.json.decode(payload, type=cls)
        except (LogCorrupt, msgspec.MsgspecError):
            return None


class Syncs(NamedTuple):
    """Number of syncs, and their duration in seconds."""

    number: int = 0
    seconds: float = 0.0


class Durability:
    """The segments that need a sync, and the checkpoint; `sync` may run in a thread during appends.

    Attributes:
        durable_offset: offsets below have been synced.
        failure: why a sync failed, "" if none did. After a failure the content of the disk is unknown.
        syncs: total of the syncs.
    """

    def __init__(self, directory: Path, recovered: Recovered) -> None:
        active, next_offset = recovered.segments[-1], recovered.next_offset
        self._directory = directory
        # The end of the written bytes: replaced as a whole, so that another thread sees it whole.
        self._end: _End = active, active.size, next_offset
        self._rolled = [each for each in recovered.unsynced if each is not active]
        self._names_changed = True
        self._checkpoint = Checkpoint(
            recovered.log_start_offset, next_offset, active.base_offset, active.size
        )
        self._state = threading.Lock()  # held briefly
        self._syncing = threading.Lock()  # held while the disk works
        self._saving = threading.Lock()
        self._stopped = False
        self.durable_offset = next_offset
        self.failure = ""
        self.syncs = Syncs()

    @property
    def recovery_point(self) -> int:
        """Offsets below are on disk, and the checkpoint file says so."""
        return self._checkpoint.recovery_point

    @property
    def has_rolled(self) -> bool:
        """Whether complete segments wait for a sync."""
        return bool(self._rolled)

    def holds(self, segment: Segment) -> bool:
        """Whether the segment waits for a sync, so that its file must stay open."""
        return segment is self._end[0] or segment in self._rolled

    def wrote(self, segment: Segment, next_offset: int) -> None:
        """Note that the active segment, `segment`, was written up to `next_offset` (exclusive)."""
        end = segment, segment.size, next_offset
        old = self._end[0]
        if segment is old:
            self._end = end
            return
        with self._state:
            self._rolled.append(old)
            self._names_changed = True
            self._end = end

    def forget(self, segment: Segment) -> None:
        """Sync the segment no more, because it is about to be deleted."""
        with self._state:
            if segment in self._rolled:
                self._rolled.remove(segment)

    def sync(self, *, checkpoint: bool = False) -> int:
        """Sync the bytes written before the call; return the new `durable_offset`.

        Args:
            checkpoint: save a checkpoint in any case, not only after a roll.

        Raises:
            LogFailed: the disk failed, now or before. Or the requested checkpoint cannot be saved, or too
                many files are open: then a later call may succeed.
        """
        with self._syncing:
            if self._stopped:
                return self.durable_offset
            self._raise_failure()
            began = monotonic()
            try:
                end, rolled = self._sync_files()
            except OSError as error:
                self.failure = (
                    f"{self._directory}: the disk failed to sync: {error}; restart the broker when it"
                    " works again"
                )
                mark_unsynced(self._directory)
                self._raise_failure()
            finally:
                self.syncs = Syncs(self.syncs.number + 1, self.syncs.seconds + monotonic() - began)
            self.durable_offset = end[2]
            if rolled or checkpoint:
                self._save_recovery_point(end, rolled, needed=checkpoint)
            return self.durable_offset

    def save_log_start(self, log_start_offset: int) -> None:
        """Save the log start in the checkpoint. Raises OSError."""
        self._save(log_start_offset=log_start_offset)

    def stop(self) -> None:
        """Wait for a running sync; later calls of `sync` do nothing."""
        with self._syncing:
            self._stopped = True

    def _sync_files(self) -> tuple[_End, list[Segment]]:
        """Sync the files; return the end of the synced bytes, and the complete segments among them."""
        files: list[int] = []
        try:
            with self._state:
                end, rolled = self._end, list(self._rolled)
                self._open_files((*rolled, end[0]), files)
                self._names_changed = False
            for file in files:
                os.fsync(file)
        finally:
            for file in files:
                os.close(file)
        return end, rolled

    def _open_files(self, segments: Iterable[Segment], files: list[int]) -> None:
        """Open the files to sync, and the directories where names have changed.

        The descriptors are our own: the segments may be closed during the sync.
        """
        try:
            for segment in segments:
                files.append(os.dup(segment.descriptor))  # noqa: PERF401  those before a failure count
            if self._names_changed:
                files.append(os.open(self._directory, _DIRECTORY))
                files.append(os.open(self._directory.parent, _DIRECTORY))
        except OSError as error:  # too many open files; the disk has not failed
            raise LogFailed(
                f"{self._directory}: it cannot be opened for a sync: {error}"
            ) from error

    def _save_recovery_point(self, end: _End, rolled: list[Segment], *, needed: bool) -> None:
        segment, position, next_offset = end
        try:
            self._save(recovery_point=next_offset, segment=segment.base_offset, position=position)
        except OSError as error:
            if needed:
                message = f"{self._directory}: the checkpoint cannot be saved: {error}"
                raise LogFailed(message) from error
            return  # The records are on disk. The next sync tries again; until then a recovery scans more.
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
