"""The clients' requests and the broker's responses, in the order of its disk's operations."""

from __future__ import annotations

from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.disks.wire import OK, produce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chaos.disks.disk import Disk


@dataclass
class Change:
    """`value` was asked for when the disk had seen `begun` operations; acknowledged at `done`."""

    begun: int
    value: Any
    done: int | None = None


@dataclass
class Register:
    """What clients did to one thing, one change after another."""

    changes: list[Change] = field(default_factory=lambda: [Change(-1, None, -1)])

    def allowed(self, at: int, *, durable: bool) -> list[Any]:
        """The values that it may have after a crash; `durable`: acknowledged changes survive."""
        begun = [each for each in self.changes if each.begun < at]
        done = [n for n, each in enumerate(begun) if each.done is not None and each.done <= at]
        return [each.value for each in begun[max(done) if durable else 0 :]]


@dataclass
class Sent(Change):
    """A record (`value`) of one partition; `transaction` is the register of its outcome."""

    key: bytes | None = None
    offset: int | None = None
    transaction: Register | None = None


@dataclass(frozen=True)
class Answer:
    """A batch of an idempotent producer that was acknowledged."""

    partition: tuple[str, int]
    batch: bytes
    offset: int
    done: int

    async def comes_again(self, client: Any) -> bool:
        """Whether the batch, sent once more, is taken for the one that is there."""
        return await produce(client, self.partition, self.batch) == (OK, self.offset)


class History:
    """Requests and responses, in the order of the disk's operations."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.registers: dict[tuple[Any, ...], Register] = defaultdict(Register)
        self.records: dict[tuple[str, int], list[Sent]] = defaultdict(list)
        self.answers: list[Answer] = []
        # Offsets in transactions that were aborted, or not ended.
        self.unfinished: dict[tuple[Any, ...], list[int]] = defaultdict(list)

    @asynccontextmanager
    async def change(self, key: tuple[Any, ...], value: Any) -> AsyncIterator[Register]:
        """Inside, a client requests a change; on leaving, it has been acknowledged."""
        register = self.registers[key]
        change = Change(self.disk.now, value)
        register.changes.append(change)
        yield register
        change.done = self.disk.now

    def newest_answers(self, at: int) -> list[Answer]:
        """The last one of each partition that nothing is compacted in, before a crash."""
        newest = {each.partition: each for each in self.answers if each.done <= at}
        return [each for each in newest.values() if each.partition[0] != "keyed"]

    def register(self) -> Register:
        """A thing without a name: the outcome of a transaction."""
        return Register()

    @asynccontextmanager
    async def deciding(self, register: Register, value: Any) -> AsyncIterator[None]:
        """The same as `change` for such a thing."""
        change = Change(self.disk.now, value)
        register.changes.append(change)
        yield
        change.done = self.disk.now

    def send(self, partition: tuple[str, int], value: bytes, **more: Any) -> Sent:
        sent = Sent(self.disk.now, value, **more)
        self.records[partition].append(sent)
        return sent

    def acknowledged(self, sent: Sent, offset: int) -> None:
        sent.offset, sent.done = offset, self.disk.now
