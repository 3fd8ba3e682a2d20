"""Delivery guarantees: the steps of the last stage of a lane around each attempt to write, in order.

Exactly once by announcements and at most once write the ranges of a partition in order, from the watermark
on. Exactly once by transactions writes all partitions together. At least once settles what is written.

The rows of windows that close settle the records below the first one of a window that stays open. What else
was read is committed as `Closed`: up to which offset, and which windows are closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import structs

from .delivery.announcement import (
    NOTHING_CLOSED,
    Announcement,
    Closed,
    JoinedAnnouncement,
    WindowAnnouncement,
    token_of,
)
from .delivery.failures import RowLetters, tell_accepted
from .errors import CommitRefused, ConsumerError, UnexpectedDuplicate
from .memory.window_rows import WindowRows
from .reducers.flushing import FlushOutcome
from .reducers.reducer import Retry
from .reducers.sink import NEW, Sink, Write, capabilities_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from .commit import Committer, TransactionalCommitter
    from .delivery.ledger import Ledgers
    from .intake.backpressure import Gate
    from .record import Range, TopicPartition
    from .reducers.buffer import Buffer
    from .reducers.joined_turn import JoinedTurn

_COMMIT_RETRY: Final = 0.5
"""Seconds after which a refused commit is tried again: a rebalance has usually ended by then."""


class WriteRows(Protocol):
    """Writes the rows of the buffer once."""

    def __call__(self, write: Write = NEW, *, may_repeat: bool = True) -> Awaitable[FlushOutcome]:
        """Write. Raises as `attempt_flush`, whose arguments it has."""


@dataclass(slots=True)
class Guarantee(ABC):
    """The guarantee of a lane.

    Attributes:
        gate: while it is closed, nothing is written.
    """

    ledgers: Ledgers
    gate: Gate

    @abstractmethod
    async def deliver(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        """Try once to write the rows of a buffer, and settle them.

        Returns:
            None if no row is left to write: their partitions are lost.

        Raises:
            Retry: call it again later.
            Exception: what `write` raises.
        """

    @asynccontextmanager
    async def _begun(self, buffer: Buffer) -> AsyncIterator[bool]:
        """Hold the gate, so that the commit of a rebalance includes what is settled in the block.

        Yields whether the buffer still has rows, after those of lost partitions are dropped.
        """
        async with self.gate:
            if not self.ledgers.is_current(buffer.ranges()):
                buffer.drop_stale(self.ledgers.is_current)
            yield bool(buffer.held)


class AtLeastOnce(Guarantee):
    """Settles rows when they are written. Stages that forward rows have this guarantee, too."""

    async def deliver(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        """See `Guarantee.deliver`; rows for the next stage are not settled."""
        async with self._begun(buffer) as has_rows:
            if not has_rows:
                return None
            outcome = await write()
            if outcome.forward is None:
                tell_accepted(buffer.held)
                self.ledgers.settle(outcome.ranges)
            return outcome


@dataclass(slots=True)
class AfterErrors(Guarantee):
    """A guarantee that writes only when the failed records before the rows are settled.

    Attributes:
        awaiting_errors: called with True while a write waits for failed records, and with False after it.
    """

    awaiting_errors: Callable[[bool], None]
    _written: FlushOutcome | None = field(default=None, init=False)

    def _settle(self, buffer: Buffer, outcome: FlushOutcome) -> None:
        """Settle the records of rows that are written."""
        self.ledgers.settle(outcome.ranges)

    def _await_letters(self, buffer: Buffer, written: FlushOutcome) -> FlushOutcome:
        """Let the stage send the letters of refused rows, and call `deliver` again."""
        self._written = written
        self._mark_awaited(buffer, on=True)
        return written._replace(again=True)

    def _mark_awaited(self, buffer: Buffer, *, on: bool) -> None:
        for r in buffer.ranges():
            if (ledger := self.ledgers.get(r.topic_partition)) is not None:
                ledger.awaits_letters = on

    async def _settle_after_letters(
        self, buffer: Buffer, written: FlushOutcome
    ) -> FlushOutcome | None:
        """Settle rows that are written, when the error sink has the letters of those that were refused."""
        self._written = None
        letters = [each for each in written.failed if isinstance(each, RowLetters)]

        def are_accepted(ranges: tuple[Range, ...]) -> bool:
            accepted = all(each.accepted.is_set() for each in letters)
            return accepted or not self.ledgers.is_current(ranges)

        await self._wait(buffer, are_accepted)
        async with self._begun(buffer) as has_rows:
            if not has_rows:
                return None
            outcome = written._replace(failed=[])
            self._mark_awaited(buffer, on=False)
            self._settle(buffer, outcome)
            return outcome

    async def _wait(self, buffer: Buffer, is_turn: Callable[[tuple[Range, ...]], bool]) -> None:
        """Wait until it is the turn of the ranges of a buffer."""
        ranges = buffer.ranges()
        if is_turn(ranges):
            return
        buffer.leave_turn()
        self.awaiting_errors(True)  # noqa: FBT003  a callback
        try:
            await self.ledgers.wait_until(lambda: is_turn(ranges))
        finally:
            self.awaiting_errors(False)  # noqa: FBT003


@dataclass(slots=True)
class AtMostOnce(AfterErrors):
    """Settles and commits each range before it is written. Rows that are lost then stay lost."""

    committer: Committer

    async def deliver(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        await self._wait(buffer, self.ledgers.complete)
        async with self._begun(buffer) as has_rows:
            if not has_rows:
                return None
            ranges = buffer.ranges()
            self.ledgers.hold(buffer, buffer.bytes)
            self.ledgers.settle(ranges)
            if not await self.committer.commit():
                raise _refused(f"cannot commit {ranges[0]} before it is written")
            return await write(may_repeat=False)


@dataclass(slots=True)
class ExactlyOnce(AfterErrors):
    """Announces each range before it is written. A replayed range keeps its announcement.

    Attributes:
        group: the consumer group, a part of the token.
        writer: identifies this process.
        replayed: a range that another process announced and may have written.
    """

    committer: Committer
    partition: TopicPartition
    group: str
    writer: str
    replayed: Announcement | None
    _announced: tuple[Announcement, int] | None = None

    async def deliver(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        await self._wait(buffer, self._is_next)
        while buffer.turn is not None and not await buffer.turn.gather(buffer):
            buffer.turn = buffer.turn.follow(buffer)
        async with self._begun(buffer) as has_rows:
            if not has_rows:
                return None
            ranges = buffer.ranges()
            announcement = self._announcement(ranges, buffer)
            # An attempt may have lasted for long: then only the group knows whether the range is still ours.
            again = self._announced is not None and self._announced[0] == announcement
            if not await self.committer.announce(self.partition, announcement, again=again):
                raise _refused(f"cannot announce {ranges[0]}: the commit was refused")
            repeated = self._is_repeated(announcement)
            joined = None if repeated else self._joined(buffer, announcement)
            try:
                outcome = await write(Write(announcement, repeated, joined=joined))
            except UnexpectedDuplicate:
                await self._withdraw()
                raise
            has_shared = joined is not None and isinstance(announcement, JoinedAnnouncement)
            if has_shared and not await self._was_ours(announcement):
                raise _refused(
                    f"{ranges[0]} may have another owner, who has written its part alone"
                )
            self._settle(buffer, outcome)
            return outcome

    async def _was_ours(self, announcement: Announcement) -> bool:
        """Commit the announcement again; return whether all partitions were ours while it was written.

        Another owner of one of them may have taken the token that they share, for that one alone. Then the
        sink has dropped the rows of the others, and they are written again as repeated ones.
        """
        ours = await self.committer.announce(self.partition, announcement, again=True)
        return ours and self._announced == (announcement, self.committer.rejoins)

    def _is_next(self, ranges: tuple[Range, ...]) -> bool:
        """Return whether everything before the rows is settled, or the partition is lost."""
        ledger = self.ledgers.get(self.partition)
        return not ranges or ledger is None or (ledger.watermark or 0) >= ranges[0].first

    def _announcement(self, ranges: tuple[Range, ...], buffer: Buffer) -> Announcement:
        if self.replayed is not None and ranges[0].first > self.replayed.last:
            self.replayed = None
        return self.replayed or self._new(ranges, buffer)

    def _new(self, ranges: tuple[Range, ...], buffer: Buffer) -> Announcement:
        generations = self.committer.generations
        ledger = self.ledgers.get(self.partition)
        block_rows = capabilities_of(buffer.reducer).block_rows
        alone = Announcement(
            first=ranges[0].first,
            last=ranges[-1].last,
            token=token_of(self.group, ranges, generations),
            writer=self.writer,
            rows=buffer.rows,
            chunk=block_rows if buffer.rows > block_rows else 0,
            generation=generations.get(self.partition, 0),
            back=None if ledger is None else ledger.look_back(ranges[0].first),
            history=self.committer.history(self.partition),
        )
        shares_token = capabilities_of(buffer.reducer).shares_tokens
        # Rows of an earlier generation have the same offsets: only a token tells these from them.
        if buffer.turn is None or not shares_token or alone.generation or not _may_join(buffer):
            return alone
        return JoinedAnnouncement(**structs.asdict(alone), joined=buffer.turn.token)

    def _joined(self, buffer: Buffer, announcement: Announcement) -> JoinedTurn | None:
        """Return the turn that an announced range has with others; None: it is written alone."""
        if isinstance(announcement, JoinedAnnouncement):
            return buffer.turn
        if capabilities_of(buffer.reducer).shares_tokens or not _may_join(buffer):
            buffer.leave_turn()
        return buffer.turn

    def _is_repeated(self, announcement: Announcement) -> bool:
        """Return whether another process may have written the range.

        If we have rejoined since we announced it, another owner may have, and ended before it committed.
        """
        rejoins = self.committer.rejoins
        if self._announced is None or self._announced[0] != announcement:
            self._announced = announcement, rejoins
        return self.replayed is not None or self._announced[1] != rejoins

    async def _withdraw(self) -> None:
        """Take the announcement back, because the sink has the rows: the next owner announces them anew.

        Only if the group accepts the commit, no other member can have read the announcement before.
        """
        self.committer.withdraw(self.partition)
        if not await self.committer.commit():
            raise _refused(
                f"{self.partition} may have another owner, who has written the announced range"
            )


@dataclass(slots=True)
class Transactional(AfterErrors):
    """Writes rows of any partitions and commits their offsets in one transaction.

    A transaction covers everything up to the last offset of each partition. So a record that fails is settled
    before: also one that the sink refuses, for which the transaction is aborted and tried without it.
    """

    committer: TransactionalCommitter

    async def deliver(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        await self._wait(buffer, self.ledgers.complete)
        async with self._begun(buffer) as has_rows:
            if not has_rows:
                return None
            outcome = await self._in_transaction(buffer, write)
            if outcome is not None:
                self.ledgers.settle(outcome.ranges)
            return outcome

    async def _in_transaction(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        async with AsyncExitStack() as stack:
            try:
                transaction = await stack.enter_async_context(self.committer.transaction())
            except CommitRefused:
                raise
            except ConsumerError as error:
                raise _refused(str(error)) from error
            # `transaction` has settled what the last commit wrote, if its answer was lost: drop these rows.
            buffer.drop_stale(lambda ranges: not ranges or not self.ledgers.are_settled(ranges))
            if not buffer.held:
                return None
            outcome = await write(Write(transaction=transaction))
            if outcome.failed:
                buffer.remove(outcome.failed)
                return FlushOutcome(None, (), outcome.failed, again=True)
            ranges = buffer.ranges()
            if not self.ledgers.complete(ranges):
                raise _refused("transaction aborted: a record below its last offset is not settled")
            if not await self.committer.commit_transaction(ranges):
                shown = ", ".join(map(str, ranges[:3]))
                raise _refused(f"transaction aborted or not acknowledged: {shown}")
            return outcome


def _may_join(buffer: Buffer) -> bool:
    return isinstance(buffer.reducer, Sink) and buffer.reducer.may_join()


def _refused(reason: str) -> Retry:
    return Retry(reason, after=_COMMIT_RETRY, may_double=False)


def _window_rows(buffer: Buffer) -> list[WindowRows]:
    return [rows for rows in buffer.held if isinstance(rows, WindowRows)]


def _close_windows(
    buffer: Buffer, committer: Committer, partition: TopicPartition
) -> tuple[Range, ...]:
    """Note which windows are closed now; return the ranges that are settled by it."""
    last = _window_rows(buffer)[-1]
    closed_to = 0 if last.closes is None else last.closes[1]
    # After a restart, rows may close windows before all is read again that was read before it.
    known = committer.closed(partition) or NOTHING_CLOSED
    read_to = max(last.read_to, known.read_to)
    committer.close_windows(partition, Closed(read_to, closed_to, last.definition, last.level))
    return tuple(r for rows in _window_rows(buffer) for r in rows.settles)


def _is_read(
    ledgers: Ledgers, partition: TopicPartition, buffer: Buffer
) -> Callable[[tuple[Range, ...]], bool]:
    """Return whether all records that were read are settled, but for those of the windows."""
    read_to = _window_rows(buffer)[-1].read_to

    def is_read(ranges: tuple[Range, ...]) -> bool:
        ledger = ledgers.get(partition)
        if ledger is None or not ledgers.is_current(ranges):
            return True
        return (ledger.watermark_with(ranges) or 0) > read_to

    return is_read


def _tell(buffer: Buffer) -> None:
    for rows in _window_rows(buffer):
        rows.done.set()


@dataclass(slots=True)
class WindowsAtLeastOnce(AfterErrors):
    """Settles records when the rows of their windows are written, and failed records before them."""

    committer: Committer
    partition: TopicPartition

    async def deliver(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        if (written := self._written) is not None:
            outcome = await self._settle_after_letters(buffer, written)
        else:
            await self._wait(buffer, _is_read(self.ledgers, self.partition, buffer))
            async with self._begun(buffer) as has_rows:
                if not has_rows:
                    return None
                outcome = await write()
                if outcome.failed:
                    return self._await_letters(buffer, outcome)
                self._settle(buffer, outcome)
        _tell(buffer)
        return outcome

    def _settle(self, buffer: Buffer, outcome: FlushOutcome) -> None:
        self.ledgers.settle(_close_windows(buffer, self.committer, self.partition))


@dataclass(slots=True)
class WindowsExactlyOnce(ExactlyOnce):
    """Announces the rows of windows with the offsets and the times that close them, then writes them.

    The next owner of the partition reads from the first to the last of these offsets again, closes the
    windows between both times, and so writes the same rows with the same token.
    """

    async def deliver(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        if (written := self._written) is not None:
            outcome = await self._settle_after_letters(buffer, written)
        else:
            await self._wait(buffer, _is_read(self.ledgers, self.partition, buffer))
            if buffer.rows or buffer.set_aside or (self.replayed is not None and buffer.ranges()):
                outcome = await ExactlyOnce.deliver(self, buffer, write)
            else:
                outcome = await self._mark(buffer)
            if outcome is not None and outcome.failed:
                return self._await_letters(buffer, outcome)
        _tell(buffer)
        return outcome

    async def _mark(self, buffer: Buffer) -> FlushOutcome | None:
        async with self._begun(buffer) as has_rows:
            if not has_rows:
                return None
            outcome = FlushOutcome(None, buffer.ranges(), [])
            self._settle(buffer, outcome)
            return outcome

    def _is_next(self, ranges: tuple[Range, ...]) -> bool:
        """Return True: `deliver` has waited."""
        return True

    def _announcement(self, ranges: tuple[Range, ...], buffer: Buffer) -> Announcement:
        if self.replayed is not None:
            return self.replayed
        held = _window_rows(buffer)
        closes = [rows.closes for rows in held if rows.closes is not None]
        new = self._new(ranges, buffer)
        fields = structs.asdict(new)
        fields["last"] = held[-1].read_to
        fields["token"] += f"/{closes[0][0]}-{closes[-1][1]}"
        return WindowAnnouncement(
            **fields,
            closed_from=closes[0][0],
            closed_to=closes[-1][1],
            definition=held[-1].definition,
            level=held[0].level_before,
            emitted_to=held[0].emitted_to,
        )

    def _settle(self, buffer: Buffer, outcome: FlushOutcome) -> None:
        if outcome.failed:
            return  # `deliver` settles them when their letters are accepted
        self.replayed = None
        self.ledgers.settle(_close_windows(buffer, self.committer, self.partition))
