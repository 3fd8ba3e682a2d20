"""What a broker does from time to time: syncing logs, and retention."""

from __future__ import annotations

import time
from asyncio import get_running_loop
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import structlog

from broker.health.progress import unwatched
from broker.log.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    from broker.topics.partition import Partition
    from broker.topics.topics import Topics

__all__ = ["apply_retention", "retain", "sync_due_logs"]

logger = structlog.get_logger(__name__)


async def sync_due_logs(
    topics: Topics, interval: float, executor: Executor, beat: Callable[[], None] = unwatched
) -> None:
    """Sync, in a thread and every `interval` seconds, what the policy says is due; never returns."""
    loop = get_running_loop()
    while True:
        await anyio.sleep(interval)
        beat()
        # A log that failed stays so, and has been reported.
        due = [each for each in topics.partitions if each.log.fsync_due and not each.log.failure]
        if due:
            await loop.run_in_executor(executor, _sync, due)


def _sync(partitions: Iterable[Partition]) -> None:
    for partition in partitions:
        try:
            partition.log.fsync()
        except LogError as error:
            if not partition.closed:
                logger.error(
                    "a log could not be synced; restart the broker when its disk works again",
                    topic=partition.topic,
                    partition=partition.index,
                    error=str(error),
                )


async def apply_retention(
    topics: Topics, interval: float, beat: Callable[[], None] = unwatched
) -> None:
    """Delete old segments every `interval` seconds; never returns."""
    while True:
        await anyio.sleep(interval)
        beat()
        await retain(topics, now_ms=int(time.time() * 1000))


async def retain(topics: Topics, *, now_ms: int) -> None:
    """Delete the segments that are too old or too much, of all partitions."""
    for partition in topics.partitions:
        if partition.closed:
            continue
        try:
            deleted = partition.log.apply_retention(now_ms)
        except (LogError, OSError) as error:
            logger.error(
                "old segments could not be deleted",
                topic=partition.topic,
                partition=partition.index,
                error=str(error),
            )
            continue
        if deleted:
            logger.info(
                "old segments deleted",
                topic=partition.topic,
                partition=partition.index,
                first_offset=deleted[0].base_offset,
                next_offset=deleted[-1].next_offset,
                bytes=sum(segment.size_bytes for segment in deleted),
            )
        await anyio.lowlevel.checkpoint()  # requests go before
