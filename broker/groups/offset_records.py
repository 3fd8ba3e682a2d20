"""The records of `__consumer_offsets`, in Kafka's own format, so that its tools can read them.

Keys: version 1 is a committed offset (group, topic, partition), version 2 a group. Values: an offset
has version 3, a group version 3; no value is a tombstone. Source: Kafka's OffsetCommitKey,
OffsetCommitValue, GroupMetadataKey and GroupMetadataValue message definitions.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from broker.membership.types import GroupSnapshot, MemberSnapshot
from broker.state_records import MalformedRecord, RecordReader, encode_string

__all__ = [
    "CommittedOffset",
    "GroupKey",
    "OffsetKey",
    "StoredGroup",
    "decode_group",
    "decode_key",
    "decode_offset",
    "encode_group",
    "encode_group_key",
    "encode_offset",
    "encode_offset_key",
]

_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
_OFFSET_VALUE: Final = 3
_GROUP_VALUE: Final = 3
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_OFFSET_AND_EPOCH: Final = struct.Struct(">hqi")
_INT64: Final = struct.Struct(">q")


class OffsetKey(NamedTuple):
    """Whose offset, of which partition."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Which group."""

    group_id: str


class CommittedOffset(NamedTuple):
    """What a group committed for one partition.

    `offset` is the next one to be consumed; `timestamp` is when it was committed, in milliseconds
    since the epoch; `leader_epoch` is -1 when the client did not say.
    """

    offset: int
    leader_epoch: int
    metadata: str
    timestamp: int


class StoredGroup(NamedTuple):
    """A generation, and when it became stable or empty (milliseconds since the epoch)."""

    snapshot: GroupSnapshot
    timestamp: int


def encode_offset_key(key: OffsetKey) -> bytes:
    """Bytes of the key; raises `ValueError` for a name of more than 32,767 bytes."""
    return (
        _INT16.pack(_OFFSET_KEY)
        + encode_string(key.group_id)
        + encode_string(key.topic)
        + _INT32.pack(key.partition)
    )


def encode_group_key(group_id: str) -> bytes:
    """Bytes of the key; raises `ValueError` for an id of more than 32,767 bytes."""
    return _INT16.pack(_GROUP_KEY) + encode_string(group_id)


def encode_offset(committed: CommittedOffset) -> bytes:
    """Bytes of the value; raises `ValueError` for metadata of more than 32,767 bytes."""
    return (
        _OFFSET_AND_EPOCH.pack(_OFFSET_VALUE, committed.offset, committed.leader_epoch)
        + encode_string(committed.metadata)
        + _INT64.pack(committed.timestamp)
    )


def encode_group(group: StoredGroup) -> bytes:
    """Bytes of the value; raises `ValueError` for a name of more than 32,767 bytes."""
    snapshot = group.snapshot
    parts = [
        _INT16.pack(_GROUP_VALUE),
        encode_string(snapshot.protocol_type),
        _INT32.pack(snapshot.generation),
        encode_string(snapshot.protocol_name),
        encode_string(snapshot.leader_id),
        _INT64.pack(group.timestamp),
        _INT32.pack(len(snapshot.members)),
    ]
    for member in snapshot.members:
        parts += (
            encode_string(member.member_id),
            encode_string(member.instance_id),
            encode_string(member.client_id),
            encode_string(member.client_host),
            _milliseconds(member.rebalance_timeout),
            _milliseconds(member.session_timeout),
            _bytes(member.metadata),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def decode_key(data: bytes) -> OffsetKey | GroupKey:
    """The key; raises `MalformedRecord`."""
    reader = RecordReader(data)
    version = reader.int16()
    if version in (0, _OFFSET_KEY):
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == _GROUP_KEY:
        return GroupKey(reader.string())
    raise MalformedRecord(f"a key of version {version}")


def decode_offset(data: bytes) -> CommittedOffset:
    """The value of an offset; raises `MalformedRecord`."""
    reader = RecordReader(data)
    version = reader.int16()
    if version != _OFFSET_VALUE:
        raise MalformedRecord(f"an offset of version {version}")
    return CommittedOffset(reader.int64(), reader.int32(), reader.string(), reader.int64())


def decode_group(data: bytes) -> StoredGroup:
    """The value of a group; raises `MalformedRecord`."""
    reader = RecordReader(data)
    version = reader.int16()
    if version != _GROUP_VALUE:
        raise MalformedRecord(f"a group of version {version}")
    protocol_type, generation = reader.string(), reader.int32()
    protocol_name, leader_id = reader.nullable_string(), reader.nullable_string()
    timestamp = reader.int64()
    members = tuple(_decode_member(reader) for _ in range(reader.int32()))
    return StoredGroup(
        GroupSnapshot(generation, protocol_type, protocol_name, leader_id, members), timestamp
    )


def _decode_member(reader: RecordReader) -> MemberSnapshot:
    member_id, instance_id = reader.string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout, session_timeout = reader.int32() / 1000, reader.int32() / 1000
    return MemberSnapshot(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        session_timeout=session_timeout,
        rebalance_timeout=rebalance_timeout,
        metadata=reader.blob(),
        assignment=reader.blob(),
    )


def _bytes(value: bytes) -> bytes:
    return _INT32.pack(len(value)) + value


def _milliseconds(seconds: float) -> bytes:
    return _INT32.pack(min(round(seconds * 1000), 0x7FFFFFFF))
