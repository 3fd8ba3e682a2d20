"""AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn: what a transactional producer asks for.

Source: KIP-98. Version 2 brought PRODUCER_FENCED (KIP-588), which older clients know as
INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from kio.schema.add_offsets_to_txn.v4 import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kio.schema.add_partitions_to_txn.v3 import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from kio.schema.add_partitions_to_txn.v3.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.end_txn.v4 import EndTxnRequest, EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.txn_offset_commit.v4 import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kio.schema.txn_offset_commit.v4.response import (
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.apis.membership import error_code
from broker.apis.offsets import sort_offsets
from broker.log.errors import LogError
from broker.membership.types import MemberIdentity
from broker.producers.identity import ProducerIdentity
from broker.producers.states import ProducerError
from broker.topics.names import INTERNAL_TOPICS
from broker.transactions.types import TransactionError

if TYPE_CHECKING:
    from broker.api import RequestContext
    from broker.transactions.types import TopicPartition

__all__ = ["APIS", "transaction_error_code"]

_FIRST_WITH_PRODUCER_FENCED = 2

logger = structlog.get_logger(__name__)


def transaction_error_code(
    error: TransactionError | None, *, fenced: bool, abortable: bool = False
) -> ErrorCode:
    """The protocol's code of the same name, or what older clients know instead.

    `fenced`: the client knows PRODUCER_FENCED; `abortable`: it knows TRANSACTION_ABORTABLE.
    """
    if error is None:
        return ErrorCode.none
    if error is TransactionError.PRODUCER_FENCED and not fenced:
        return ErrorCode.invalid_producer_epoch
    if error is TransactionError.TRANSACTION_ABORTABLE and not abortable:
        return ErrorCode.invalid_txn_state
    return ErrorCode[error.name.lower()]


def _code(context: RequestContext, error: TransactionError | None) -> ErrorCode:
    return transaction_error_code(error, fenced=context.api_version >= _FIRST_WITH_PRODUCER_FENCED)


# -- AddPartitionsToTxn ----------------------------------------------------------------------------


async def _add_partitions(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """All partitions or none."""
    partitions = [
        (topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions
    ]
    refused = {
        each: code for each in partitions if (code := _check_partition(context, each)) is not None
    }
    outcome = ErrorCode.operation_not_attempted
    if not refused:
        error = await context.services.transactions.add_partitions(
            request.v3_and_below_transactional_id,
            ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            partitions,
        )
        outcome = _code(context, error)
    return AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE,
        results_by_topic_v3_and_below=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=refused.get((topic.name, index), outcome),
                    )
                    for index in topic.partitions
                ),
            )
            for topic in request.v3_and_below_topics
        ),
    )


def _check_partition(context: RequestContext, partition: TopicPartition) -> ErrorCode | None:
    topic, index = partition
    if topic in INTERNAL_TOPICS:
        return ErrorCode.topic_authorization_failed
    if context.services.topics.partition(topic, index) is None:
        return ErrorCode.unknown_topic_or_partition
    return None


# -- AddOffsetsToTxn and TxnOffsetCommit -----------------------------------------------------------


async def _add_offsets(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """The offsets of all groups are one partition of the transaction."""
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    if request.group_id:
        error = await context.services.transactions.add_offsets(request.transactional_id, producer)
        code = _code(context, error)
    else:
        code = ErrorCode.invalid_group_id
    return AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=code)


async def _txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Answers when the offsets are stored as durably as the fsync setting asks for (KIP-447)."""
    accepted, refused = sort_offsets(context, request)
    outcome = await _commit_offsets(context, request, accepted)
    return TxnOffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=refused.get((topic.name, each.partition_index), outcome),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


async def _commit_offsets(
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    offsets: dict[TopicPartition, tuple[int, int, str]],
) -> ErrorCode:
    services = context.services
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    error = services.transactions.verify_offsets(request.transactional_id, producer)
    if error is TransactionError.CONCURRENT_TRANSACTIONS:
        return ErrorCode.coordinator_not_available  # which clients of every version try again
    if error is not None:
        return transaction_error_code(error, fenced=False)
    try:
        refusal = await services.groups.commit_in_transaction(
            request.group_id,
            MemberIdentity(request.member_id, request.group_instance_id),
            request.generation_id,
            producer,
            offsets,
        )
    except ProducerError:
        return ErrorCode.invalid_producer_epoch
    except LogError as failure:
        logger.error("offsets could not be stored", group=request.group_id, error=str(failure))
        return ErrorCode.coordinator_not_available
    return error_code(refusal)


# -- EndTxn ----------------------------------------------------------------------------------------


async def _end(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    error = await context.services.transactions.end(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        commit=request.committed,
    )
    return EndTxnResponse(throttle_time=NO_THROTTLE, error_code=_code(context, error))


APIS = (
    Api(_add_partitions, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, min_version=0),
    Api(_add_offsets, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, min_version=0),
    Api(_txn_offset_commit, TxnOffsetCommitRequest, TxnOffsetCommitResponse, min_version=0),
    Api(_end, EndTxnRequest, EndTxnResponse, min_version=0),
)
