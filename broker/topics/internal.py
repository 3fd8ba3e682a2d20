"""The logs of the coordinators as topics, as Kafka has them: to be listed and read, not to be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

from broker.topics.config import log_config
from broker.topics.partition import Partition
from broker.topics.topic import Topic

if TYPE_CHECKING:
    from broker.log.config import LogConfig
    from broker.state_log import StateLog

__all__ = ["internal_topic"]

_IDS: Final = UUID("5f0a4c2e-6f0b-4c36-9a52-0f1d2f8f3b7a")
_SETTINGS: Final = {"cleanup.policy": "compact"}


def internal_topic(name: str, log: StateLog, defaults: LogConfig) -> Topic:
    """One partition, whose records can be read as soon as they are written (or synced, see `StateLog`).

    The newest record of each key is kept, as in a compacted topic. The id is the same on every broker.
    """
    partition = Partition(name, 0, log.log)
    log.on_readable = partition.advance
    return Topic(
        name=name,
        topic_id=uuid5(_IDS, name),
        partitions=(partition,),
        config=log_config(defaults, _SETTINGS.items()),
        settings=_SETTINGS,
    )
