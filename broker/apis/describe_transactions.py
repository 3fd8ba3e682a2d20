"""DescribeProducers, ListTransactions, DescribeTransactions: who has what open.

Sources: KIP-664, KIP-994 (by duration), KIP-1152 (by a pattern of names).
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

from anyio import to_thread
from kio.schema.describe_producers.v0 import DescribeProducersRequest, DescribeProducersResponse
from kio.schema.describe_producers.v0.response import (
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kio.schema.describe_transactions.v0 import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from kio.schema.describe_transactions.v0.response import TopicData
from kio.schema.describe_transactions.v0.response import TransactionState as DescribedTransaction
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2 import ListTransactionsRequest, ListTransactionsResponse
from kio.schema.list_transactions.v2.response import TransactionState as ListedTransaction
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import TZAware, i16, i32, i32Timedelta, i64

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.transactions.types import TransactionState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.api import RequestContext
    from broker.transactions.types import TopicPartition, Transaction

__all__ = ["APIS"]

_STATES: Final = {state.value for state in TransactionState} | {"Dead", "PrepareEpochFence"}
"""What may be filtered by: nothing is ever in the last two, which Kafka knows."""


def _describe_producers(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            TopicResponse(
                name=topic.name,
                partitions=tuple(
                    _producers(context, topic.name, index) for index in topic.partition_indexes
                ),
            )
            for topic in request.topics
        ),
    )


def _producers(context: RequestContext, topic: str, index: i32) -> PartitionResponse:
    partition = context.services.topics.partition(topic, index)
    if partition is None:
        return PartitionResponse(
            partition_index=index,
            error_code=ErrorCode.unknown_topic_or_partition,
            error_message=f"there is no partition {index} of {topic!r}",
            active_producers=(),
        )
    return PartitionResponse(
        partition_index=index,
        error_code=ErrorCode.none,
        active_producers=tuple(
            ProducerState(
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


async def _list_transactions(
    context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    coordinator = context.services.transactions
    now_ms = coordinator.now_ms()
    named: set[str] | None = None  # any
    if request.transactional_id_pattern:
        names = [each.transactional_id for each in coordinator.transactions()]
        try:
            named = await to_thread.run_sync(_matching, request.transactional_id_pattern, names)
        except ValueError:
            return ListTransactionsResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode.invalid_regular_expression,
                unknown_state_filters=(),
                transaction_states=(),
            )

    def is_wanted(transaction: Transaction) -> bool:
        producers, states = request.producer_id_filters, request.state_filters
        return (
            (named is None or transaction.transactional_id in named)
            and (not producers or transaction.producer.producer_id in producers)
            and (not states or transaction.state.value in states)
            and (
                request.duration_filter < 0
                or now_ms - transaction.started_ms > request.duration_filter
            )
        )

    return ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(name for name in request.state_filters if name not in _STATES),
        transaction_states=tuple(
            ListedTransaction(
                transactional_id=TransactionalId(each.transactional_id),
                producer_id=ProducerId(each.producer.producer_id),
                transaction_state=each.state.value,
            )
            for each in filter(is_wanted, coordinator.transactions())
        ),
    )


def _matching(pattern: str, names: list[str]) -> set[str]:
    """The names that the pattern matches as a whole; raises ValueError for one that cannot be read.

    By RE2, as with Kafka: Python's own expressions may take for ever, and this one is somebody else's.
    """
    import pyarrow as pa  # only who asks for it pays for it
    import pyarrow.compute as pc

    array = pa.array(names, pa.string())
    pc.match_substring_regex(array, pattern)  # by itself: in brackets, "a)|(b" would be right
    matched = pc.match_substring_regex(array, rf"\A(?:{pattern})\z")
    return {name for name, fits in zip(names, matched.to_pylist(), strict=True) if fits}


def _describe_transactions(
    context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(_described(context, each) for each in request.transactional_ids),
    )


def _described(context: RequestContext, transactional_id: TransactionalId) -> DescribedTransaction:
    transaction = context.services.transactions.get(transactional_id)
    if transaction is None:
        return DescribedTransaction(
            error_code=ErrorCode.transactional_id_not_found,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout=NO_THROTTLE,
            transaction_start_time=_time(0),
            producer_id=ProducerId(-1),
            producer_epoch=i16(-1),
            topics=(),
        )
    return DescribedTransaction(
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=transaction.timeout_ms)),
        transaction_start_time=_time(transaction.started_ms),
        producer_id=ProducerId(transaction.producer.producer_id),
        producer_epoch=i16(transaction.producer.epoch),
        topics=_by_topic(transaction.partitions),
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[TopicData, ...]:
    topics: defaultdict[str, list[i32]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(i32(index))
    return tuple(
        TopicData(topic=TopicName(topic), partitions=tuple(indexes))
        for topic, indexes in topics.items()
    )


def _time(milliseconds: int) -> TZAware:
    # Not parsed: kio's type knows no -1, which says that there is no such time.
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
    return cast("TZAware", moment)


APIS = (
    Api(_describe_producers, DescribeProducersRequest, DescribeProducersResponse, min_version=0),
    Api(_list_transactions, ListTransactionsRequest, ListTransactionsResponse, min_version=0),
    Api(
        _describe_transactions,
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        min_version=0,
    ),
)
