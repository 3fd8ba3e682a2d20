"""The commit stage: commits watermarks and announcements, at an interval and on request."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
import structlog
from anyio.lowlevel import checkpoint

from .delivery.announcement import (
    Generation,
    next_generation,
    read_metadata,
)
from .errors import CommitFenced, CommitRefused, ConsumerError
from .kafka.consumer import CommitOffset
from .record import Range

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from .delivery.announcement import Announcement, BackfillRange, Closed
    from .delivery.ledger import Ledgers
    from .kafka.consumer import Consumer
    from .kafka.transactions import Transactions
    from .observe.metrics import Metrics
    from .record import TopicPartition
    from .reducers.sink import Delivery

_log = structlog.get_logger(__name__)

_LOOK: Final = 30.0
"""Seconds between looks at all partitions: a memory may need less of the log, though nothing was settled."""


@dataclass(slots=True)
class _Committed:
    """The committed offset of one partition, as far as we know it.

    Attributes:
        acknowledged: the last one that the broker confirmed.
        attempted: the last one that we sent. Without an answer, the broker may have either.
        announcement: the range that is announced with it.
        announced: the offset that says so. Kept, because each commit compares that of every partition.
        is_found: whether the announcement must be committed (again) before it counts as ours: it was read, or
            announced some time ago. The group may have put us out since: only a commit can tell.
        closed: which windows are closed; None without windows.
    """

    acknowledged: CommitOffset | None
    attempted: CommitOffset | None
    announcement: Announcement | None = None
    is_found: bool = False
    closed: Closed | None = None
    announced: CommitOffset | None = None

    def announce(self, announcement: Announcement) -> CommitOffset:
        """Set the announcement; return the offset that says so."""
        self.announcement = announcement
        self.announced = CommitOffset(announcement.first, announcement.metadata)
        return self.announced


class Committer:
    """Commits watermarks and announcements for the partitions that are ours, and knows what is committed.

    While a range is announced, the committed offset of its partition stays at the range's first record,
    even if the watermark is already inside: the first commit beyond the range acknowledges all of it.

    It also knows when a commit must not be sent: the group has begun another generation of its members, or an
    earlier commit, not answered yet, could take effect after it. Then it joins the group anew.

    Args:
        delivery: of the strategy. Except with at-least-once, which then delivers twice, the group is joined
            anew after a commit without an answer. Except with at-most-once, an offset whose commit was not
            answered counts as ours when it is found: there, another member that has committed the same one
            has written the rows.
        interval: seconds between commits while watermarks move.

    Attributes:
        delivery: what the sinks turned out to be able to provide, once they are open.
        rejoins: how often `rejoined` was called.
    """

    def __init__(
        self,
        consumer: Consumer,
        ledgers: Ledgers,
        *,
        delivery: Delivery,
        interval: float,
        metrics: Metrics,
    ) -> None:
        self._consumer = consumer
        self._ledgers = ledgers
        self._interval = interval
        self._metrics = metrics
        self.delivery = delivery
        self._orders_commits = delivery != "at-least-once"
        self._trusts_attempts = delivery != "at-most-once"
        self._partitions: dict[TopicPartition, _Committed] = {}
        self._generations: dict[TopicPartition, int] = {}
        self._histories: dict[TopicPartition, BackfillRange | None] = {}
        self._lock = anyio.Lock(fast_acquire=True)
        self._fenced = anyio.Event()
        self._held = False
        self._announcing: anyio.Event | None = None
        self._trouble = ""
        self.rejoins = 0

    async def run(self) -> None:
        """Commit at every interval until cancelled; a failed commit is logged and repeated by the next.

        Raises:
            CommitRefused: see `commit`.
        """
        looked = -math.inf
        while True:
            await anyio.sleep(self._interval)
            now = anyio.current_time()
            of_all = now - looked >= _LOOK
            if (
                (of_all or self._ledgers.uncommitted)
                and await self.commit(of_all=of_all)
                and of_all
            ):
                looked = now

    async def commit(self, *, of_all: bool = True) -> bool:
        """Commit every watermark that moved; return whether all of them are committed now.

        Calls during a commit share the next one. A fenced commit raises no error: the group has a new
        generation, and the rebalance that follows says which partitions are still ours. Until then
        nothing is committed (see `hold`).

        Args:
            of_all: look at all partitions, not only at those of which something was settled.

        Raises:
            CommitRefused: the broker would refuse it for ever. Partitions that it did not refuse are
                acknowledged.
        """
        return await self._commit(of_all=of_all)

    def _moved(
        self, ranges: Sequence[Range] = (), *, of_all: bool = True
    ) -> dict[TopicPartition, CommitOffset]:
        """Return the offsets to commit; `uncommitted` then has their partitions alone."""
        uncommitted = self._ledgers.uncommitted
        watermarks = self._ledgers.watermarks(ranges, None if of_all else uncommitted)
        moved = {
            partition: wanted
            for partition, watermark in watermarks.items()
            if not self._is_acknowledged(partition, wanted := self._wanted(partition, watermark))
        }
        if not ranges:  # else they were looked at as if the ranges were settled
            uncommitted.clear()
        uncommitted.update(moved)
        return moved

    async def _send(self, offsets: dict[TopicPartition, CommitOffset]) -> None:
        await self._consumer.commit(offsets)

    async def _commit(
        self, ranges: Sequence[Range] = (), *, of_all: bool = False, announces: bool = False
    ) -> bool:
        async with self._lock:
            if announces:
                self._announcing = None  # who comes from now on needs another commit
            if self._held or not self._ledgers.is_current(ranges):
                return False
            moved = self._moved(ranges, of_all=of_all)
            if not moved and not ranges:
                return True
            for partition, wanted in moved.items():
                self._entry(partition).attempted = wanted
            try:
                await self._send(moved)
            except CommitFenced as error:
                self._metrics.count_lost_commit("fenced", str(error))
                self._distrust_attempts(moved)
                if not self._fenced.is_set():
                    _log.warning(
                        "commit refused: the group has a new generation", reason=str(error)
                    )
                self._fenced.set()
                return False
            except ConsumerError as error:
                self._metrics.count_lost_commit("failed", str(error))
                if isinstance(error, CommitRefused):
                    self._acknowledge({p: moved[p] for p in moved if p in error.acknowledged})
                    if error.for_good:
                        raise
                self._report(str(error))
                await self._outrun_unanswered()
                return False
            self._acknowledge(moved)
            self._trouble = ""
            self._metrics.commits.labels("ok").inc()
            await self._outrun_unanswered()
            return True

    async def _outrun_unanswered(self) -> None:
        """Join the group anew if a commit may still take effect: it would undo a later one."""
        if self._orders_commits and self._consumer.has_unanswered_commit:
            _log.warning(
                "a commit was not answered: joining the group anew, so that it is not late"
            )
            self._distrust_attempts(self._partitions)
            self.hold()
            self._fenced.set()
            await self._consumer.join_anew()

    def _distrust_attempts(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not count attempted offsets as ours: another member may commit the same ones."""
        for partition in partitions:
            entry = self._entry(partition)
            entry.attempted = entry.acknowledged

    def _report(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("commit failed, trying again with the next one", reason=trouble)

    def _acknowledge(self, offsets: dict[TopicPartition, CommitOffset]) -> None:
        for partition, offset in offsets.items():
            entry = self._entry(partition)
            entry.acknowledged, entry.is_found = offset, False

    def _is_acknowledged(self, partition: TopicPartition, offset: CommitOffset) -> bool:
        entry = self._entry(partition)
        return entry.acknowledged == offset and not entry.is_found

    async def announce(
        self, partition: TopicPartition, announcement: Announcement, *, again: bool = False
    ) -> bool:
        """Commit the announcement of a range that is about to be written; return whether it may be.

        The same commit acknowledges earlier writes of all partitions, and carries the announcements of
        others. An announcement that was found (`begin`) is committed too. False means that the group has
        a new generation or that no broker answers.

        Args:
            again: commit it also if it is committed already.
        """
        entry = self._entry(partition)
        announced, entry.is_found = entry.announce(announcement), entry.is_found or again
        self._ledgers.uncommitted.add(partition)
        if self._announcing is None:
            done = self._announcing = anyio.Event()
            try:
                await checkpoint()
                await self._commit(announces=True)
            finally:
                done.set()
                if self._announcing is done:
                    self._announcing = None
        else:
            await self._announcing.wait()  # in one commit with other lanes
        return self._is_acknowledged(partition, announced)

    def close_windows(self, partition: TopicPartition, closed: Closed) -> None:
        """Note which windows are closed, and their rows written: commits say so from now on."""
        entry = self._entry(partition)
        entry.announcement, entry.closed = None, closed
        self._ledgers.uncommitted.add(partition)

    def closed(self, partition: TopicPartition) -> Closed | None:
        """Return which windows are closed, as far as it was committed or noted; None if nothing is known."""
        return self._entry(partition).closed

    def withdraw(self, partition: TopicPartition) -> None:
        """Announce nothing for a partition any more: the next commit says so."""
        self._entry(partition).announcement = None
        self._ledgers.uncommitted.add(partition)

    @property
    def may_commit(self) -> bool:
        """Whether a commit can succeed before the next assignment: none was fenced, and they are not held."""
        return not (self._held or self._fenced.is_set())

    async def take_over(self) -> None:
        """Take over from an earlier process of the same member; call it right before joining the group."""

    async def close(self) -> None:
        """End. No commit is under way."""

    async def wait_fenced(self) -> None:
        """Return when a commit was fenced since the last assignment."""
        await self._fenced.wait()

    def hold(self) -> None:
        """Commit nothing until `rejoined`.

        The broker accepts our commits as soon as we are a member of the next generation, before we know
        its assignment: watermarks of the old generation would overwrite the commits of other members.
        """
        self._held = True

    def rejoined(self) -> None:
        """Commit again: a new generation has begun, and `begin` was called for its new partitions."""
        self._fenced = anyio.Event()
        self._held = False
        self.rejoins += 1

    def begin(
        self,
        partition: TopicPartition,
        committed: CommitOffset | None,
        announcement: Announcement | None = None,
        *,
        windows: bool = False,
    ) -> None:
        """Add a partition with the committed offset on the broker, None if there is none.

        Where no range is announced, a generation begins if the committed offset has none: the topic or the
        group may be new, and the sink must not take the records for those that had their offsets before.
        With exactly-once, the first range of a partition is looked for in the sink instead. With `windows`,
        what the offset says of closed windows is kept.

        Raises ConsumerError if a newer version of kmr wrote its metadata.
        """
        found = read_metadata(partition, committed)
        generation = found.generation
        if not generation and self.delivery != "exactly-once":
            generation = next_generation()
        self._generations[partition] = generation
        self._histories[partition] = found.history
        entry = self._partitions[partition] = _Committed(
            committed, committed, closed=found.closed if windows else None
        )
        if announcement is not None:
            entry.announce(announcement)
            entry.is_found = True

    def forget(self, partition: TopicPartition) -> None:
        """Remove a partition that is no longer assigned.

        Its committed offset stays known: if the broker loses it, that is noticed when the partition returns.
        """
        self._generations.pop(partition, None)
        self._histories.pop(partition, None)

    def is_ours(self, partition: TopicPartition, committed: CommitOffset | None) -> bool:
        """Return whether a committed offset is our own, so that no other member has moved it."""
        entry = self._entry(partition)
        return committed == entry.acknowledged or (
            self._trusts_attempts and committed == entry.attempted
        )

    def committed(self, partition: TopicPartition) -> int | None:
        """Return the offset that the broker acknowledged last, None if it has none."""
        acknowledged = self._entry(partition).acknowledged
        return None if acknowledged is None else acknowledged.offset

    @property
    def generations(self) -> Mapping[TopicPartition, int]:
        """The generations of the offsets of our partitions, kept up to date."""
        return self._generations

    def history(self, partition: TopicPartition) -> BackfillRange | None:
        """Return which offsets the group reads of a partition; None: all."""
        return self._histories.get(partition)

    def _wanted(self, partition: TopicPartition, watermark: int) -> CommitOffset:
        entry = self._entry(partition)
        announcement, announced = entry.announcement, entry.announced
        if announcement is not None and announced and watermark <= announcement.last:
            return announced
        entry.announcement = None
        ledger = self._ledgers.get(partition)
        back = None if ledger is None else ledger.look_back(watermark)
        generation = self._generations.get(partition, 0)
        closed = entry.closed
        if closed is not None and ledger is not None and ledger.leaves_windows_open:
            closed = closed.up_to(ledger.until)
        done = Generation(generation, back, self.history(partition), closed)
        return CommitOffset(watermark, done.metadata)

    def _entry(self, partition: TopicPartition) -> _Committed:
        entry = self._partitions.get(partition)
        if entry is None:
            entry = self._partitions[partition] = _Committed(None, None)
        return entry


class TransactionalCommitter(Committer):
    """Commits offsets in the transactions of a sink: every commit is one, because brokers keep their order.

    A plain commit that is late would be ordered by chance.
    """

    def __init__(
        self,
        consumer: Consumer,
        ledgers: Ledgers,
        transactions: Transactions,
        *,
        interval: float,
        metrics: Metrics,
    ) -> None:
        super().__init__(
            consumer, ledgers, delivery="exactly-once", interval=interval, metrics=metrics
        )
        self._orders_commits = False  # the transactions are in order
        self._transactions = transactions
        transactions.on_abort = metrics.transactions.labels("aborted").inc

    async def commit(self, *, of_all: bool = True) -> bool:
        """See `Committer.commit`; what an open transaction takes along is left to it."""
        if self._held or self._transactions.in_use:
            return False
        unknown = self._unknown()
        if not self._moved(of_all=of_all) and not unknown:
            return True
        self._ledgers.uncommitted.update(unknown)  # asked for again, if that fails
        try:
            async with self.transaction():
                return await self._commit(of_all=of_all)
        except CommitRefused:
            raise
        except ConsumerError as error:
            self._report(str(error))
            return False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transactions]:
        """Wait until no transaction is open, and keep it so in the block; abort what it has not committed.

        If the answer to the last commit was lost, it first asks for the committed offsets, and settles the
        offsets below them.

        Raises:
            CommitRefused: the broker does not allow transactions.
            ConsumerError: there can be no transaction now.
        """
        async with self._transactions as transactions:
            await self._learn()
            yield transactions

    async def commit_transaction(self, ranges: Sequence[Range]) -> bool:
        """Commit what was sent in the transaction, and all watermarks as if `ranges` were settled.

        Call it in the block of `transaction`.

        Returns:
            False if it was not acknowledged, or not tried: a partition of the ranges was lost meanwhile.

        Raises:
            CommitRefused: see `commit`.
        """
        return await self._commit(ranges)

    async def take_over(self) -> None:
        """Let the broker abort what an earlier process left open. Raises as `Transactions.open`."""
        await self._transactions.open()

    async def close(self) -> None:
        """Abort a transaction that is open, and disconnect."""
        await self._transactions.close()

    async def _learn(self) -> None:
        """Ask for committed offsets whose commit was not answered, and settle the offsets below them."""
        unknown = self._unknown()
        for partition, found in (await self._consumer.committed(unknown)).items():
            entry, ledger = self._entry(partition), self._ledgers.get(partition)
            if found is None or ledger is None or ledger.position is None:
                continue
            if (ledger.watermark or 0) < found.offset <= ledger.position:
                first = ledger.watermark or 0
                self._ledgers.settle(
                    [Range(*partition, first, found.offset - 1, ledger.generation)]
                )
            if found == entry.attempted:
                entry.acknowledged = found
            entry.attempted = entry.acknowledged

    def _unknown(self) -> list[TopicPartition]:
        """Return the partitions whose committed offset may be the acknowledged or the attempted one."""
        entries = ((ledger.partition, self._entry(ledger.partition)) for ledger in self._ledgers)
        return [partition for partition, entry in entries if entry.attempted != entry.acknowledged]

    async def _send(self, offsets: dict[TopicPartition, CommitOffset]) -> None:
        await self._transactions.commit(offsets, self._consumer.membership(offsets))
        self._metrics.transactions.labels("committed").inc()
