"""The commit stage: commits watermarks and announcements, at an interval and when somebody waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from framework.consumer import CommitOffset
from framework.errors import CommitFenced, ConsumerError

if TYPE_CHECKING:
    from framework.announcement import Announcement
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

    acknowledged: CommitOffset | None
    attempted: CommitOffset | None
    announcement: Announcement | None = None


class Committer:
    """Commits what the ledgers say, and nothing else.

    While a range is announced, its partition's committed offset stays at the first record of it, even
    if the watermark is already inside: the first commit beyond the range acknowledges all of it.

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
        self._fenced = anyio.Event()
        self._held = False

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

        Calls that come while one is under way share the next one. A fenced commit is no error: the
        group has moved on, and the rebalance that follows says what is still ours. Until it has, nothing
        is committed (see `hold`).
        """
        async with self._lock:
            if self._held:
                return False
            moved = {
                partition: wanted
                for partition, watermark in self._ledgers.watermarks().items()
                if (wanted := self._wanted(partition, watermark))
                != self._position(partition).acknowledged
            }
            if not moved:
                return True
            for partition, wanted in moved.items():
                self._position(partition).attempted = wanted
            try:
                await self._consumer.commit(moved)
            except CommitFenced as error:
                self._metrics.commits.labels("fenced").inc()
                if not self.is_fenced:
                    _log.warning("commit refused: the group has moved on", reason=str(error))
                self._fenced.set()
                return False
            except ConsumerError as error:
                self._metrics.commits.labels("failed").inc()
                _log.warning("commit failed, trying again with the next one", reason=str(error))
                return False
            for partition, wanted in moved.items():
                self._position(partition).acknowledged = wanted
            self._metrics.commits.labels("ok").inc()
            return True

    async def announce(self, partition: TopicPartition, announcement: Announcement) -> bool:
        """Commit that a range is about to be written; returns whether it may be.

        The commit acknowledges what was written before, of all partitions, and carries what others
        announce at the same time. False: the group has moved on, or no broker answers; nothing may be
        written.
        """
        self._position(partition).announcement = announcement
        await self.commit()
        position = self._positions.get(partition)
        return position is not None and position.acknowledged == CommitOffset(
            announcement.first, announcement.metadata
        )

    @property
    def is_fenced(self) -> bool:
        """Whether the group has moved on without us: no commit succeeds until the next assignment."""
        return self._fenced.is_set()

    async def wait_fenced(self) -> None:
        """Return when a commit was refused since the last assignment."""
        await self._fenced.wait()

    def hold(self) -> None:
        """Commit nothing until `rejoined`.

        The broker takes commits of the next generation as soon as we are a member of it, before we have
        heard what it has assigned to us: watermarks of the last one would undo what others did since.
        """
        self._held = True

    def rejoined(self) -> None:
        """A new generation has begun, and every partition of it stands where the broker says."""
        self._fenced = anyio.Event()
        self._held = False

    def begin(
        self,
        partition: TopicPartition,
        committed: CommitOffset | None,
        announcement: Announcement | None = None,
    ) -> None:
        """A partition starts at what the broker says is committed; None if nothing is."""
        self._positions[partition] = _Position(committed, committed, announcement)

    def forget(self, partition: TopicPartition) -> None:
        """A partition is gone."""
        self._positions.pop(partition, None)

    def is_ours(self, partition: TopicPartition, committed: CommitOffset | None) -> bool:
        """Whether what is committed is what we put there, so that nobody else moved it."""
        position = self._position(partition)
        return committed in (position.acknowledged, position.attempted)

    def committed(self, partition: TopicPartition) -> int | None:
        """The offset that the broker has acknowledged last."""
        acknowledged = self._position(partition).acknowledged
        return None if acknowledged is None else acknowledged.offset

    def _wanted(self, partition: TopicPartition, watermark: int) -> CommitOffset:
        position = self._position(partition)
        announcement = position.announcement
        if announcement is not None and watermark <= announcement.last:
            return CommitOffset(announcement.first, announcement.metadata)
        position.announcement = None
        return CommitOffset(watermark)

    def _position(self, partition: TopicPartition) -> _Position:
        return self._positions.setdefault(partition, _Position(None, None))
