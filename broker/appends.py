"""When appends are written, synced and acknowledged.

Appends of one turn of the event loop are collected by their logs and written at its end, one system
call per partition. Under fsync "always" one sync in a thread serves all that was written while the
previous one ran (group commit). Only then are the records visible and acknowledged.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

import structlog

from broker.log.errors import LogFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    from broker.topics.partition import Partition

__all__ = ["SYNC_THREADS", "Appends", "Flush"]

logger = structlog.get_logger(__name__)

SYNC_THREADS = 4
"""Syncs of several logs at once cost a disk hardly more than one."""


class Flush:
    """What was appended in one turn, and who waits for it."""

    __slots__ = ("_callbacks", "_ends", "_sizes", "done", "failed")

    def __init__(self) -> None:
        self.done = False
        self.failed: dict[Partition, LogFailed] = {}
        self._sizes: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._callbacks: dict[Callable[[], None], None] = {}

    @property
    def partitions(self) -> Iterable[Partition]:
        return self._sizes.keys()

    def add(self, partition: Partition, size: int) -> None:
        self._sizes[partition] = self._sizes.get(partition, 0) + size

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when it is done, once, however often the same callback is given."""
        if self.done:
            callback()
        else:
            self._callbacks[callback] = None

    def write(self) -> None:
        for partition in self._sizes:
            if partition.closed:
                self.failed[partition] = LogFailed("the topic was deleted")
                continue
            try:
                partition.log.flush_pending()
            except LogFailed as error:
                self.fail(partition, error)
            else:
                self._ends[partition] = partition.log.next_offset

    def fail(self, partition: Partition, error: LogFailed) -> None:
        if not partition.reported_failure:  # producers try again and again
            partition.reported_failure = True
            logger.error(
                "records could not be written, their producers are told so",
                topic=partition.topic,
                partition=partition.index,
                error=str(error),
            )
        self.failed[partition] = error

    def finish(self) -> None:
        self.done = True
        for partition, end in self._ends.items():
            if partition in self.failed:
                continue
            partition.advance(end, self._sizes[partition])
            if partition.reported_failure:
                partition.reported_failure = False
                logger.info(
                    "records are written again", topic=partition.topic, partition=partition.index
                )
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()


class Appends:
    """Collects the appends of a turn into a `Flush`; one per broker."""

    def __init__(self, *, sync: bool, executor: Executor) -> None:
        """`sync`: acknowledge only what is on disk (fsync "always").

        `executor` runs the syncs; it should have SYNC_THREADS threads.
        """
        self._sync = sync
        self._executor = executor
        self._turn: Flush | None = None
        self._unsynced: list[Flush] = []
        self._syncing: asyncio.Future[list[dict[Partition, LogFailed]]] | None = None
        self._sync_began = 0.0
        self._borrowed: list[Callable[[], None]] = []

    @property
    def pending(self) -> bool:
        """Whether appended data is still referred to where it was received."""
        return self._turn is not None

    @property
    def syncing_seconds(self) -> float:
        """How long the sync that is running takes already; 0 if there is none."""
        return 0.0 if self._syncing is None else monotonic() - self._sync_began

    def add(self, partition: Partition, size: int) -> Flush:
        """Note that `size` bytes were appended; the flush that they are part of."""
        if self._turn is None:
            self._turn = Flush()
            asyncio.get_running_loop().call_soon(self.write)
        self._turn.add(partition, size)
        return self._turn

    def after_write(self, release: Callable[[], None]) -> None:
        """Call `release` once pending data is no longer referred to."""
        if self._turn is None:
            release()
        else:
            self._borrowed.append(release)

    def write(self) -> None:
        """Write what is pending now; called at the end of the turn, or earlier by who cannot wait."""
        flush, self._turn = self._turn, None
        if flush is None:
            return
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
        """Write what is pending, and wait until it is synced if it has to be."""
        self.write()
        while self._syncing is not None:
            await asyncio.wait([self._syncing])

    def _start_sync(self) -> None:
        if self._syncing is not None or not self._unsynced:
            return
        flushes, self._unsynced = self._unsynced, []
        partitions = list({partition for flush in flushes for partition in flush.partitions})
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
            for partition in flush.partitions:
                if partition in failed and partition not in flush.failed:
                    flush.fail(partition, failed[partition])
            flush.finish()
        self._start_sync()


def _sync(partitions: Iterable[Partition]) -> dict[Partition, LogFailed]:
    failed = {}
    for partition in partitions:
        try:
            partition.log.fsync()
        except LogFailed as error:
            failed[partition] = error
    return failed
