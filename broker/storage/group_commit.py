"""Write, sync and acknowledge appends in groups (group commit).

Each log collects the appends of one turn of the event loop; at the turn's end one system call per
partition writes them. Under fsync "always" a thread then syncs them, and one sync serves all that was
written while the previous one ran. Only then are the records visible to consumers and acknowledged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from ..log.results import LogFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    from ..topics.topic import Partition


logger = structlog.get_logger(__name__)

SYNC_THREADS: Final = 4
"""Threads that sync logs: several syncs at once cost a disk hardly more than one."""


_MANY_APPENDS: Final = 8


@dataclass(slots=True, eq=False)
class Flush:
    """The appends of one event-loop turn, acknowledged together.

    Calls: `write` when the turn ends; `fail` for each partition whose write or sync failed; `finish` once: it
    advances high watermarks and runs callbacks. `then` at any time.

    Attributes:
        sizes: the partitions that were appended to, with the bytes.
        appends: how many there were.
        done: whether `finish` was called.
        failed: the partitions whose records must not be acknowledged, and why.
    """

    sizes: dict[Partition, int] = field(default_factory=dict)
    appends: int = 0
    done: bool = False
    failed: dict[Partition, LogFailed] = field(default_factory=dict)
    _ends: dict[Partition, int] = field(default_factory=dict)
    _callbacks: dict[Callable[[], None], None] = field(default_factory=dict)

    def then(self, callback: Callable[[], None]) -> None:
        """Call back after `finish`, or now if it is done; equal callbacks are called once."""
        if self.done:
            callback()
        else:
            self._callbacks[callback] = None

    async def wait(self) -> None:
        """Wait until `finish` was called."""
        done = asyncio.Event()
        self.then(done.set)
        await done.wait()

    def write(self) -> None:
        """Write the appends to their files."""
        for partition in self.sizes:
            if partition.closed:
                self.failed[partition] = LogFailed("the topic was deleted")
                continue
            try:
                partition.log.flush_pending()
            except Exception as error:  # noqa: BLE001  each partition has its own clients
                self.fail(partition, _failure(error))
            else:
                self._ends[partition] = partition.log.next_offset

    def fail(self, partition: Partition, error: LogFailed) -> None:
        """Refuse the partition's appends; log it once, however often producers retry."""
        if not partition.reported_failure:
            partition.reported_failure = True
            logger.error(
                "records could not be written; their producers get an error",
                topic=partition.topic,
                partition=partition.index,
                error=str(error),
            )
        self.failed[partition] = error

    def finish(self) -> None:
        """Advance the high watermarks of partitions that did not fail, then run the callbacks."""
        self.done = True
        for partition, end in self._ends.items():
            if partition in self.failed:
                continue
            if partition.reported_failure:
                partition.reported_failure = False
                logger.info(
                    "records are written again", topic=partition.topic, partition=partition.index
                )
            try:
                partition.advance(end, self.sizes[partition])
            except Exception:  # it has other consumers than the next
                logger.exception("consumers could not be told of new records")
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # each is another client's
                logger.exception("a client could not be told that its records are written")
        self._callbacks.clear()


class GroupCommit:
    """Collect the appends of each turn into a `Flush`, write it, sync it and finish it; one per broker.

    Attributes:
        is_busy: whether the last turn with appends had many.
    """

    def __init__(self, *, sync: bool, executor: Executor) -> None:
        """Args:
        sync: sync before a flush finishes (fsync "always").
        executor: runs the syncs; give it SYNC_THREADS threads.
        """
        self._sync = sync
        self._executor = executor
        self._turn: Flush | None = None
        self._unsynced: list[Flush] = []
        self._syncing: asyncio.Future[list[dict[Partition, LogFailed]]] | None = None
        self._sync_began = 0.0
        self.is_busy = False
        self._borrowed: list[Callable[[], None]] = []

    @property
    def syncing_seconds(self) -> float:
        """Age of the running sync in seconds, 0 if there is none."""
        return 0.0 if self._syncing is None else monotonic() - self._sync_began

    def add(self, partition: Partition, size: int) -> Flush:
        """Add an append of `size` bytes; return the flush that it belongs to."""
        flush = self._turn
        if flush is None:
            flush = self._turn = Flush()
            asyncio.get_running_loop().call_soon(self.write)
        flush.sizes[partition] = flush.sizes.get(partition, 0) + size
        flush.appends += 1
        return flush

    def after_write(self, release: Callable[[], None]) -> None:
        """Call `release` once no log refers to the appended data any more."""
        if self._turn is None:
            release()
        else:
            self._borrowed.append(release)

    def write(self) -> None:
        """Write the pending appends now; called at the end of the turn, or earlier when memory is short."""
        flush, self._turn = self._turn, None
        if flush is None:
            return
        self.is_busy = flush.appends >= _MANY_APPENDS
        flush.write()
        borrowed, self._borrowed = self._borrowed, []
        for release in borrowed:
            release()
        if self._sync:
            self._unsynced.append(flush)
            self._start_sync()
        else:
            flush.finish()

    async def drain(self) -> None:
        """Write the pending appends, and wait until no sync is running."""
        self.write()
        while self._syncing is not None:
            await asyncio.wait([self._syncing])

    def _start_sync(self) -> None:
        if self._syncing is not None or not self._unsynced:
            return
        flushes, self._unsynced = self._unsynced, []
        partitions = list({partition for flush in flushes for partition in flush.sizes})
        loop = asyncio.get_running_loop()
        self._sync_began = monotonic()
        self._syncing = asyncio.gather(
            *(
                loop.run_in_executor(self._executor, _sync, partitions[at::SYNC_THREADS])
                for at in range(min(SYNC_THREADS, len(partitions)))
            )
        )
        self._syncing.add_done_callback(lambda syncing: self._synced(flushes, syncing))

    def _synced(
        self, flushes: list[Flush], syncing: asyncio.Future[list[dict[Partition, LogFailed]]]
    ) -> None:
        self._syncing = None
        failed = {
            partition: error for each in syncing.result() for partition, error in each.items()
        }
        for flush in flushes:
            for partition in flush.sizes:
                if partition in failed and partition not in flush.failed:
                    flush.fail(partition, failed[partition])
            flush.finish()
        self._start_sync()


def _sync(partitions: Iterable[Partition]) -> dict[Partition, LogFailed]:
    failed = {}
    for partition in partitions:
        try:
            partition.log.fsync()
        except Exception as error:  # noqa: BLE001  each partition has its own clients
            failed[partition] = _failure(error)
    return failed


def _failure(error: Exception) -> LogFailed:
    if isinstance(error, LogFailed):
        return error
    logger.error("a write failed in an unknown way", exc_info=error)
    return LogFailed(f"a bug: {error!r}")
