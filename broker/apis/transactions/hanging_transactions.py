"""DescribeProducers 0, ListTransactions 0 to 2, DescribeTransactions 0, WriteTxnMarkers 1 to 2 (KIP-664).

They find transactions that hang, and end them in a partition: `Admin.abortTransaction` of Kafka's clients,
`kmr broker txn`. ListTransactions 1 added a filter by duration (KIP-994), 2 one by a pattern of the ids
(KIP-1152). WriteTxnMarkers 2 says whether the end of the transaction has raised the epoch (KIP-1228).

Differs from Kafka: WriteTxnMarkers is for administrators only, because no other broker sends it.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from anyio import to_thread
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import TZAware, i16, i32, i32Timedelta, i64

from ...authorization.rules import Operation, Resource
from ...coordinators.groups.name_patterns import InvalidPattern, matching_names
from ...coordinators.transaction_state import TransactionState
from ...errors import shortened
from ...log.producers import CoordinatorFenced, Marker, ProducerError, ProducerIdentity
from ...log.results import LogError
from ...turns import in_turns
from .. import entities
from ..access import ALTER_CLUSTER, Access, refusal
from ..api import NO_THROTTLE, api
from ..slices import answer_partitions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from ...coordinators.transaction_state import Transaction
    from ...topics.topic import TopicPartition
    from ..access import Call
    from ..api import RequestContext

_STATES: Final = {state.value for state in TransactionState} | {"Dead", "PrepareEpochFence"}
"""States that a filter may name; no transaction of this broker is in the last two, which Kafka has."""


# -- DescribeProducers -----------------------------------------------------------------------------


@api(
    "DescribeProducers",
    max_version=0,
    access=Access(each=("topics", Operation.READ, Resource.TOPIC)),
)
async def _describe_producers(
    context: RequestContext, request: entities.DescribeProducersRequest
) -> entities.DescribeProducersResponse:
    return entities.DescribeProducersResponse(
        throttle_time=NO_THROTTLE,
        topics=await answer_partitions(
            entities.TopicResponse, request.topics, partial(_producers, context)
        ),
    )


def _producers(context: RequestContext, topic: str, index: i32) -> entities.PartitionResponse:
    partition = context.services.topics.partition(topic, index)
    if partition is None:
        return entities.PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.unknown_topic_or_partition,
            error_message=shortened(f"there is no partition {index} of {topic!r}"),
            active_producers=(),
        )
    return entities.PartitionResponse(
        partition_index=index,
        error_code=ErrorCode.none,
        active_producers=tuple(
            entities.ProducerState(
                producer_id=ProducerId(each.producer_id),
                producer_epoch=i32(each.epoch),
                last_sequence=i32(each.last_sequence),
                last_timestamp=i64(each.last_seen_ms),
                coordinator_epoch=i32(each.coordinator_epoch),
                current_txn_start_offset=i64(each.transaction_first_offset),
            )
            for each in partition.log.producers.describe()
        ),
    )


# -- ListTransactions and DescribeTransactions -----------------------------------------------------


async def _list_access(call: Call) -> Any:
    return await call.visible(await call.answer(), "transaction_states", Resource.TRANSACTIONAL_ID)


@api("ListTransactions", max_version=2, access=_list_access)
async def _list_transactions(
    context: RequestContext, request: entities.ListTransactionsRequest
) -> entities.ListTransactionsResponse:
    coordinator = context.services.transactions
    now_ms = coordinator.now_ms()

    known = coordinator.transactions()
    producers, states = set(request.producer_id_filters), set(request.state_filters)
    pattern = request.transactional_id_pattern
    try:
        ids = await _matching(context, pattern, known) if pattern else None
    except InvalidPattern:
        return entities.ListTransactionsResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.invalid_regular_expression,
            transaction_states=(),
        )

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (ids is None or transaction.transactional_id in ids)
            and (not producers or transaction.producer.producer_id in producers)
            and (not states or transaction.state.value in states)
            and (
                request.duration_filter < 0
                or now_ms - transaction.started_ms > request.duration_filter
            )
        )

    return entities.ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(name for name in request.state_filters if name not in _STATES),
        transaction_states=tuple(
            [
                entities.ListedTransaction(
                    transactional_id=TransactionalId(each.transactional_id),
                    producer_id=ProducerId(each.producer.producer_id),
                    transaction_state=each.state.value,
                )
                async for each in in_turns(known)
                if is_wanted(each)
            ]
        ),
    )


async def _matching(
    context: RequestContext, pattern: str, known: Iterable[Transaction]
) -> AbstractSet[str]:
    """Return the ids that the pattern matches as a whole. Raises InvalidPattern."""
    names = [each.transactional_id for each in known]
    limiter = context.services.computing
    return set(await to_thread.run_sync(matching_names, pattern, names, limiter=limiter))


@api(
    "DescribeTransactions",
    max_version=0,
    access=Access(each=("transactional_ids", Operation.DESCRIBE, Resource.TRANSACTIONAL_ID)),
)
async def _describe_transactions(
    context: RequestContext, request: entities.DescribeTransactionsRequest
) -> entities.DescribeTransactionsResponse:
    return entities.DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(
            [_described(context, each) async for each in in_turns(request.transactional_ids)]
        ),
    )


def _described(
    context: RequestContext, transactional_id: TransactionalId
) -> entities.DescribedTransaction:
    transaction = context.services.transactions.get(transactional_id)
    if transaction is None:
        code = ErrorCode.transactional_id_not_found
        missing: entities.DescribedTransaction = refusal(
            entities.DescribedTransaction, transactional_id, code
        )
        return missing
    return entities.DescribedTransaction(
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=transaction.timeout_ms)),
        transaction_start_time=_time(transaction.started_ms),
        producer_id=ProducerId(transaction.producer.producer_id),
        producer_epoch=i16(transaction.producer.epoch),
        topics=_by_topic(context, transaction.partitions),
    )


def _by_topic(
    context: RequestContext, partitions: Iterable[TopicPartition]
) -> tuple[entities.TransactionTopicData, ...]:
    """Return the partitions of the topics that the client may describe."""
    topics: defaultdict[str, list[i32]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(i32(index))
    return tuple(
        entities.TransactionTopicData(topic=TopicName(topic), partitions=tuple(indexes))
        for topic, indexes in topics.items()
        if context.allows(Operation.DESCRIBE, Resource.TOPIC, topic)
    )


def _time(milliseconds: int) -> TZAware:
    # Not parsed: kio's type rejects -1, which means that there is no time.
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
    return cast("TZAware", moment)


# -- WriteTxnMarkers -------------------------------------------------------------------------------

_FIRST_TO_RAISE_EPOCHS: Final = 2  # of the versions of transactions, see KIP-890


@api("WriteTxnMarkers", min_version=1, max_version=2, access=ALTER_CLUSTER)
async def _write_markers(
    context: RequestContext, request: entities.WriteTxnMarkersRequest
) -> entities.WriteTxnMarkersResponse:
    """Write one marker after the other, each as durably as --fsync demands.

    The transaction coordinator is not involved: it may not know the transaction.
    """
    return entities.WriteTxnMarkersResponse(
        markers=tuple([await _write(context, marker) async for marker in in_turns(request.markers)])
    )


async def _write(
    context: RequestContext, wanted: entities.WritableTxnMarker
) -> entities.WritableTxnMarkerResult:
    outcomes = await context.services.transactions.write_markers(
        [(topic.name, index) for topic in wanted.topics for index in topic.partition_indexes],
        Marker(wanted.transaction_result, wanted.coordinator_epoch),
        ProducerIdentity(wanted.producer_id, wanted.producer_epoch),
        raises_epoch=wanted.transaction_version >= _FIRST_TO_RAISE_EPOCHS,
    )

    def result(topic: str, index: i32) -> entities.WritableTxnMarkerPartitionResult:
        code = _outcome_code(outcomes.get((topic, index), _NO_PARTITION))
        return entities.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)

    return entities.WritableTxnMarkerResult(
        producer_id=wanted.producer_id,
        topics=await answer_partitions(
            entities.WritableTxnMarkerTopicResult, wanted.topics, result
        ),
    )


_NO_PARTITION = LookupError("there is no such partition")


def _outcome_code(outcome: Exception | None) -> ErrorCode:
    match outcome:
        case None:
            return ErrorCode.none
        case CoordinatorFenced():
            return ErrorCode.transaction_coordinator_fenced
        case ProducerError():
            return ErrorCode.invalid_producer_epoch
        case LogError():
            return ErrorCode.kafka_storage_error
        case _:
            return ErrorCode.unknown_topic_or_partition
