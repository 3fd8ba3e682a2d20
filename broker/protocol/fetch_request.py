"""Fetch requests, versions 4 to 18, read by hand: the partitions of a topic at once.

Version 5 added the log start offset, 7 sessions (KIP-227), 9 leader epochs, 11 the client's rack, 12 compact
types, 13 topic ids. From 15 on a replica names itself in a tagged field; those fields are not read.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, NamedTuple

from .cursor import MAX_ELEMENTS, Cursor, MalformedRequest

if TYPE_CHECKING:
    from .produce_frames import TopicKey


NO_SESSION = 0
"""The id of no session."""
INITIAL_EPOCH = 0
"""The epoch of a full fetch that wants a session."""
FINAL_EPOCH = -1
"""The epoch of a full fetch that ends its session, or has none."""
FULL_FETCHES = (INITIAL_EPOCH, FINAL_EPOCH)

_FIRST_WITH_SESSIONS = 7
_FIRST_WITH_LEADER_EPOCHS = 9
_FIRST_WITH_RACKS = 11
_FIRST_COMPACT = 12
_FIRST_WITH_IDS = 13
_FIRST_WITHOUT_REPLICA = 15

_HEAD = Struct(">iiib")  # longest wait, bytes at least, bytes at most, isolation level
_SESSION = Struct(">ii")
_REPLICA_BYTES = 4
# Index, leader epoch (9), offset, epoch of the last fetch (12), log start (5), bytes at most.
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iq8xi")
_PARTITION_V9 = Struct(">iiq8xi")
_PARTITION_V12 = Struct(">iiq12xiB")  # and the number of tagged fields
_NO_EPOCH = -1
_MOST_REMEMBERED_BYTES = 1024  # of a request without its partitions


class FetchPartition(NamedTuple):
    """A partition to fetch from; `leader_epoch` is the one that the client knows, -1 for none."""

    partition_index: int
    leader_epoch: int
    offset: int
    max_bytes: int


class FetchFrame(NamedTuple):
    """A request.

    Attributes:
        max_wait_ms: how long to wait for `min_bytes`.
        isolation_level: 1 for read_committed.
        session_id, session_epoch: see KIP-227; a full fetch of no session before version 7.
        topics: the partitions, by the name or id of their topic; with a session those that changed.
        forgotten: partitions that leave the session.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]


class _Shape(NamedTuple):
    """A request of one topic without its head, and without its partitions, from `start` to `end`."""

    size: int
    before: bytes
    start: int
    end: int
    after: bytes
    topic: TopicKey


class FetchReader:
    """Reads the requests of one client.

    It remembers the last request of one topic: a consumer repeats it again and again, with other offsets.
    """

    def __init__(self, version: int, max_elements: int = MAX_ELEMENTS) -> None:
        self._version = version
        self._max_elements = max_elements
        self._compact = version >= _FIRST_COMPACT
        self._layout = _layout(version)
        self._shape: _Shape | None = None

    def read(self, body: memoryview) -> FetchFrame:
        """Read a request; raise MalformedRequest, TooManyElements for more than `max_elements`."""
        version = self._version
        session_id, session_epoch = NO_SESSION, FINAL_EPOCH
        try:
            at = 0 if version >= _FIRST_WITHOUT_REPLICA else _REPLICA_BYTES
            wait_ms, least, most, isolation = _HEAD.unpack_from(body, at)
            at += _HEAD.size
            if version >= _FIRST_WITH_SESSIONS:
                session_id, session_epoch = _SESSION.unpack_from(body, at)
                at += _SESSION.size
        except error:
            raise MalformedRequest(f"a Fetch request of {len(body)} bytes has no head") from None
        head = (wait_ms, least, most, isolation, session_id, session_epoch)
        shape = self._shape
        if (
            shape is not None
            and len(body) == shape.size
            and (data := bytes(body)).startswith(shape.before, at)
            and data.endswith(shape.after)
        ):
            partitions = self._untagged(data[shape.start : shape.end])
            if partitions is not None:
                return FetchFrame(*head, [(shape.topic, partitions)], [])
        return FetchFrame(*head, *self._read_topics(body, at))

    def _read_topics(
        self, body: memoryview, at: int
    ) -> tuple[list[tuple[TopicKey, list[FetchPartition]]], list[tuple[TopicKey, list[int]]]]:
        version, compact = self._version, self._compact
        cursor = Cursor(body, at, self._max_elements)
        start = end = at
        topics: list[tuple[TopicKey, list[FetchPartition]]] = []
        for _ in range(cursor.array_length(compact=compact)):
            key = _topic(cursor, version)
            count = cursor.array_length(compact=compact)
            start = cursor.position
            topics.append((key, self._read_partitions(body, cursor, count)))
            end = cursor.position
            if compact:
                cursor.skip_tagged_fields()
        forgotten: list[tuple[TopicKey, list[int]]] = []
        if version >= _FIRST_WITH_SESSIONS:
            for _ in range(cursor.array_length(compact=compact)):
                key = _topic(cursor, version)
                count = cursor.array_length(compact=compact)
                forgotten.append((key, [cursor.int32() for _ in range(count)]))
                if compact:
                    cursor.skip_tagged_fields()
        if version >= _FIRST_WITH_RACKS:
            cursor.string(compact=compact)
        if (
            len(topics) == 1
            and not forgotten
            and len(body) - (end - start) <= _MOST_REMEMBERED_BYTES
            and end - start == self._layout.size * len(topics[0][1])
        ):
            before, after = bytes(body[at:start]), bytes(body[end:])
            self._shape = _Shape(len(body), before, start, end, after, topics[0][0])
        return topics, forgotten

    def _read_partitions(
        self, body: memoryview, cursor: Cursor, count: int
    ) -> list[FetchPartition]:
        layout = self._layout
        start, end = cursor.position, cursor.position + count * layout.size
        if end <= len(body):
            # Where no element has tagged fields, all have the same size.
            untagged = self._untagged(body[start:end])
            if untagged is not None:
                cursor.position = end
                return untagged
        if not self._compact:
            cursor.skip(count * layout.size)  # raises
        partitions = []
        for _ in range(count):
            at = cursor.position
            cursor.skip(layout.size - 1)
            cursor.skip_tagged_fields()
            partitions.append(FetchPartition(*layout.unpack_from(body, at)[:-1]))
        return partitions

    def _untagged(self, data: memoryview | bytes) -> list[FetchPartition] | None:
        """Return the partitions in `data`; None if any of them has tagged fields."""
        found = self._layout.iter_unpack(data)
        if self._compact:
            elements = list(found)
            if any(tags for *_, tags in elements):
                return None
            return [FetchPartition(*fields) for *fields, _ in elements]
        if self._version >= _FIRST_WITH_LEADER_EPOCHS:
            return list(map(FetchPartition._make, found))
        return [FetchPartition(index, _NO_EPOCH, offset, most) for index, offset, most in found]


def _topic(cursor: Cursor, version: int) -> TopicKey:
    if version >= _FIRST_WITH_IDS:
        return cursor.uuid()
    return cursor.string(compact=version >= _FIRST_COMPACT) or ""


def _layout(version: int) -> Struct:
    if version >= _FIRST_COMPACT:
        return _PARTITION_V12
    if version >= _FIRST_WITH_LEADER_EPOCHS:
        return _PARTITION_V9
    return _PARTITION_V5 if version >= 5 else _PARTITION_V4
