"""What members of a consumer group subscribe to, as they tell their leader.

Source: Kafka's ConsumerProtocolSubscription, versions 0 to 3, which all begin alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.wire.cursor import Cursor, MalformedRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CONSUMER_PROTOCOL", "subscribed_topics"]

CONSUMER_PROTOCOL: Final = "consumer"
"""Protocol type of groups whose members read topics; others (Kafka Connect) assign other things."""


def subscribed_topics(metadata: Iterable[bytes]) -> set[str] | None:
    """The topics of all these members; None when one of them says something else."""
    topics: set[str] = set()
    try:
        for each in metadata:
            cursor = Cursor(memoryview(each))
            cursor.int16()  # the version
            for _ in range(cursor.array_length(compact=False)):
                topics.add(cursor.string(compact=False) or "")
    except MalformedRequest:
        return None
    return topics
