"""Delivery guarantees: what the last stage of a lane does before it writes.

Exactly once by announcements and at most once need the ranges of a partition to be written in order, from
the watermark on. Exactly once by transactions writes all partitions together. At least once needs nothing:
rows are settled after they are written.
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

__all__ = ["AtMostOnce", "DeliveryGuarantee", "ExactlyOnce", "Transactional"]


@dataclass(slots=True)
class DeliveryGuarantee(ABC):
    """The guarantee of a lane. Its last stage calls the methods for each attempt to write.

    The order is: `wait_turn`, `before_write`; the write; `after_write` if it has written; `end` in any case.

    Attributes:
        awaiting_errors: called with True while this partition waits for its failed records to be
            settled, and with False after it.
        may_repeat: whether rows that may have been written may be written again.
        failed_first: whether rows that the sink refuses must be settled before the others are written.
    """

    ledgers: Ledgers
    committer: Committer
    awaiting_errors: Callable[[bool], None]

    may_repeat: ClassVar[bool]
    failed_first: ClassVar[bool] = False

    async def wait_turn(self, buffer: Buffer) -> None:
        """Return when the rows may be written, as far as failed records are concerned.

        Only failed records can be unsettled between other rows.
        """
        if self._is_turn(buffer):
            return
        self.awaiting_errors(True)  # noqa: FBT003  a callback
        try:
            await self._wait_turn(buffer)
        finally:
            self.awaiting_errors(False)  # noqa: FBT003

    @abstractmethod
    def _is_turn(self, buffer: Buffer) -> bool: ...

    @abstractmethod
    async def _wait_turn(self, buffer: Buffer) -> None: ...

    @abstractmethod
    async def before_write(self, buffer: Buffer) -> str | None:
        """Commit what the guarantee needs; called while no rebalance is under way.

        Returns:
            None if the rows may be written now, otherwise the reason why not; try again later.
        """

    async def after_write(self, buffer: Buffer) -> str | None:
        """Commit what belongs to the write; return None if it counts, otherwise the reason why not."""
        return None

    async def end(self) -> None:  # noqa: B027  nothing is open by default
        """End the attempt, whatever has become of it."""

    async def withdraw(self) -> str | None:
        """Take back what `before_write` committed: the sink has the rows already.

        Returns:
            None, or the reason why another member may have written them meanwhile; try again later.
        """
        return None


@dataclass(slots=True)
class _InOrder(DeliveryGuarantee):
    """Writes the ranges of one partition in order: a range begins where all before it is settled."""

    partition: TopicPartition

    def _is_turn(self, buffer: Buffer) -> bool:
        ranges = buffer.ranges()
        ledger = self.ledgers.get(self.partition)
        return not ranges or ledger is None or ledger.watermark == ranges[0].first

    async def _wait_turn(self, buffer: Buffer) -> None:
        await self.ledgers.wait_reached(self.partition, buffer.ranges()[0].first)


@dataclass(slots=True)
class ExactlyOnce(_InOrder):
    """Announces each range before it is written. A replayed range keeps its announcement.

    Attributes:
        group: the consumer group, a part of the token.
        writer: identifies this process.
        replayed: a range that another process announced and may have written.
    """

    group: str
    writer: str
    replayed: Announcement | None
    _announced: tuple[Announcement, int] | None = None

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
        if self._announced is None or self._announced[0] != announcement:
            self._announced = announcement, self.committer.rejoins
        # If we have rejoined since, another owner may have written the range, and ended before it committed.
        elsewhere = self._announced[1] != self.committer.rejoins
        reducer.announce(announcement, replayed=replayed is not None or elsewhere)
        return None

    async def withdraw(self) -> str | None:
        """See `DeliveryGuarantee.withdraw`: the next owner announces the range as a new one.

        Only if the group accepts the commit, no other member can have read the announcement before.
        """
        self.committer.withdraw(self.partition)
        if await self.committer.commit():
            return None
        return f"{self.partition} may have another owner, who has written the announced range"


@dataclass(slots=True)
class Transactional(DeliveryGuarantee):
    """Writes rows of any partitions and commits their offsets in one transaction.

    A transaction covers everything up to the last offset of each partition. So a record that fails is settled
    before: also one that the sink refuses, for which the transaction is aborted and tried without it.
    """

    _entered: bool = False

    may_repeat = True
    failed_first = True

    def _is_turn(self, buffer: Buffer) -> bool:
        return self.ledgers.complete(buffer.ranges())

    async def _wait_turn(self, buffer: Buffer) -> None:
        await self.ledgers.wait_complete(buffer.ranges())

    async def before_write(self, buffer: Buffer) -> str | None:
        """See `DeliveryGuarantee.before_write`.

        If the answer to the last commit was lost, the committed offsets say what has become of it; rows that
        were committed leave the buffer.
        """
        if (refusal := await self.committer.enter_transaction()) is not None:
            return refusal
        self._entered = True
        buffer.drop_stale(lambda ranges: not ranges or not self.ledgers.are_settled(ranges))
        return None

    async def after_write(self, buffer: Buffer) -> str | None:
        """See `DeliveryGuarantee.after_write`."""
        ranges = buffer.ranges()
        if not self.ledgers.complete(ranges):
            return "transaction aborted: a record below its last offset is not settled"
        if await self.committer.commit_transaction(ranges):
            return None
        return f"transaction aborted or not acknowledged: {', '.join(map(str, ranges[:3]))}"

    async def end(self) -> None:
        """See `DeliveryGuarantee.end`: abort the transaction, unless it is committed."""
        if self._entered:
            self._entered = False
            await self.committer.leave_transaction()


class AtMostOnce(_InOrder):
    """Settles and commits each range before it is written. Rows that are lost then stay lost."""

    may_repeat = False

    def _is_turn(self, buffer: Buffer) -> bool:
        """Return whether the commit before the write covers all rows: no failed record is between them."""
        return self.ledgers.complete(buffer.ranges())

    async def _wait_turn(self, buffer: Buffer) -> None:
        await self.ledgers.wait_complete(buffer.ranges())

    async def before_write(self, buffer: Buffer) -> str | None:
        """See `DeliveryGuarantee.before_write`."""
        self.ledgers.settle(buffer.ranges())
        if await self.committer.commit():
            return None
        return f"cannot commit {buffer.ranges()[0]} before it is written"
