"""CreatePartitions and DeleteRecords: partitions of a topic that is there (KIP-195, KIP-107)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog
from kio.schema.create_partitions.v3 import CreatePartitionsRequest, CreatePartitionsResponse
from kio.schema.create_partitions.v3.response import CreatePartitionsTopicResult
from kio.schema.delete_records.v2 import DeleteRecordsRequest, DeleteRecordsResponse
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from broker.api import Api
from broker.apis.common import NO_THROTTLE, STORAGE_FAILED
from broker.errors import RequestError
from broker.log.errors import LogError, OffsetOutOfRange
from broker.topics.names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kio.schema.create_partitions.v3.request import CreatePartitionsTopic
    from kio.schema.delete_records.v2.request import DeleteRecordsPartition

    from broker.api import RequestContext

__all__ = ["APIS", "check_replicas"]

logger = structlog.get_logger(__name__)

_HIGH_WATERMARK = -1


def check_replicas(context: RequestContext, assignments: Iterable[Sequence[int]]) -> None:
    """Raises RequestError (INVALID_REPLICA_ASSIGNMENT) unless each partition is put on this node."""
    node = context.node_id
    if any(tuple(nodes) != (node,) for nodes in assignments):
        raise RequestError(
            ErrorCode.invalid_replica_assignment,
            f"each partition must be assigned to node {node} alone",
        )


# -- CreatePartitions ------------------------------------------------------------------------------


async def _create_partitions(
    context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    times = Counter(topic.name for topic in request.topics)
    results = []
    for wanted in request.topics:
        code, message = ErrorCode.none, None
        try:
            if times[wanted.name] > 1:
                raise RequestError(
                    ErrorCode.invalid_request, f"{wanted.name!r} is in the request more than once"
                )
            await _grow(context, wanted, validate_only=request.validate_only)
        except RequestError as error:
            code, message = error.code, error.message
        except (LogError, OSError) as error:
            logger.error("partitions could not be added", topic=wanted.name, error=str(error))
            code, message = ErrorCode.kafka_storage_error, STORAGE_FAILED
        results.append(
            CreatePartitionsTopicResult(name=wanted.name, error_code=code, error_message=message)
        )
    return CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


async def _grow(
    context: RequestContext, wanted: CreatePartitionsTopic, *, validate_only: bool
) -> None:
    topics = context.services.topics
    topic = topics.check_growth(wanted.name, wanted.count)
    if wanted.assignments is not None:
        added = wanted.count - len(topic.partitions)
        if len(wanted.assignments) != added:
            raise RequestError(
                ErrorCode.invalid_replica_assignment,
                f"{added} partitions are added, but {len(wanted.assignments)} assigned",
            )
        check_replicas(context, (each.broker_ids for each in wanted.assignments))
    if not validate_only:
        await topics.grow(wanted.name, wanted.count)


# -- DeleteRecords ---------------------------------------------------------------------------------


def _delete_records(
    context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    _delete_below(context, topic.name, wanted) for wanted in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _delete_below(
    context: RequestContext, topic: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    """Durable when answered: a restart does not bring the records back."""
    index = wanted.partition_index
    partition = context.services.topics.partition(topic, index)
    error, low_watermark = ErrorCode.none, -1
    if topic in INTERNAL_TOPICS:
        error = ErrorCode.invalid_topic_exception
    elif partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif partition.log.config.compacts and not partition.log.config.deletes:
        error = ErrorCode.policy_violation  # compaction promises to keep the latest of each key
    else:
        log, end = partition.log, partition.high_watermark
        offset = end if wanted.offset == _HIGH_WATERMARK else wanted.offset
        try:
            if not 0 <= offset <= end:
                raise OffsetOutOfRange(offset, log.log_start_offset, end)
            log.truncate_start(offset)
            low_watermark = log.log_start_offset
        except OffsetOutOfRange:
            error = ErrorCode.offset_out_of_range
        except (LogError, OSError) as problem:
            logger.error(
                "records could not be deleted", topic=topic, partition=index, error=str(problem)
            )
            error = ErrorCode.kafka_storage_error
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=i64(low_watermark), error_code=error
    )


APIS = (
    Api(_create_partitions, CreatePartitionsRequest, CreatePartitionsResponse, min_version=0),
    Api(_delete_records, DeleteRecordsRequest, DeleteRecordsResponse, min_version=0),
)
