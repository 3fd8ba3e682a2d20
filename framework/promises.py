"""What happens before a flush writes, so that the strategy's delivery holds: exactly once, at most once.

Both need each partition's ranges to be written one after the other, from the watermark on. At least once
needs nothing: what is written is settled afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from framework.announcement import Announcement, token_of
from framework.reducer import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from framework.buffer import Buffer
    from framework.commit import Committer
    from framework.ledger import Ledgers
    from framework.record import TopicPartition

__all__ = ["AtMostOnce", "ExactlyOnce", "Promise"]

_AGAIN = 0.5
"""Seconds until a commit that was refused is tried again: a rebalance is mostly over by then."""


class Promise(Protocol):
    """What the last stage of one partition's chain does before it writes.

    Attributes:
        repeats: whether rows that may have been written may be written again.
    """

    repeats: bool

    async def wait_turn(self, buffer: Buffer) -> None:
        """Return when everything below the rows is settled, or their partition is gone."""

    async def before_write(self, buffer: Buffer) -> Retry | None:
        """Called before every attempt, while no rebalance is under way; Retry: nothing may be written."""


class _InOrder:
    """Ranges of one partition, one after the other.

    Args:
        awaited: told `True` when the failed records of this partition are waited for, then `False`.
    """

    def __init__(
        self,
        partition: TopicPartition,
        ledgers: Ledgers,
        committer: Committer,
        awaited: Callable[[bool], None],
    ) -> None:
        self._partition = partition
        self._ledgers = ledgers
        self._committer = committer
        self._awaited = awaited

    async def wait_turn(self, buffer: Buffer) -> None:
        """See `Promise.wait_turn`. Only failed records can be in the way."""
        ranges = buffer.ranges()
        if not ranges:
            return
        first = ranges[0].first
        ledger = self._ledgers.get(self._partition)
        if ledger is None or ledger.watermark == first:
            return
        self._awaited(True)  # noqa: FBT003  a callback
        try:
            await self._ledgers.wait_reached(self._partition, first)
        finally:
            self._awaited(False)  # noqa: FBT003


class ExactlyOnce(_InOrder):
    """Announces each range before it is written; a replayed one keeps the announcement that it has.

    Args:
        group: a part of the token.
        writer: names this process.
        replayed: the range that another process has announced, and maybe written.
    """

    repeats = True

    def __init__(
        self,
        partition: TopicPartition,
        ledgers: Ledgers,
        committer: Committer,
        awaited: Callable[[bool], None],
        *,
        group: str,
        writer: str,
        replayed: Announcement | None,
    ) -> None:
        super().__init__(partition, ledgers, committer, awaited)
        self._group = group
        self._writer = writer
        self._replayed = replayed

    async def before_write(self, buffer: Buffer) -> Retry | None:
        """See `Promise.before_write`."""
        ranges, reducer = buffer.ranges(), buffer.reducer
        if not ranges:
            return None  # rows that stand for no offsets: nothing to announce
        replayed = self._replayed
        if replayed is not None and ranges[0].first > replayed.last:
            replayed = self._replayed = None
        announcement = replayed or Announcement(
            first=ranges[0].first,
            last=ranges[-1].last,
            token=token_of(self._group, ranges),
            writer=self._writer,
            rows=buffer.rows,
            chunk=reducer.block_rows if buffer.rows > reducer.block_rows else 0,
        )
        if not await self._committer.announce(self._partition, announcement):
            return Retry(_AGAIN, f"cannot announce {ranges[0]}: the commit was refused")
        reducer.announce(announcement, replayed=replayed is not None)
        return None


class AtMostOnce(_InOrder):
    """Settles and commits each range before it is written: what is lost then is lost."""

    repeats = False

    async def before_write(self, buffer: Buffer) -> Retry | None:
        """See `Promise.before_write`."""
        self._ledgers.settle(buffer.ranges())
        if await self._committer.commit():
            return None
        return Retry(_AGAIN, f"cannot commit {buffer.ranges()[0]} before it is written")
