"""The subscriptions of consumers inside JoinGroup, which a classic group passes on unread."""

from __future__ import annotations

from typing import Final

from ...protocol.cursor import Cursor, MalformedRequest

CONSUMER_PROTOCOL: Final = "consumer"
"""Protocol type of groups that assign partitions; Kafka Connect uses another one."""


def subscribed_topics(metadata: bytes) -> set[str]:
    """Return the topics of a member's subscription (ConsumerProtocolSubscription).

    It is read as version 0, with which all versions begin. Raises MalformedRequest.
    """
    cursor = Cursor(memoryview(metadata))
    cursor.int16()  # the version
    topics = set()
    for _ in range(cursor.array_length(compact=False, nullable=False)):
        name = cursor.string(compact=False)
        if name is None:
            raise MalformedRequest("a topic without a name")
        topics.add(name)
    cursor.data(compact=False)  # what the assignor adds
    return topics
