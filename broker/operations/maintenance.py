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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor

    from anyio.abc import TaskGroup

    from ..log.compaction import CompactionPlan
    from ..settings import BrokerSettings
    from ..supervision import Supervision
    from ..topics.topic import Partition
    from ..topics.topics import Topics

_SYNCING: Final = "the syncing of logs"
_RETENTION: Final = "retention"
_COMPACTION: Final = "compaction"
_PROCESS_BYTES: Final = 1024 * 1024
"""A pass over this much runs in a process; over less, in a thread: that takes less time than to start one."""

logger = structlog.get_logger(__name__)


class Maintenance:
    """The periodic tasks of a broker's logs: syncs, retention and compaction."""

    def __init__(self, topics: Topics, executor: Executor, supervisor: Supervision) -> None:
        """`executor`: runs the syncs."""
        self._topics = topics
        self._executor = executor
        self._supervisor = supervisor

    def start(self, tasks: TaskGroup, settings: BrokerSettings) -> None:
        """Start the tasks; they run until cancelled, whatever fails."""
        for work, action, every in (
            (_SYNCING, self._sync_due, settings.fsync_interval),
            (_RETENTION, self._retain, settings.retention_check_interval),
            (_COMPACTION, self._compact_due, settings.compaction_check_interval),
        ):
            tasks.start_soon(partial(self._supervisor.repeat, work, action, every=every))

    async def _sync_due(self) -> None:
        # A log that has failed stays failed until a restart.
        due = [
            each
            for each in self._topics.partitions
            if _may_try(self._supervisor, _SYNCING, each)
            and each.log.fsync_due
            and not each.log.failure
        ]
        if due:
            await get_running_loop().run_in_executor(self._executor, self._sync, due)

    def _sync(self, partitions: Iterable[Partition]) -> None:
        event = "a log could not be synced"
        for partition in partitions:
            with _attempt(self._supervisor, _SYNCING, event, partition):
                partition.log.fsync()

    async def _retain(self) -> None:
        await retain(self._topics, self._supervisor, now_ms=_now_ms())

    async def _compact_due(self) -> None:
        topics, beat = self._topics, partial(self._supervisor.beat, _COMPACTION)
        event = "a log could not be compacted; it grows until it can be"
        for partition in topics.partitions:
            if topics.stopping or not partition.log.config.compacts:
                continue
            if _may_try(self._supervisor, _COMPACTION, partition):
                with _attempt(self._supervisor, _COMPACTION, event, partition):
                    await compact(partition, topics, now_ms=_now_ms(), beat=beat)


def _may_try(supervisor: Supervision, work: str, partition: Partition) -> bool:
    where = {"topic": partition.topic, "partition": partition.index}
    return not partition.closed and supervisor.may_try(work, **where)


@contextmanager
def _attempt(
    supervisor: Supervision, work: str, event: str, partition: Partition
) -> Iterator[None]:
    where = {"topic": partition.topic, "partition": partition.index}
    with supervisor.attempt(work, event, **where):
        try:
            yield
        except Exception:
            if not partition.closed:  # else it was deleted meanwhile
                raise


def _now_ms() -> int:
    return int(time.time() * 1000)


async def retain(topics: Topics, supervisor: Supervision, *, now_ms: int) -> None:
    """Apply retention to all partitions."""
    for partition in topics.partitions:
        if not _may_try(supervisor, _RETENTION, partition):
            continue
        with _attempt(supervisor, _RETENTION, "old segments could not be deleted", partition):
            deleted = await topics.clean(partition, partition.log.retention(now_ms))
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
    partition: Partition, topics: Topics, *, now_ms: int, beat: Callable[[], None] = lambda: None
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
    plan: CompactionPlan,
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
        if rewritten is not None and not await topics.clean(partition, log.replacement(rewritten)):
            return False  # retention has deleted a segment meanwhile
    state = plan.state.after_pass(compaction.clean_to, compaction.tombstones, now_ms)
    await to_thread.run_sync(partial(state.save, plan.directory))
    return True
