"""InitProducerId: an id for an idempotent or a transactional producer (KIP-98, KIP-360)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5 import InitProducerIdRequest, InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.apis.transactions import transaction_error_code
from broker.log.errors import LogError
from broker.producers.identity import ProducerIdentity
from broker.transactions.types import NO_PRODUCER, TransactionError

if TYPE_CHECKING:
    from broker.api import RequestContext

__all__ = ["APIS"]

_FIRST_WITH_PRODUCER_FENCED = 4

logger = structlog.get_logger(__name__)


async def _init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    if (expected.producer_id < 0) != (expected.epoch < 0):
        return _failed(ErrorCode.invalid_request)
    if request.transactional_id is None:
        return _idempotent(context)
    result = await context.services.transactions.initialise(
        request.transactional_id,
        round(request.transaction_timeout.total_seconds() * 1000),
        None if expected == NO_PRODUCER else expected,
    )
    if isinstance(result, TransactionError):
        return _failed(
            transaction_error_code(
                result, fenced=context.api_version >= _FIRST_WITH_PRODUCER_FENCED
            )
        )
    return _answer(result)


def _idempotent(context: RequestContext) -> InitProducerIdResponse:
    try:
        return _answer(ProducerIdentity(context.services.producer_ids.next(), 0))
    except (LogError, OSError) as error:
        logger.error("no producer id could be reserved", error=str(error))
        return _failed(ErrorCode.kafka_storage_error)


def _answer(producer: ProducerIdentity) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        producer_id=ProducerId(producer.producer_id),
        producer_epoch=i16(producer.epoch),
    )


def _failed(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_epoch=i16(-1)
    )


APIS = (Api(_init_producer_id, InitProducerIdRequest, InitProducerIdResponse, min_version=0),)
