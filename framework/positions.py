"""What to do when the next offset of a partition is not known, or not there any more."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
from framework.record import TopicPartition

if TYPE_CHECKING:
    from framework.connection import ConsumerConfig

__all__ = ["LOST_POSITION", "mend_position"]

LOST_POSITION = (OffsetOutOfRangeError, NoOffsetForPartitionError)
"""The errors of aiokafka that `mend_position` understands."""

_log = structlog.get_logger(__name__)

_TELL_RANGE = 5.0  # seconds to ask for a log's range, before we do without


async def mend_position(consumer: Any, error: KafkaError, config: ConsumerConfig) -> TopicPartition:
    """Move a partition to where the configuration says; returns which one.

    Raises `OffsetOutOfRange` where the configuration says that this is an error.
    """
    if isinstance(error, OffsetOutOfRangeError):
        ((partition, offset),) = error.args[0].items()
        option, policy = "on_out_of_range", config.on_out_of_range
        problem = f"offset {offset} is not on the broker (any more)"
    else:
        partition = error.args[0]
        option, policy = "auto_offset_reset", config.auto_offset_reset
        problem = f"group {config.group} has committed no offset"
    partition, where = TopicPartition(*partition), aiokafka.TopicPartition(*partition)
    if option == "on_out_of_range" and where in consumer.paused():
        return partition  # an answer that was under way when it was paused; after `resume` it comes again
    if policy == "error":
        raise OffsetOutOfRange(
            f"{partition}: {problem}; {await _describe_range(consumer, where)}."
            f' Set {option} to "earliest" or "latest", or reset the group\'s offsets',
            partition,
        ) from error
    if option == "on_out_of_range":
        _log.error(
            "going on at another offset: records in between are not read",
            partition=str(partition),
            problem=problem,
            log=await _describe_range(consumer, where),
            on_out_of_range=policy,
        )
    with suppress(IllegalStateError):  # it is not ours any more
        if policy == "earliest":
            await consumer.seek_to_beginning(where)
        else:
            await consumer.seek_to_end(where)
    return partition


async def _describe_range(consumer: Any, partition: Any) -> str:
    try:
        with anyio.fail_after(_TELL_RANGE):
            first = await consumer.beginning_offsets([partition])
            end = await consumer.end_offsets([partition])
    except (KafkaError, TimeoutError):
        return "the broker does not say which offsets it has"
    return f"the log has offsets {first[partition]} to {end[partition]} (exclusive)"
