"""Where reading begins without a committed offset, and where it goes on when an offset is gone."""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

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

from ..errors import OffsetOutOfRange
from ..record import TopicPartition
from .admin import log_offsets
from .group_offsets import fetch_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .connection import ConsumerConfig

NO_POSITION = (OffsetOutOfRangeError, NoOffsetForPartitionError)
"""The errors of aiokafka that `reset_position` handles."""

_log = structlog.get_logger(__name__)

_RANGE_TIMEOUT = 5.0  # seconds to ask for a log's range before going on without it


class StartPositions(NamedTuple):
    """The start offsets of partitions without a committed offset.

    `latest` skips the records from before the group's first start. A partition that is younger than the
    group has no such records, so it is read from its beginning. (Kafka's own clients begin at its end
    when they discover it, and lose the records produced until then: KAFKA-12478.)

    Attributes:
        partitions: those that existed when the consumer started.
        consumed: topics in which the group had committed an offset by then.
    """

    partitions: frozenset[TopicPartition]
    consumed: frozenset[str]

    @classmethod
    async def look_up(cls, consumer: Any, config: ConsumerConfig) -> StartPositions:
        """Ask the broker, before joining the group: a later member finds every start committed.

        Raises ConsumerError when the broker does not answer.
        """
        if config.auto_offset_reset != "latest":
            return cls(frozenset(), frozenset())
        partitions = frozenset(
            TopicPartition(topic, number)
            for topic in consumer._client.cluster.topics()
            if topic in config.subscription
            for number in consumer._client.cluster.partitions_for_topic(topic) or ()
        )
        committed = await fetch_offsets(consumer._coordinator, partitions, config.request_timeout)
        consumed = {partition.topic for partition, entry in committed.items() if entry is not None}
        return cls(partitions, frozenset(consumed))

    def is_new(self, partition: TopicPartition) -> bool:
        """Return whether the partition was created after the group began to read the topic."""
        return partition.topic in self.consumed or partition not in self.partitions

    async def find(
        self, consumer: Any, config: ConsumerConfig, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the start offset of each partition; empty if the broker does not answer in time.

        Raises `OffsetOutOfRange` where `auto_offset_reset` is `error`.
        """
        asked = sorted(partitions)
        if asked and config.auto_offset_reset == "error":
            await reset_position(consumer, NoOffsetForPartitionError(asked[0]), config, self)
        latest = config.auto_offset_reset == "latest"
        at_end = [p for p in asked if latest and not self.is_new(p)]
        at_start = [p for p in asked if p not in at_end]
        found: dict[TopicPartition, int] = {}
        with suppress(KafkaError, TimeoutError), anyio.fail_after(_RANGE_TIMEOUT):
            found |= await log_offsets(consumer, "end", at_end)
            found |= await log_offsets(consumer, "beginning", at_start)
        return found


async def reset_position(
    consumer: Any,
    error: KafkaError,
    config: ConsumerConfig,
    starts: StartPositions,
    on_skip: Callable[[TopicPartition, int], None] = lambda _partition, _offset: None,
) -> None:
    """Seek a partition as `auto_offset_reset` or `on_out_of_range` says.

    Args:
        error: one of `NO_POSITION`; names the partition.
        on_skip: called when the seek skips records that the group has not read, with the offset after them.

    Raises:
        OffsetOutOfRange: the policy is `error`, or the offset is beyond the log's end: then this is not
            the log that was read before, and any other position would be a guess.
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
        return  # a response to a fetch from before the pause; the error comes again after `resume`
    log = await _log_range(consumer, partition) if out_of_range or policy == "error" else None
    described = (
        "the broker does not say which offsets it has"
        if log is None
        else f"the log has offsets {log[0]} to {log[1]} (exclusive)"
    )
    if log is not None and offset > log[1]:
        raise OffsetOutOfRange(
            f"{partition}: {problem}; {described}. The log ends before the position of group "
            f"{config.group}: the topic was created anew, or the broker has lost data or uses another "
            "data directory. Restore the old log; or use another group; or begin new tokens in this one: "
            f"kmr offsets reset --group {config.group} {partition.flags} --to-earliest if the topic was "
            "created anew, --to-latest if records were lost",
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
            return  # keep the position: the next fetch asks again
        to = log[0] if policy == "earliest" else log[1]
        _log.error(
            "going on at another offset: records in between are not read",
            partition=str(partition),
            problem=problem,
            log=described,
            on_out_of_range=policy,
        )
        with suppress(IllegalStateError):  # no longer assigned
            consumer.seek(where, to)
            on_skip(partition, to)
        return
    with suppress(IllegalStateError):  # no longer assigned
        if policy == "earliest" or starts.is_new(partition):
            await consumer.seek_to_beginning(where)
        else:
            await consumer.seek_to_end(where)


async def _log_range(consumer: Any, partition: TopicPartition) -> tuple[int, int] | None:
    """Return a log's first offset and its end offset; None if the broker does not answer."""
    try:
        with anyio.fail_after(_RANGE_TIMEOUT):
            first = await log_offsets(consumer, "beginning", [partition])
            end = await log_offsets(consumer, "end", [partition])
    except (KafkaError, TimeoutError):
        return None
    return first[partition], end[partition]
