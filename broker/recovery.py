"""Says what the recovery of a log has found: what an operator must know stands in the broker's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from broker.log.partition import PartitionLog

__all__ = ["report_recovery"]

logger = structlog.get_logger(__name__)


def report_recovery(log: PartitionLog, **whose: object) -> None:
    """Report what was lost or is damaged in a log that was just opened; `whose` it is."""
    report = log.recovery
    if report.lost_durable_records:
        logger.error(
            "records that were on disk are gone",
            **whose,
            records=report.lost_durable_records,
            truncated_at=report.truncated_at,
            reason=report.reason,
            set_aside=report.set_aside,
        )
    elif report.lost_data:
        logger.warning(
            "the log ended in an incomplete write, which was cut off",
            **whose,
            truncated_at=report.truncated_at,
            truncated_bytes=report.truncated_bytes,
            reason=report.reason,
            set_aside=report.set_aside,
        )
    if report.lost_checkpoint:
        logger.error(
            "nobody knows where the log started: records that were deleted may be back",
            **whose,
            log_start_offset=log.log_start_offset,
            reason=report.lost_checkpoint,
        )
    if report.damaged:
        logger.error(
            "batches of the log are damaged: reading them will fail",
            **whose,
            reason=report.damaged,
        )
