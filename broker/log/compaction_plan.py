"""When a log is compacted, and what of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.compaction import ClosedSegment, Plan
from broker.log.compaction_state import CompactionState
from broker.log.config import NO_TIME_LIMIT

if TYPE_CHECKING:
    from broker.log.partition import PartitionLog

__all__ = ["plan_compaction"]


def plan_compaction(log: PartitionLog, now_ms: int) -> Plan | None:
    """What a pass over the log should do now (milliseconds since the epoch), None if nothing.

    There is something to do when the share of bytes that no pass has seen is above
    `min.cleanable.dirty.ratio`, when one of their records is older than `max.compaction.lag.ms`, or when
    there are tombstones older than `delete.retention.ms`.
    """
    state = CompactionState.load(log.directory)
    segments, overdue = _compactable(log, state.clean_to, now_ms)
    if not segments:
        return None
    config = log.config
    new_bytes = sum(each.size for each in segments if each.end_offset > state.clean_to)
    ratio = new_bytes / sum(each.size for each in segments)
    tombstones_end = state.expired_tombstones_end(now_ms, config.delete_retention_ms)
    if ratio <= config.min_cleanable_dirty_ratio and not overdue and not tombstones_end:
        return None
    start, end = segments[0].base_offset, segments[-1].end_offset
    return Plan(
        directory=log.directory,
        segments=tuple(segments),
        log_start_offset=log.log_start_offset,
        state=state,
        tombstones_end=tombstones_end,
        aborted=tuple(log.producers.aborted.between(start, end)),
        producers=frozenset(each.producer_id for each in log.producers.describe()),
        segment_bytes=config.segment_bytes,
        index_interval_bytes=config.index_interval_bytes,
    )


def _compactable(log: PartitionLog, clean_to: int, now_ms: int) -> tuple[list[ClosedSegment], bool]:
    """The segments that a pass may work on, and whether it must, because of their age."""
    config = log.config
    found: list[ClosedSegment] = []
    overdue = False
    for segment in log.segments():
        end = segment.end_offset
        if end is None or end > log.last_stable_offset:
            break  # it is being written to, or has records of an open transaction
        lag = config.min_compaction_lag_ms
        if lag and segment.newest_ms() > now_ms - lag:
            break
        first_new = end > clean_to and (not found or found[-1].end_offset <= clean_to)
        if first_new and config.max_compaction_lag_ms < NO_TIME_LIMIT:
            overdue = segment.first_timestamp(now_ms) < now_ms - config.max_compaction_lag_ms
        found.append(ClosedSegment(segment.path, segment.base_offset, end, segment.size))
    return found, overdue
