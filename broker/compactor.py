"""Compacts, one after another, the logs of topics whose settings ask for it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio import to_thread

from broker.health.progress import unwatched
from broker.log.compaction import Compaction, Stopped
from broker.log.compaction_plan import plan_compaction
from broker.log.config import NO_TIME_LIMIT
from broker.log.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.log.compaction import Plan
    from broker.topics.partition import Partition
    from broker.topics.topics import Topics

__all__ = ["compact", "compact_logs"]

logger = structlog.get_logger(__name__)


async def compact_logs(
    topics: Topics, interval: float, beat: Callable[[], None] = unwatched
) -> None:
    """Look for logs to compact every `interval` seconds; never returns."""
    failures: dict[Partition, str] = {}
    while True:
        await anyio.sleep(interval)
        beat()
        for partition in topics.partitions:
            if topics.stopping or partition.closed or not partition.log.config.compacts:
                continue
            try:
                await compact(partition, topics, now_ms=int(time.time() * 1000), beat=beat)
                failures.pop(partition, None)
            except (LogError, OSError) as error:
                _report(partition, str(error), failures)


async def compact(
    partition: Partition,
    topics: Topics,
    *,
    now_ms: int,
    beat: Callable[[], None] = unwatched,
) -> bool:
    """Compact a log if it is due; whether it was. It is read and appended to meanwhile.

    `beat` is called before each batch. Raises LogError, OSError: then the log is as it was, or half of
    it is compacted, which is as good.
    """
    log = partition.log
    if log.config.max_compaction_lag_ms < NO_TIME_LIMIT:
        log.roll_if_older(now_ms - log.config.max_compaction_lag_ms)
    plan = plan_compaction(log, now_ms)
    if plan is None:
        return False
    before = log.size_bytes

    def stopped() -> bool:
        beat()
        return topics.stopping or partition.closed

    compaction = Compaction(plan, stopped=stopped)
    try:
        done = await _run(partition, plan, compaction, now_ms=now_ms)
    except Stopped:
        return False
    except (LogError, OSError):
        if partition.closed:  # and its files are gone
            return False
        raise
    if done:
        logger.info(
            "log compacted",
            topic=partition.topic,
            partition=partition.index,
            next_offset=compaction.clean_to,
            bytes=before - log.size_bytes,
        )
    return done


async def _run(partition: Partition, plan: Plan, compaction: Compaction, *, now_ms: int) -> bool:
    log = partition.log
    # What is compacted away must have its successor on disk.
    await to_thread.run_sync(log.checkpoint)
    await to_thread.run_sync(compaction.read_keys)
    for group in plan.groups:
        rewritten = await to_thread.run_sync(compaction.rewrite, group)
        if partition.closed:
            raise Stopped
        if rewritten is not None and not log.put_in_place(rewritten):
            return False  # retention was faster
    state = plan.state.after_pass(compaction.clean_to, compaction.tombstones, now_ms)
    await to_thread.run_sync(partial(state.save, plan.directory))
    return True


def _report(partition: Partition, problem: str, failures: dict[Partition, str]) -> None:
    """Once, not at every try."""
    if failures.get(partition) == problem:
        return
    failures[partition] = problem
    logger.error(
        "a log could not be compacted; it grows until it can be",
        topic=partition.topic,
        partition=partition.index,
        error=problem,
    )
