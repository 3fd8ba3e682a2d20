"""InitProducerId, AddPartitionsToTxn, TxnOffsetCommit and EndTxn 0 to 5, AddOffsetsToTxn 0 to 4.

Idempotent and transactional producers (KIP-98). InitProducerId 3 resumes a producer with its id and epoch
(KIP-360); TxnOffsetCommit 3 names the consumer group's member (KIP-447). PRODUCER_FENCED (KIP-588) came with
InitProducerId 4 and version 2 of the others; older clients get INVALID_PRODUCER_EPOCH instead.
Transaction version 2 (KIP-890): EndTxn 5 raises the producer's epoch and returns it, TxnOffsetCommit 5 adds
the offsets to the transaction, as Produce 12 adds partitions.

Differs from Kafka: EndTxn waits until the markers are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i16, i32

from ...authorization.rules import ANY_NAME, Operation, Resource
from ...coordinators.groups.group_types import MemberIdentity
from ...coordinators.transaction_state import NO_PRODUCER, TransactionError
from ...log.producers import ProducerError, ProducerIdentity
from ...log.results import LogError
from ...topics.topic import INTERNAL_TOPICS
from ...turns import in_turns
from .. import entities
from ..access import Access
from ..api import NO_THROTTLE, api
from ..groups.committed_offsets import check_offsets, commit_response
from ..groups.groups import group_outcome
from ..slices import answer_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...topics.topic import TopicPartition
    from ..access import Call
    from ..api import RequestContext

_FIRST_WITH_PRODUCER_FENCED = 2
_FIRST_INIT_WITH_PRODUCER_FENCED = 4
_FIRST_COMMIT_WITH_TRANSACTION_ABORTABLE = 4
_FIRST_COMMIT_TO_ADD_OFFSETS = 5
_FIRST_TO_RAISE_EPOCHS = 5  # of EndTxn

logger = structlog.get_logger(__name__)


def transaction_error_code(
    error: TransactionError | None, *, fenced: bool, abortable: bool = False
) -> ErrorCode:
    """Return the protocol's code of the same name, or the one that older clients know instead.

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


# -- InitProducerId --------------------------------------------------------------------------------


async def _init_access(call: Call) -> Any:
    """An idempotent producer must be allowed to write to some topic (KIP-679)."""
    transactional_id = call.request.transactional_id
    if transactional_id is not None:
        if not call.allows(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
            return await call.refuse(ErrorCode.transactional_id_authorization_failed)
    elif not (
        call.allows(Operation.WRITE, Resource.TOPIC, ANY_NAME)
        or call.allows(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER)
    ):
        return await call.refuse(ErrorCode.cluster_authorization_failed)
    return await call.answer()


@api("InitProducerId", max_version=5, access=_init_access)
async def _init_producer_id(
    context: RequestContext, request: entities.InitProducerIdRequest
) -> entities.InitProducerIdResponse:
    expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    if (expected.producer_id < 0) != (expected.epoch < 0):
        return _initialised(ErrorCode.invalid_request)
    if request.transactional_id is None:
        try:
            producer = await context.services.transactions.new_producer()
        except (LogError, OSError) as failure:
            logger.error("no producer id could be reserved", error=str(failure))
            return _initialised(ErrorCode.kafka_storage_error)
        return _initialised(ErrorCode.none, producer)
    result = await context.services.transactions.initialise(
        request.transactional_id,
        round(request.transaction_timeout.total_seconds() * 1000),
        None if expected == NO_PRODUCER else expected,
    )
    if isinstance(result, TransactionError):
        fenced = context.api_version >= _FIRST_INIT_WITH_PRODUCER_FENCED
        return _initialised(transaction_error_code(result, fenced=fenced))
    return _initialised(ErrorCode.none, result)


def _initialised(
    error: ErrorCode, producer: ProducerIdentity = NO_PRODUCER
) -> entities.InitProducerIdResponse:
    return entities.InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.epoch),
    )


# -- AddPartitionsToTxn ----------------------------------------------------------------------------


async def _add_partitions_access(call: Call) -> Any:
    """Refuse all partitions if one is refused: those of other topics are not attempted."""
    request = call.request
    transactional_id = request.v3_and_below_transactional_id
    if not call.allows(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
        return await call.refuse(ErrorCode.transactional_id_authorization_failed)
    codes = {
        topic: (
            ErrorCode.operation_not_attempted
            if call.allows(Operation.WRITE, Resource.TOPIC, topic.name)
            else ErrorCode.topic_authorization_failed
        )
        async for topic in in_turns(request.v3_and_below_topics)
    }
    if ErrorCode.topic_authorization_failed not in codes.values():
        return await call.answer()
    response = await call.refuse(ErrorCode.none, elements=())
    return await call.add_refusals(response, codes)


@api("AddPartitionsToTxn", max_version=3, access=_add_partitions_access)
async def _add_partitions(
    context: RequestContext, request: entities.AddPartitionsToTxnRequestV3
) -> entities.AddPartitionsToTxnResponseV3:
    """Add all partitions or none."""
    producer = ProducerIdentity(
        request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    )
    topics = request.v3_and_below_topics
    code = await _add(context, request.v3_and_below_transactional_id, producer, topics)

    def result(topic: TopicName, index: i32) -> entities.AddPartitionsToTxnPartitionResultV3:
        return entities.AddPartitionsToTxnPartitionResultV3(
            partition_index=index, partition_error_code=code(topic, index)
        )

    return entities.AddPartitionsToTxnResponseV3(
        throttle_time=NO_THROTTLE,
        results_by_topic_v3_and_below=await answer_partitions(
            entities.AddPartitionsToTxnTopicResultV3, topics, result
        ),
    )


@api(
    "AddPartitionsToTxn",
    min_version=4,
    max_version=5,
    access=Access(whole=[(Operation.CLUSTER_ACTION, Resource.CLUSTER)], elements=lambda _: ()),
)
async def _add_partitions_of_transactions(
    context: RequestContext, request: entities.AddPartitionsToTxnRequest
) -> entities.AddPartitionsToTxnResponse:
    """Add to each transaction all of its partitions or none; or only look which of them it has.

    Brokers ask so, for the partitions that they lead.
    """
    return entities.AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results_by_transaction=tuple(
            [
                await _transaction_result(context, each)
                async for each in in_turns(request.transactions)
            ]
        ),
    )


async def _transaction_result(
    context: RequestContext, asked: entities.AddPartitionsToTxnTransaction
) -> entities.AddPartitionsToTxnResult:
    producer = ProducerIdentity(asked.producer_id, asked.producer_epoch)
    transactional_id = asked.transactional_id
    code = await _add(
        context, transactional_id, producer, asked.topics, verify_only=asked.verify_only
    )

    def result(topic: TopicName, index: i32) -> entities.AddPartitionsToTxnPartitionResult:
        return entities.AddPartitionsToTxnPartitionResult(
            partition_index=index, partition_error_code=code(topic, index)
        )

    return entities.AddPartitionsToTxnResult(
        transactional_id=transactional_id,
        topic_results=await answer_partitions(
            entities.AddPartitionsToTxnTopicResult, asked.topics, result
        ),
    )


async def _add(
    context: RequestContext,
    transactional_id: str,
    producer: ProducerIdentity,
    topics: Iterable[Any],
    *,
    verify_only: bool = False,
) -> Callable[[str, int], ErrorCode]:
    """Add the partitions, or verify that they are added; return the function with each one's code."""
    transactions = context.services.transactions
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    codes = {}
    async for partition in in_turns(partitions):
        if partition[0] in INTERNAL_TOPICS:
            codes[partition] = ErrorCode.topic_authorization_failed
        elif context.services.topics.partition(*partition) is None:
            codes[partition] = ErrorCode.unknown_topic_or_partition
    outcome = ErrorCode.operation_not_attempted
    if not codes and verify_only:
        async for partition in in_turns(partitions):
            error = transactions.verify(transactional_id, producer, partition)
            codes[partition] = transaction_error_code(error, fenced=True, abortable=True)
    elif not codes:
        error = await transactions.add_partitions(transactional_id, producer, partitions)
        outcome = _code(context, error)
    return lambda topic, index: codes.get((topic, index), outcome)


# -- AddOffsetsToTxn and TxnOffsetCommit -----------------------------------------------------------


_WRITES_TRANSACTION = (Operation.WRITE, Resource.TRANSACTIONAL_ID, "transactional_id")
_READS_GROUP = (Operation.READ, Resource.GROUP, "group_id")


@api("AddOffsetsToTxn", max_version=4, access=Access(whole=[_WRITES_TRANSACTION, _READS_GROUP]))
async def _add_offsets(
    context: RequestContext, request: entities.AddOffsetsToTxnRequest
) -> entities.AddOffsetsToTxnResponse:
    """Add the partition of committed offsets: there is one for all groups."""
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    if request.group_id:
        error = await context.services.transactions.add_offsets(request.transactional_id, producer)
        code = _code(context, error)
    else:
        code = ErrorCode.invalid_group_id
    return entities.AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=code)


@api(
    "TxnOffsetCommit",
    max_version=5,
    access=Access(
        whole=[_WRITES_TRANSACTION, _READS_GROUP], each=("topics", Operation.READ, Resource.TOPIC)
    ),
)
async def _txn_offset_commit(
    context: RequestContext, request: entities.TxnOffsetCommitRequest
) -> entities.OffsetCommitResponse:
    """Respond when the offsets are stored as durably as --fsync demands."""
    accepted, refused = await check_offsets(context, request)
    outcome = await _commit_offsets(context, request, accepted)
    return await commit_response(request, refused, outcome)


async def _commit_offsets(
    context: RequestContext,
    request: entities.TxnOffsetCommitRequest,
    offsets: dict[TopicPartition, tuple[int, int, str]],
) -> ErrorCode:
    services = context.services
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    version, transactional_id = context.api_version, request.transactional_id
    error = services.transactions.verify_offsets(transactional_id, producer)
    if error is TransactionError.TRANSACTION_ABORTABLE and version >= _FIRST_COMMIT_TO_ADD_OFFSETS:
        error = await services.transactions.add_offsets(transactional_id, producer)
        error = error or services.transactions.verify_offsets(transactional_id, producer)
    if error is TransactionError.CONCURRENT_TRANSACTIONS:
        return ErrorCode.coordinator_not_available  # clients of every version try again
    if error is not None:
        abortable = version >= _FIRST_COMMIT_WITH_TRANSACTION_ABORTABLE
        return transaction_error_code(error, fenced=False, abortable=abortable)
    commit = services.groups.commit_in_transaction(
        request.group_id,
        MemberIdentity(request.member_id, request.group_instance_id),
        request.generation_id,
        producer,
        offsets,
    )
    try:
        return await group_outcome(commit, "offsets could not be stored", request.group_id)
    except ProducerError:
        return ErrorCode.invalid_producer_epoch


# -- EndTxn ----------------------------------------------------------------------------------------


@api("EndTxn", max_version=5, access=Access(whole=[_WRITES_TRANSACTION]))
async def _end(context: RequestContext, request: entities.EndTxnRequest) -> entities.EndTxnResponse:
    transactions = context.services.transactions
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    change = (
        transactions.end
        if context.api_version < _FIRST_TO_RAISE_EPOCHS
        else transactions.end_and_raise_epoch
    )
    result = await change(request.transactional_id, producer, commit=request.committed)
    error = result if isinstance(result, TransactionError) else None
    after = result if isinstance(result, ProducerIdentity) else NO_PRODUCER
    return entities.EndTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=_code(context, error),
        producer_id=ProducerId(after.producer_id),
        producer_epoch=i16(after.epoch),
    )
