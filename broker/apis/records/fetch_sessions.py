"""Fetch sessions (KIP-227): a client names its partitions once, and hears of those with news.

A session remembers the partitions of a client and what the last response said about each. It is known by
its id, whatever the connection, and its epoch tells a repeated or lost request: then the client starts over.

Differs from Kafka: sessions of replicas have no privilege, as there are none, and a large session does not
take the place of a small one.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...protocol.fetch_request import FetchPartition
    from ...protocol.fetch_response import Shown
    from ...protocol.produce_frames import TopicKey
    from ...topics.topic import Partition


MOST_SESSIONS: Final = 1000
"""As many as Kafka keeps by default (max.incremental.fetch.session.cache.slots)."""
IDLE_SECONDS: Final = 120.0
"""After so long without a request a session makes room for another."""

MOST_PARTITIONS: Final = 200_000
"""Partitions of all sessions together; each takes about 400 bytes. Kafka has no such limit."""

_LARGEST = 2**31 - 1

MOST_IDLE: Final = 2000
"""Fetches without a session whose responses are remembered; each takes up to 30 KiB."""
IDLE: Final = b"idle"

Topics: TypeAlias = "Sequence[tuple[TopicKey, Sequence[FetchPartition]]]"


class Resting(NamedTuple):
    """A partition of which the client knows all, and has read all."""

    partition: Partition
    high_watermark: int
    log_start_offset: int
    read_committed: bool


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions of one client.

    Attributes:
        session_id: above 0.
        epoch: that of the next request.
        by_id: whether topics are named by their ids.
        used_at: time of the last request (monotonic seconds).
    """

    session_id: int
    by_id: bool
    used_at: float
    epoch: int = 1
    _resting: Sequence[Resting] = ()
    _wanted: dict[tuple[TopicKey, int], FetchPartition] = field(default_factory=dict)
    _shown: dict[tuple[TopicKey, int], Shown] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._wanted)

    def update(self, changed: Topics, forgotten: Sequence[tuple[TopicKey, Sequence[int]]]) -> None:
        """Take partitions in, with new offsets and limits, and let others go."""
        if changed or forgotten:
            self._resting = ()
        for key, indexes in forgotten:
            for index in indexes:
                self._wanted.pop((key, index), None)
                self._shown.pop((key, index), None)
        for key, partitions in changed:
            for each in partitions:
                self._wanted[key, each.partition_index] = each

    def turn(self) -> None:
        """Count a request: the next one has the next epoch."""
        self.epoch = 1 if self.epoch == _LARGEST else self.epoch + 1

    def topics(self) -> Topics:
        """Return all partitions, those that had records last at the end."""
        return [
            (key, [each for _, each in group])
            for key, group in groupby(self._wanted.items(), key=lambda item: item[0][0])
        ]

    def has_news(self, key: TopicKey, index: int, now: Shown) -> bool:
        """Whether the client has not been told this yet."""
        return self._shown.get((key, index)) != now

    def responded(
        self, key: TopicKey, index: int, shown: Shown | None, *, has_records: bool
    ) -> None:
        """Note what a response says of a partition; None for an error: the next response has it again."""
        name = (key, index)
        if shown is None:
            self._shown.pop(name, None)
        else:
            self._shown[name] = shown
        if has_records and (wanted := self._wanted.pop(name, None)) is not None:
            self._wanted[name] = wanted  # the others come first in the next response

    def rest(self, resting: Sequence[Resting]) -> None:
        """Note that the client knows all of these partitions, which are all of the session."""
        self._resting = resting

    def still_resting(self, *, read_committed: bool) -> Sequence[Resting]:
        """Return the partitions if all are as at `rest`; none if there may be news for this reader."""
        if not are_resting(self._resting, read_committed=read_committed):
            self._resting = ()
        return self._resting


def are_resting(partitions: Sequence[Resting], *, read_committed: bool) -> bool:
    """Whether there is nothing new about any of these partitions for this reader."""
    for partition, high_watermark, log_start_offset, committed_only in partitions:
        if (
            partition.high_watermark != high_watermark
            or committed_only != read_committed
            or partition.closed
            or partition.log.log_start_offset != log_start_offset
        ):
            return False
    return True


class FetchSessions:
    """The sessions of a broker: at most so many, of so many partitions; those that are in use stay.

    Attributes:
        evictions: number of sessions that made room for others.
    """

    def __init__(
        self,
        most: int = MOST_SESSIONS,
        most_partitions: int = MOST_PARTITIONS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.evictions = 0
        self._most = most
        self._most_partitions = most_partitions
        self._clock = clock
        self._idle: deque[dict[bytes, Any]] = deque()
        self._sessions: dict[int, FetchSession] = {}  # the one that was used last at the end

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Number of partitions in all sessions."""
        return sum(map(len, self._sessions.values()))

    def create(self, topics: Topics, *, by_id: bool) -> FetchSession | None:
        """Return a new session of these partitions; None if there are none, or if there is no room."""
        count = sum(len(partitions) for _, partitions in topics)
        if not count or not self.make_room(1, count):
            return None
        now = self._clock()
        session_id = random.randint(1, _LARGEST)  # noqa: S311  no secret: rights are checked at each fetch
        while session_id in self._sessions:
            session_id = random.randint(1, _LARGEST)  # noqa: S311
        session = self._sessions[session_id] = FetchSession(session_id, by_id, now)
        session.update(topics, ())
        return session

    def make_room(self, sessions: int = 0, partitions: int = 0) -> bool:
        """Evict idle sessions until there is room for so many more; return whether there is."""
        while (
            len(self._sessions) + sessions > self._most
            or self.partitions + partitions > self._most_partitions
        ):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or self._clock() - oldest.used_at < IDLE_SECONDS:
                return False
            del self._sessions[oldest.session_id]
            self.evictions += 1
        return True

    def remember_idle(self, memory: dict[bytes, Any], idle: object) -> None:
        """Keep a fetch without a session that found nothing in the memory of its client, as `IDLE`."""
        if IDLE not in memory:
            self._idle.append(memory)
            if len(self._idle) > MOST_IDLE:
                self._idle.popleft().pop(IDLE, None)
        memory[IDLE] = idle

    def use(self, session_id: int) -> FetchSession | None:
        """Return a session that continues."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.used_at = self._clock()
            self._sessions[session_id] = session
        return session

    def end(self, session_id: int) -> None:
        """Forget a session, if it exists."""
        self._sessions.pop(session_id, None)
