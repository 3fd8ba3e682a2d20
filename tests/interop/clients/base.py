"""One face for every Kafka client, so that each scenario is written once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: tuple[Codec, ...] = get_args(Codec)
Acks = Literal["0", "1", "all"]
Headers = tuple[tuple[str, bytes | None], ...]

HEARTBEAT_MS = 100
SESSION_MS = 6_000
METADATA_MS = 1_000
"""After so long a group's leader that knew no partitions, as its question met a kill, asks for them again."""
POLL_SECONDS = 0.1
TIMEOUT = 60.0


class Message(NamedTuple):
    """A record to produce."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()


class Record(NamedTuple):
    """A consumed record; `timestamp` in milliseconds since the epoch."""

    partition: int
    offset: int
    timestamp: int
    message: Message


class At(NamedTuple):
    """The first record that is not older than `timestamp` (milliseconds since the epoch)."""

    timestamp: int


Start = Literal["beginning", "end"] | int | At


class TooLarge(Exception):
    """The broker refused a message because of its size."""


class Refused(Exception):
    """The broker refused a request of an admin client; `code` is the protocol's error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Producer(Protocol):
    """A producer that retries until the broker has acknowledged."""

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int = 0) -> None:
        """Returns when all are acknowledged (with acks 0: sent); raises TooLarge."""


class Reader(Protocol):
    """A consumer of one partition, without a group."""

    async def read(self, count: int) -> list[Record]:
        """The next `count` records; waits for them."""


class Journal:
    """The state of one group's members; a test waits for conditions about it."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.records: list[Record] = []
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is looked at after everything that a member does."""
        with anyio.fail_after(TIMEOUT):
            while not condition():
                for member in self.members:
                    member.check()
                self._changed.clear()
                await self._changed.wait()

    async def until_assigned(self, partitions: int) -> None:
        """Wait until every partition is assigned, each to one member, and every member has some."""
        everything = list(range(partitions))
        await self.until(
            lambda: (
                sorted(p for member in self.members for p in member.assignment) == everything
                and all(member.assignment for member in self.members)
            )
        )

    async def until_read(self, values: Iterable[bytes]) -> None:
        """Wait until each of the values was read by some member."""
        wanted = set(values)

        def missing() -> set[bytes]:
            return wanted - {record.message.value or b"" for record in self.records}

        try:
            await self.until(lambda: not missing())
        except TimeoutError:
            assigned = [sorted(member.assignment) for member in self.members]
            raise AssertionError(
                f"{len(missing())} of {len(wanted)} values were not read; assigned: {assigned}"
            ) from None

    def changed(self) -> None:
        """Have the conditions looked at; from any thread."""
        self._loop.call_soon_threadsafe(self._changed.set)


class Member:
    """A group member: it reads its partitions from where the group was, and commits what it read."""

    def __init__(self, journal: Journal) -> None:
        self.assignment: frozenset[int] = frozenset()
        self._journal = journal
        self._running: asyncio.Future[Any] | None = None
        journal.members.append(self)

    def lives_in(self, running: asyncio.Future[Any]) -> None:
        """The future that is done when the member has stopped, or failed."""
        self._running = running
        running.add_done_callback(lambda _: self._journal.changed())

    def check(self) -> None:
        """Raise what ended the member, if something did."""
        if self._running is not None and self._running.done():
            self._running.result()
            raise RuntimeError("a member has ended")

    def assigned(self, partitions: Iterable[int]) -> None:
        """The member's partitions are these from now on."""
        assignment = frozenset(partitions)
        if assignment != self.assignment:
            self.assignment = assignment
            self._journal.changed()

    def read(self, records: Iterable[Record]) -> None:
        """The member has read these records."""
        self._journal.records.extend(records)
        self._journal.changed()

    def left(self) -> None:
        """The member is no longer in the group."""
        self._journal.members.remove(self)
        self._journal.changed()


class Group(NamedTuple):
    """A group's description; states by the names of the protocol."""

    state: str
    members: int


class Admin(Protocol):
    """Everything that the client's admin API and this broker have in common; may raise Refused."""

    async def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None: ...
    async def delete_topic(self, name: str) -> None: ...
    async def topics(self) -> Mapping[str, int]:
        """All topics and how many partitions each has."""

    async def topic_config(self, name: str) -> Mapping[str, str]: ...
    async def broker_config(self) -> Mapping[str, str]: ...
    async def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """Change these settings of a topic."""

    async def add_partitions(self, name: str, total: int) -> None: ...
    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Returns the first offset that is left; -1 for `before` means all."""

    async def groups(self) -> set[str]: ...
    async def group(self, name: str) -> Group: ...
    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """The offset that the group has committed for each partition that has one."""

    async def delete_group(self, name: str) -> None: ...


class Client(Protocol):
    """A Kafka client library or program."""

    @property
    def name(self) -> str: ...

    @property
    def missing(self) -> str | None:
        """Why the client cannot be used on this machine."""

    def has(self, codec: Codec) -> bool:
        """Whether the client is installed with this codec."""

    def can_send(self, message: Message) -> bool:
        """Whether the client's interface can express such a message; all can be read."""

    def producer(
        self, servers: str, *, codec: Codec = "none", acks: Acks = "all", idempotent: bool = False
    ) -> AbstractAsyncContextManager[Producer]: ...

    def reader(
        self, servers: str, topic: str, start: Start = "beginning", *, partition: int = 0
    ) -> AbstractAsyncContextManager[Reader]:
        """Its position is fixed once it is entered."""

    def member(
        self, servers: str, group: str, topic: str, journal: Journal
    ) -> AbstractAsyncContextManager[Member]:
        """Leaves the group at the end."""


class AdminClient(Protocol):
    """A Kafka client that also has an admin API."""

    @property
    def name(self) -> str: ...

    @property
    def deletes_groups(self) -> bool:
        """Whether the client has such an operation."""

    def admin(self, servers: str) -> AbstractAsyncContextManager[Admin]: ...
