"""Where reading begins: with nothing committed, and when the next offset is not there any more."""
# ruff: noqa: SLF001  aiokafka's internals; framework.kafka.contract checks them

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import aiokafka
import anyio
import structlog
from aiokafka.errors import (
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from framework.errors import OffsetOutOfRange
from framework.kafka.offsets import fetch_offsets
from framework.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from framework.kafka.connection import ConsumerConfig

__all__ = ["LOST_POSITION", "Beginnings", "mend_position"]

LOST_POSITION = (OffsetOutOfRangeError, NoOffsetForPartitionError)
"""The errors of aiokafka that `mend_position` understands."""

_log = structlog.get_logger(__name__)

_TELL_RANGE = 5.0  # seconds to ask for a log's range, before we do without


class Beginnings(NamedTuple):
    """Where reading begins in partitions of which the group has committed nothing.

    `latest` skips what was there before the group was. A partition that is younger than the group has
    nothing to skip: its records came while the group was reading, or should have been, so it is read
    from its beginning. (Kafka's own clients begin at its end when they hear of it, and lose what was
    produced until then: KAFKA-12478.)

    Attributes:
        partitions: what there was when the consumer started.
        begun: topics of which the group had committed something by then.
    """

    partitions: frozenset[TopicPartition]
    begun: frozenset[str]

    @classmethod
    async def look(cls, consumer: Any, config: ConsumerConfig) -> Beginnings:
        """Ask what there is before joining the group: who joins later finds the starts of all committed.

        Raises ConsumerError when the broker does not tell.
        """
        if config.auto_offset_reset != "latest":
            return cls(frozenset(), frozenset())
        cluster, topics = consumer._client.cluster, set(config.topics)
        if config.topic_pattern is not None:
            cluster = await consumer._client.fetch_all_metadata()
            topics = {name for name in cluster.topics() if re.fullmatch(config.topic_pattern, name)}
        partitions = frozenset(
            TopicPartition(topic, number)
            for topic in topics
            for number in cluster.partitions_for_topic(topic) or ()
        )
        committed = await fetch_offsets(consumer._coordinator, partitions, config.request_timeout)
        begun = {partition.topic for partition, entry in committed.items() if entry is not None}
        return cls(partitions, frozenset(begun))

    def is_new(self, partition: TopicPartition) -> bool:
        """Whether the partition came when the group was already reading the topic."""
        return partition.topic in self.begun or partition not in self.partitions

    async def find(
        self, consumer: Any, config: ConsumerConfig, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The offset of each at which reading begins; empty if the broker does not tell in time.

        Raises `OffsetOutOfRange` where the configuration says that this is an error.
        """
        asked = sorted(partitions)
        if asked and config.auto_offset_reset == "error":
            await mend_position(consumer, NoOffsetForPartitionError(asked[0]), config, self)
        late = config.auto_offset_reset == "latest"
        at_end = [p for p in asked if late and not self.is_new(p)]
        found: dict[Any, int] = {}
        with suppress(KafkaError, TimeoutError), anyio.fail_after(_TELL_RANGE):
            if at_end:
                found |= await consumer.end_offsets([aiokafka.TopicPartition(*p) for p in at_end])
            if at_start := [aiokafka.TopicPartition(*p) for p in asked if p not in at_end]:
                found |= await consumer.beginning_offsets(at_start)
        return {TopicPartition(*partition): offset for partition, offset in found.items()}


async def mend_position(
    consumer: Any,
    error: KafkaError,
    config: ConsumerConfig,
    beginnings: Beginnings,
    on_skip: Callable[[TopicPartition], None] = lambda _: None,
) -> TopicPartition:
    """Move a partition to where the configuration says; returns which one.

    Args:
        on_skip: told when records that the group has not read are left out.

    Raises:
        OffsetOutOfRange: the configuration says that this is an error, or the offset is beyond the end:
            then the log is not the one that was read before, and any place to go on would be a guess.
    """
    out_of_range = isinstance(error, OffsetOutOfRangeError)
    if out_of_range:
        ((partition, offset),) = error.args[0].items()
        option, policy = "on_out_of_range", config.on_out_of_range
        problem = f"offset {offset} is not on the broker (any more)"
    else:
        partition, offset = error.args[0], -1
        option, policy = "auto_offset_reset", config.auto_offset_reset
        problem = f"group {config.group} has committed no offset"
    partition, where = TopicPartition(*partition), aiokafka.TopicPartition(*partition)
    if out_of_range and where in consumer.paused():
        return partition  # an answer that was under way when it was paused; after `resume` it comes again
    log = None
    if out_of_range or policy == "error":
        log = await _range_of(consumer, where)
    described = (
        "the broker does not say which offsets it has"
        if log is None
        else f"the log has offsets {log[0]} to {log[1]} (exclusive)"
    )
    if log is not None and offset > log[1]:
        raise OffsetOutOfRange(
            f"{partition}: {problem}; {described}. The group {config.group} was further than this log "
            "reaches, so it is not the log that it has read: was the topic created anew, or the broker "
            "started with another data directory, or has it lost data? Bring the old log back, or reset "
            "the group's offsets (kmr offsets reset), or use another group",
            partition,
        ) from error
    if policy == "error":
        raise OffsetOutOfRange(
            f'{partition}: {problem}; {described}. Set {option} to "earliest" or "latest", or reset the '
            "group's offsets",
            partition,
        ) from error
    if out_of_range:
        if log is None:
            return partition  # where it is: the next fetch asks again
        on_skip(partition)
        _log.error(
            "going on at another offset: records in between are not read",
            partition=str(partition),
            problem=problem,
            log=described,
            on_out_of_range=policy,
        )
    with suppress(IllegalStateError):  # it is not ours any more
        if policy == "earliest" or (not out_of_range and beginnings.is_new(partition)):
            await consumer.seek_to_beginning(where)
        else:
            await consumer.seek_to_end(where)
    return partition


async def _range_of(consumer: Any, partition: Any) -> tuple[int, int] | None:
    """The first offset of a log, and the one after its last; None if the broker does not say."""
    try:
        with anyio.fail_after(_TELL_RANGE):
            first = await consumer.beginning_offsets([partition])
            end = await consumer.end_offsets([partition])
    except (KafkaError, TimeoutError):
        return None
    return first[partition], end[partition]
