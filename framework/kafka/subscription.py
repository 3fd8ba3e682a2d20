"""Which topics are read: named ones, or those whose names match a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..settings import GroupSettings, Settings


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics, by name or by pattern: exactly one of the two is set.

    `topic in subscription` says whether partitions of a topic are read, if it exists.

    Attributes:
        topics: all partitions of these topics.
        pattern: all partitions of the topics whose whole name matches.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def __contains__(self, topic: object) -> bool:
        if self.pattern is not None:
            return isinstance(topic, str) and re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern}"
        return ", ".join(self.topics)


def subscription_of(settings: Settings | GroupSettings) -> Subscription | None:
    """Return the topics of settings; None if they name none (`GroupSettings`)."""
    if not settings.topics and settings.topic_pattern is None:
        return None
    return Subscription(settings.topics, settings.topic_pattern)
