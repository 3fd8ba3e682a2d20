"""Fetch requests, versions 4 to 18, read by hand: the partitions of a topic at once.

Version 5 added the log start offset, 7 sessions (KIP-227), 9 leader epochs, 11 the client's rack, 12 compact
types, 13 topic ids. From 15 on a replica names itself in a tagged field; those fields are not read.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, NamedTuple

from .cursor import MAX_ELEMENTS, Cursor, MalformedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .produce_frames import TopicKey

__all__ = [
    "FINAL_EPOCH",
    "FULL_FETCHES",
    "INITIAL_EPOCH",
    "NO_SESSION",
    "FetchFrame",
    "FetchPartition",
    "read_fetch_request",
]

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
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqiB")  # and the number of tagged fields
_NO_EPOCH = -1


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


def read_fetch_request(
    body: memoryview, version: int, max_elements: int = MAX_ELEMENTS
) -> FetchFrame:
    """Read a request; raise MalformedRequest, TooManyElements for more than `max_elements`."""
    compact = version >= _FIRST_COMPACT
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
    cursor = Cursor(body, at, max_elements)
    read_partitions = _partitions_of(version)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(cursor.array_length(compact=compact)):
        key = _topic(cursor, version)
        topics.append((key, read_partitions(body, cursor)))
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
    return FetchFrame(wait_ms, least, most, isolation, session_id, session_epoch, topics, forgotten)


def _topic(cursor: Cursor, version: int) -> TopicKey:
    if version >= _FIRST_WITH_IDS:
        return cursor.uuid()
    return cursor.string(compact=version >= _FIRST_COMPACT) or ""


def _partitions_of(version: int) -> Callable[[memoryview, Cursor], list[FetchPartition]]:
    if version >= _FIRST_COMPACT:
        return _read_v12
    if version >= _FIRST_WITH_LEADER_EPOCHS:
        return _read_v9
    return _read_v5 if version >= 5 else _read_v4


def _read_v4(body: memoryview, cursor: Cursor) -> list[FetchPartition]:
    found = _fixed(body, cursor, _PARTITION_V4)
    return [FetchPartition(index, _NO_EPOCH, offset, most) for index, offset, most in found]


def _read_v5(body: memoryview, cursor: Cursor) -> list[FetchPartition]:
    found = _fixed(body, cursor, _PARTITION_V5)
    return [FetchPartition(index, _NO_EPOCH, offset, most) for index, offset, _, most in found]


def _read_v9(body: memoryview, cursor: Cursor) -> list[FetchPartition]:
    found = _fixed(body, cursor, _PARTITION_V9)
    return [FetchPartition(index, epoch, offset, most) for index, epoch, offset, _, most in found]


def _fixed(body: memoryview, cursor: Cursor, layout: Struct) -> Iterable[tuple[int, ...]]:
    """Read an array of elements of a fixed size."""
    count = cursor.array_length(compact=False)
    start = cursor.position
    cursor.skip(count * layout.size)
    return layout.iter_unpack(body[start : cursor.position])


def _read_v12(body: memoryview, cursor: Cursor) -> list[FetchPartition]:
    layout = _PARTITION_V12
    count = cursor.array_length(compact=True)
    start, end = cursor.position, cursor.position + count * layout.size
    if end <= len(body):
        # Where no element has tagged fields, all have the same size.
        found = list(layout.iter_unpack(body[start:end]))
        if not any(tags for *_, tags in found):
            cursor.position = end
            return [
                FetchPartition(index, epoch, offset, most)
                for index, epoch, offset, _, _, most, _ in found
            ]
    partitions = []
    for _ in range(count):
        at = cursor.position
        cursor.skip(layout.size - 1)
        cursor.skip_tagged_fields()
        index, epoch, offset, _, _, most, _ = layout.unpack_from(body, at)
        partitions.append(FetchPartition(index, epoch, offset, most))
    return partitions
