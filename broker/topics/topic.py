"""A topic, as handlers see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.topics.names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from broker.log.config import LogConfig
    from broker.topics.partition import Partition

__all__ = ["Topic"]


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """A topic; `settings` are its own, `config` is what holds for its logs."""

    name: str
    topic_id: UUID
    partitions: Sequence[Partition]
    config: LogConfig
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS
