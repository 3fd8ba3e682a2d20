"""What consumers say to each other inside JoinGroup and SyncGroup: subscriptions and assignments.

A classic group passes them on unread; a group of KIP-848 reads those of its classic members. Source: Kafka's
ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ...protocol.cursor import Cursor, MalformedRequest
from ...protocol.messages import default_message, read_message, write_message
from .group_types import by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CONSUMER_PROTOCOL",
    "Subscription",
    "read_assignment",
    "read_subscription",
    "write_assignment",
]

CONSUMER_PROTOCOL: Final = "consumer"
"""Protocol type of groups that assign partitions; Kafka Connect uses another one."""

_NEWEST: Final = 3
_VERSION_BYTES: Final = 2

NamedPartitions = frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member reads, and which partitions it still holds while it joins."""

    version: int
    topics: tuple[str, ...]
    owned: NamedPartitions = frozenset()
    rack_id: str | None = None


def read_subscription(metadata: bytes) -> Subscription:
    """Read a member's metadata. Raises MalformedRequest."""
    version, message = _read("subscription", metadata)
    owned = getattr(message, "owned_partitions", ())  # version 0 has none
    rack_id = getattr(message, "rack_id", None)
    return Subscription(version, tuple(message.topics), _partitions(owned), rack_id)


def read_assignment(assignment: bytes) -> tuple[NamedPartitions, bytes]:
    """Read the partitions, and the data that the leader's assignor added. Raises MalformedRequest."""
    if not assignment:
        return frozenset(), b""
    _, message = _read("assignment", assignment)
    return _partitions(message.assigned_partitions), message.user_data or b""


def write_assignment(version: int, partitions: Iterable[tuple[str, int]]) -> bytes:
    """Write an assignment in the version of the member's subscription, or the newest one."""
    message_type = _message_type("assignment", version)
    element = import_module(message_type.__module__).TopicPartition
    message = default_message(
        message_type,
        assigned_partitions=tuple(
            element(topic=topic, partitions=tuple(indexes))
            for topic, indexes in by_topic(partitions).items()
        ),
        user_data=b"",
    )
    head = int(message_type.__version__).to_bytes(_VERSION_BYTES, "big")
    return head + write_message(message)


def _read(kind: str, data: bytes) -> tuple[int, Any]:
    version = Cursor(memoryview(data)).int16()
    if version < 0:
        raise MalformedRequest(f"version {version} of a consumer's {kind}")
    message = read_message(_message_type(kind, version), memoryview(data)[_VERSION_BYTES:])
    return version, message


def _message_type(kind: str, version: int) -> Any:
    """Return the type; newer versions begin with the fields of the newest one here."""
    module = f"kio.schema.consumer_protocol_{kind}.v{min(version, _NEWEST)}.data"
    return getattr(import_module(module), f"ConsumerProtocol{kind.title()}")


def _partitions(topics: Iterable[Any]) -> NamedPartitions:
    return frozenset((each.topic, int(index)) for each in topics for index in each.partitions)
