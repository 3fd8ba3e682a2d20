"""WriteTxnMarkers: an administrator ends a transaction that hangs in a partition (KIP-664).

As `Admin.abortTransaction` of Kafka's clients and `kmr broker txn abort` send it. The coordinator of
transactions is not asked: the transaction may be one that it knows nothing of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v1 import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kio.schema.write_txn_markers.v1.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)

from broker.api import Api
from broker.log.errors import LogError
from broker.producers.identity import ProducerIdentity
from broker.producers.markers import Marker
from broker.producers.states import CoordinatorFenced, ProducerError

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v1.request import WritableTxnMarker

    from broker.api import RequestContext

__all__ = ["APIS"]


async def _write_markers(
    context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """One marker after the other, each as durable as the fsync setting asks for."""
    return WriteTxnMarkersResponse(
        markers=tuple([await _write(context, marker) for marker in request.markers])
    )


async def _write(context: RequestContext, wanted: WritableTxnMarker) -> WritableTxnMarkerResult:
    outcomes = await context.services.transactions.end_in(
        [(topic.name, index) for topic in wanted.topics for index in topic.partition_indexes],
        Marker(wanted.transaction_result, wanted.coordinator_epoch),
        ProducerIdentity(wanted.producer_id, wanted.producer_epoch),
    )
    return WritableTxnMarkerResult(
        producer_id=wanted.producer_id,
        topics=tuple(
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=tuple(
                    WritableTxnMarkerPartitionResult(
                        partition_index=index,
                        error_code=_code(outcomes.get((topic.name, index), _NO_PARTITION)),
                    )
                    for index in topic.partition_indexes
                ),
            )
            for topic in wanted.topics
        ),
    )


_NO_PARTITION = LookupError("there is no such partition")


def _code(outcome: Exception | None) -> ErrorCode:
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


APIS = (Api(_write_markers, WriteTxnMarkersRequest, WriteTxnMarkersResponse, min_version=1),)
