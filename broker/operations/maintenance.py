"""Periodic maintenance of the logs: syncs, retention and compaction."""

from __future__ import annotations

import time
from asyncio import get_running_loop
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import structlog
from anyio import to_thread

from ..log.compaction import Compaction, Stopped, plan_compaction
from ..log.compaction_process import CompactionProcess
from ..log.log_config import NO_TIME_LIMIT
from ..log.results import LogError
from ..topics.topic import Failing
from .health import unwatched

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from concurrent.futures import Executor

    from anyio.abc import TaskGroup

    from ..log.compaction import Plan
    from ..log.partition import DeletedSegment
    from ..settings import BrokerSettings
    from ..topics.topic import Partition
    from ..topics.topics import Topics
    from .health import Progress

COMPACTION: Final = "compaction"
RETENTION: Final = "retention"
_FIRST_WAIT: Final = 0.1  # seconds
_LONGEST_WAIT: Final = 3600.0
_PROCESS_BYTES: Final = 1024 * 1024
"""A pass over this much runs in a process; over less, in a thread: that takes less time than to start one."""

logger = structlog.get_logger(__name__)


class Maintenance:
    """The periodic tasks of a broker's logs: syncs, retention and compaction."""

    def __init__(self, topics: Topics, executor: Executor) -> None:
        """`executor`: runs the syncs."""
        self._topics = topics
        self._executor = executor

    def start(self, tasks: TaskGroup, settings: BrokerSettings, progress: Progress) -> None:
        """Start the tasks; they run until cancelled, and report their progress."""
        every = settings.fsync_interval
        beat = progress.expect("the syncing of logs", every)
        tasks.start_soon(_repeat, self._sync_due, every, beat)
        every = settings.retention_check_interval
        beat = progress.expect("retention", every)
        tasks.start_soon(_repeat, self._retain, every, beat)
        every = settings.compaction_check_interval
        beat = progress.expect("compaction", every)
        tasks.start_soon(_repeat, partial(self._compact_due, beat), every, beat)

    async def _sync_due(self) -> None:
        # A failed log stays failed until a restart, and was reported.
        due = [p for p in self._topics.partitions if p.log.fsync_due and not p.log.failure]
        if due:
            await get_running_loop().run_in_executor(self._executor, _sync, due)

    async def _retain(self) -> None:
        await retain(self._topics, now_ms=_now_ms())

    async def _compact_due(self, beat: Callable[[], None]) -> None:
        topics = self._topics
        for partition in topics.partitions:
            if topics.stopping or partition.closed or not partition.log.config.compacts:
                partition.unmaintained.pop(COMPACTION, None)
            elif _is_due(partition, COMPACTION):
                with _supervised(
                    partition, COMPACTION, "a log could not be compacted; it grows until it can be"
                ):
                    await compact(partition, topics, now_ms=_now_ms(), beat=beat)


def _is_due(partition: Partition, task: str) -> bool:
    """Whether a task that failed has waited long enough."""
    failing = partition.unmaintained.get(task)
    return failing is None or time.monotonic() >= failing.again_at


@contextmanager
def _supervised(partition: Partition, task: str, event: str) -> Iterator[None]:
    """Note and log a failure of the block; other logs, and the broker, go on.

    A reason is logged once, and each failure doubles the time until the task is due again.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever a log holds, the broker serves it
        if partition.closed:
            return
        reason = str(error) or repr(error)
        before = partition.unmaintained.get(task)
        wait = _FIRST_WAIT if before is None else min(2 * before.wait, _LONGEST_WAIT)
        partition.unmaintained[task] = Failing(reason, wait, time.monotonic() + wait)
        if before is None or before.reason != reason:
            _log_failure(event, partition, error)
    else:
        partition.unmaintained.pop(task, None)


async def _repeat(
    action: Callable[[], Awaitable[None]], every: float, beat: Callable[[], None]
) -> None:
    """Run `action` every `every` seconds; never return."""
    while True:
        await anyio.sleep(every)
        beat()
        await action()


def _now_ms() -> int:
    return int(time.time() * 1000)


def _log_failure(event: str, partition: Partition, error: Exception) -> None:
    logger.error(
        event,
        topic=partition.topic,
        partition=partition.index,
        error=str(error) or repr(error),
        exc_info=not isinstance(error, LogError | OSError),
    )


def _sync(partitions: Iterable[Partition]) -> None:
    for partition in partitions:
        try:
            partition.log.fsync()
        except Exception as error:  # noqa: BLE001  the others have their turn
            if not partition.closed:
                _log_failure(
                    "a log could not be synced; restart the broker when its disk works again",
                    partition,
                    error,
                )


async def retain(topics: Topics, *, now_ms: int) -> None:
    """Apply retention to all partitions."""
    for partition in topics.partitions:
        if partition.closed or not _is_due(partition, RETENTION):
            continue
        deleted: list[DeletedSegment] = []
        with _supervised(partition, RETENTION, "old segments could not be deleted"):
            deleted = await topics.clean(partition, partition.log.retaining(now_ms))
        if deleted:
            logger.info(
                "old segments deleted",
                topic=partition.topic,
                partition=partition.index,
                first_offset=deleted[0].base_offset,
                next_offset=deleted[-1].next_offset,
                bytes=sum(segment.size_bytes for segment in deleted),
            )


async def compact(
    partition: Partition,
    topics: Topics,
    *,
    now_ms: int,
    beat: Callable[[], None] = unwatched,
) -> bool:
    """Compact a log if it is due, during reads and appends; return whether it was compacted.

    `beat` is called while it makes progress. Raises LogError, OSError: the log is then unchanged or partly
    compacted, both of which are valid.
    """
    log = partition.log
    if log.config.max_compaction_lag_ms < NO_TIME_LIMIT:
        log.roll_if_older(now_ms - log.config.max_compaction_lag_ms)
    plan = plan_compaction(log, now_ms)
    if plan is None:
        return False
    before = log.size_bytes

    def stopped() -> bool:
        return topics.stopping or partition.closed

    large = sum(each.size for each in plan.segments) >= _PROCESS_BYTES
    kind = CompactionProcess if large else Compaction
    compaction = kind(plan, stopped=stopped, beat=beat)
    try:
        done = await _run(partition, topics, plan, compaction, now_ms=now_ms)
    except Stopped:
        return False
    except (LogError, OSError):
        # A file is missing because the topic, or an old segment, was deleted.
        if partition.closed or log.has_deleted(plan.segments[0].base_offset):
            return False
        raise
    finally:
        if isinstance(compaction, CompactionProcess):
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(compaction.close)
    if done:
        logger.info(
            "log compacted",
            topic=partition.topic,
            partition=partition.index,
            next_offset=compaction.clean_to,
            bytes=before - log.size_bytes,
        )
    return done


async def _run(
    partition: Partition,
    topics: Topics,
    plan: Plan,
    compaction: Compaction | CompactionProcess,
    *,
    now_ms: int,
) -> bool:
    log = partition.log
    # A record may go only when the later one of its key is on disk.
    await to_thread.run_sync(log.checkpoint)
    await to_thread.run_sync(compaction.read_keys)
    for group in plan.groups:
        rewritten = await to_thread.run_sync(compaction.rewrite, group)
        if partition.closed:
            raise Stopped
        if rewritten is not None and not await topics.clean(partition, log.replacing(rewritten)):
            return False  # retention has deleted a segment meanwhile
    state = plan.state.after_pass(compaction.clean_to, compaction.tombstones, now_ms)
    await to_thread.run_sync(partial(state.save, plan.directory))
    return True
