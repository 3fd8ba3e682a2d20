"""The commit stage: commits the watermarks, at an interval and when a rebalance or the end demands it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from framework.consumer import CommitOffset
from framework.errors import CommitFenced, ConsumerError

if TYPE_CHECKING:
    from framework.consumer import Consumer
    from framework.ledger import Ledgers
    from framework.record import TopicPartition
    from framework.telemetry import Metrics

__all__ = ["Committer"]

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Position:
    """What we know of one partition's committed offset on the broker.

    `attempted` differs from `acknowledged` while, or after, a commit got no answer: either may stand.
    """

    acknowledged: int | None
    attempted: int | None


class Committer:
    """Commits what the ledgers say, and nothing else.

    Args:
        interval: seconds between commits while watermarks move.
    """

    def __init__(
        self, consumer: Consumer, ledgers: Ledgers, *, interval: float, metrics: Metrics
    ) -> None:
        self._consumer = consumer
        self._ledgers = ledgers
        self._interval = interval
        self._metrics = metrics
        self._positions: dict[TopicPartition, _Position] = {}
        self._lock = anyio.Lock()

    async def run(self) -> None:
        """Commit for ever; a commit that fails is logged and tried again with the next one.

        Raises:
            ConsumerError: the broker refuses commits for good.
        """
        while True:
            await anyio.sleep(self._interval)
            await self.commit()

    async def commit(self) -> bool:
        """Commit every watermark that moved; returns whether all of them are committed now.

        A fenced commit is no error: the group has moved on, and the rebalance that follows says what
        is still ours.
        """
        async with self._lock:
            moved = {
                partition: watermark
                for partition, watermark in self._ledgers.watermarks().items()
                if watermark != self._position(partition).acknowledged
            }
            if not moved:
                return True
            for partition, watermark in moved.items():
                self._position(partition).attempted = watermark
            try:
                await self._consumer.commit(
                    {partition: CommitOffset(watermark) for partition, watermark in moved.items()}
                )
            except CommitFenced as error:
                self._metrics.commits.labels("fenced").inc()
                _log.warning("commit refused: the group has moved on", reason=str(error))
                return False
            except ConsumerError as error:
                self._metrics.commits.labels("failed").inc()
                _log.warning("commit failed, trying again with the next one", reason=str(error))
                return False
            for partition, watermark in moved.items():
                self._position(partition).acknowledged = watermark
            self._metrics.commits.labels("ok").inc()
            return True

    def begin(self, partition: TopicPartition, committed: int | None) -> None:
        """A partition starts at what the broker says is committed; None if nothing is."""
        self._positions[partition] = _Position(committed, committed)

    def forget(self, partition: TopicPartition) -> None:
        """A partition is gone."""
        self._positions.pop(partition, None)

    def is_ours(self, partition: TopicPartition, committed: int | None) -> bool:
        """Whether the broker's committed offset is one that we put there, so that nobody else moved it."""
        position = self._position(partition)
        return committed in (position.acknowledged, position.attempted)

    def committed(self, partition: TopicPartition) -> int | None:
        """The offset that the broker has acknowledged last."""
        return self._position(partition).acknowledged

    def _position(self, partition: TopicPartition) -> _Position:
        return self._positions.setdefault(partition, _Position(None, None))
