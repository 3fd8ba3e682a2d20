"""Delivery guarantees of the rows of windows: what is settled and committed around a write.

The rows of windows that close settle the records below the first one of a window that stays open. What else
was read is committed as `Closed`: up to which offset, and which windows are closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import msgspec

from ..delivery.announcement import NOTHING_CLOSED, Announcement, Closed, WindowAnnouncement
from ..guarantees import AfterErrors, ExactlyOnce
from ..record import Rows
from ..reducers.flushing import FlushOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..commit import Committer
    from ..delivery.ledger import Ledgers
    from ..guarantees import WriteRows
    from ..record import Range, TopicPartition
    from ..reducers.flushing import Buffer


@dataclass(frozen=True)
class WindowRows(Rows):
    """Rows of windows that close; without rows a mark, which says how far was read.

    `ranges` are all offsets that were read and are not settled.

    Attributes:
        settles: those of `ranges` below the first record of a window that stays open.
        read_to: the last offset that was read.
        definition: see `Window.definition`.
        level_before: see `Closed.level`, before these rows.
        level: after them.
        emitted_to: see `Closed.emitted_to`, before these rows.
        done: set when the rows are written and settled.
    """

    settles: tuple[Range, ...] = ()
    read_to: int = -1
    definition: str = ""
    level_before: int = 0
    level: int = 0
    emitted_to: int | None = None
    done: anyio.Event = field(default_factory=anyio.Event, compare=False)


def _held(buffer: Buffer) -> list[WindowRows]:
    return [rows for rows in buffer.held if isinstance(rows, WindowRows)]


def _close(buffer: Buffer, committer: Committer, partition: TopicPartition) -> tuple[Range, ...]:
    """Note what is closed now; return what that settles."""
    last = _held(buffer)[-1]
    closed_to = 0 if last.closes is None else last.closes[1]
    # After a restart, rows may close windows before all is read again that was read before it.
    known = committer.closed(partition) or NOTHING_CLOSED
    read_to = max(last.read_to, known.read_to)
    committer.close_windows(partition, Closed(read_to, closed_to, last.definition, last.level))
    return tuple(r for rows in _held(buffer) for r in rows.settles)


def _is_read(
    ledgers: Ledgers, partition: TopicPartition, buffer: Buffer
) -> Callable[[tuple[Range, ...]], bool]:
    """Return whether all records that were read are settled, but for those of the windows."""
    read_to = _held(buffer)[-1].read_to

    def is_read(ranges: tuple[Range, ...]) -> bool:
        ledger = ledgers.get(partition)
        if ledger is None or not ledgers.is_current(ranges):
            return True
        return (ledger.watermark_with(ranges) or 0) > read_to

    return is_read


def _tell(buffer: Buffer) -> None:
    for rows in _held(buffer):
        rows.done.set()


@dataclass(slots=True)
class WindowsAtLeastOnce(AfterErrors):
    """Settles records when the rows of their windows are written, and failed records before them."""

    committer: Committer
    partition: TopicPartition

    async def deliver(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        await self._wait(buffer, _is_read(self.ledgers, self.partition, buffer))
        async with self._begun(buffer) as has_rows:
            if not has_rows:
                return None
            outcome = await write()
            self.ledgers.settle(_close(buffer, self.committer, self.partition))
        _tell(buffer)
        return outcome


@dataclass(slots=True)
class WindowsExactlyOnce(ExactlyOnce):
    """Announces the rows of windows with the offsets and the times that close them, then writes them.

    The next owner of the partition reads from the first to the last of these offsets again, closes the
    windows between both times, and so writes the same rows with the same token.
    """

    async def deliver(self, buffer: Buffer, write: WriteRows) -> FlushOutcome | None:
        await self._wait(buffer, _is_read(self.ledgers, self.partition, buffer))
        if buffer.rows or (self.replayed is not None and buffer.ranges()):
            outcome = await ExactlyOnce.deliver(self, buffer, write)
        else:
            outcome = await self._mark(buffer)
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
        held = _held(buffer)
        closes = [rows.closes for rows in held if rows.closes is not None]
        new = self._new(ranges, buffer)
        fields = msgspec.structs.asdict(new)
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
        self.replayed = None
        self.ledgers.settle(_close(buffer, self.committer, self.partition))
