"""Delivery guarantees: what the last stage of a lane does before it writes.

Exactly once and at most once need the ranges of a partition to be written in order, from the watermark
on. At least once needs nothing: rows are settled after they are written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .announcement import Announcement, token_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..commit import Committer
    from ..record import TopicPartition
    from ..reducers.flushing import Buffer
    from .ledger import Ledgers

__all__ = ["AtMostOnce", "DeliveryGuarantee", "ExactlyOnce"]


@dataclass(slots=True)
class DeliveryGuarantee(ABC):
    """The guarantee of one partition's lane. Its last stage calls both methods before each attempt to write.

    Attributes:
        awaiting_errors: called with True while this partition waits for its failed records to be
            settled, and with False after it.
        may_repeat: whether rows that may have been written may be written again.
    """

    partition: TopicPartition
    ledgers: Ledgers
    committer: Committer
    awaiting_errors: Callable[[bool], None]

    may_repeat: ClassVar[bool]

    async def wait_turn(self, buffer: Buffer) -> None:
        """Return when all offsets below the rows are settled, or when the partition is gone.

        Only failed records can be unsettled below the rows.
        """
        ranges = buffer.ranges()
        if not ranges:
            return
        first = ranges[0].first
        ledger = self.ledgers.get(self.partition)
        if ledger is None or ledger.watermark == first:
            return
        self.awaiting_errors(True)  # noqa: FBT003  a callback
        try:
            await self.ledgers.wait_reached(self.partition, first)
        finally:
            self.awaiting_errors(False)  # noqa: FBT003

    @abstractmethod
    async def before_write(self, buffer: Buffer) -> str | None:
        """Commit what the guarantee needs; called while no rebalance is under way.

        Returns:
            None if the rows may be written now, otherwise the reason why not; try again later.
        """

    def withdraw(self) -> None:  # noqa: B027  nothing to take back by default
        """Take back what `before_write` committed, as far as possible: the rows were not written."""


@dataclass(slots=True)
class ExactlyOnce(DeliveryGuarantee):
    """Announces each range before it is written. A replayed range keeps its announcement.

    Attributes:
        group: the consumer group, a part of the token.
        writer: identifies this process.
        replayed: a range that another process announced and may have written.
    """

    group: str
    writer: str
    replayed: Announcement | None

    may_repeat = True

    async def before_write(self, buffer: Buffer) -> str | None:
        """See `DeliveryGuarantee.before_write`."""
        ranges, reducer = buffer.ranges(), buffer.reducer
        if not ranges:
            return None  # rows without offsets: nothing to announce
        replayed = self.replayed
        if replayed is not None and ranges[0].first > replayed.last:
            replayed = self.replayed = None
        generations = self.committer.generations
        announcement = replayed or Announcement(
            first=ranges[0].first,
            last=ranges[-1].last,
            token=token_of(self.group, ranges, generations),
            writer=self.writer,
            rows=buffer.rows,
            chunk=reducer.block_rows if buffer.rows > reducer.block_rows else 0,
            generation=generations.get(self.partition, 0),
        )
        if not await self.committer.announce(self.partition, announcement):
            return f"cannot announce {ranges[0]}: the commit was refused"
        reducer.announce(announcement, replayed=replayed is not None)
        return None

    def withdraw(self) -> None:
        """See `DeliveryGuarantee.withdraw`: the next owner announces the range as a new one."""
        self.committer.withdraw(self.partition)


class AtMostOnce(DeliveryGuarantee):
    """Settles and commits each range before it is written. Rows that are lost then stay lost."""

    may_repeat = False

    async def before_write(self, buffer: Buffer) -> str | None:
        """See `DeliveryGuarantee.before_write`."""
        self.ledgers.settle(buffer.ranges())
        if await self.committer.commit():
            return None
        return f"cannot commit {buffer.ranges()[0]} before it is written"
