"""InitProducerId: an id for an idempotent producer (KIP-98)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4 import InitProducerIdRequest, InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.log.errors import LogError

if TYPE_CHECKING:
    from broker.api import RequestContext

__all__ = ["APIS"]

logger = structlog.get_logger(__name__)


def _init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        logger.warning(
            "transactions are not supported",
            client_id=context.client_id,
            transactional_id=request.transactional_id,
        )
        return _failed(ErrorCode.unsupported_version)
    try:
        producer_id = context.services.producer_ids.next()
    except (LogError, OSError) as error:
        logger.error("no producer id could be reserved", error=str(error))
        return _failed(ErrorCode.kafka_storage_error)
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(0),
    )


def _failed(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_epoch=i16(-1)
    )


APIS = (Api(_init_producer_id, InitProducerIdRequest, InitProducerIdResponse, min_version=0),)
