"""ConsumerGroupHeartbeat: consumers with group.protocol=consumer (KIP-848) are told that it is not there.

As by brokers of Kafka 3.7 to 3.9, which have it switched off: where the API is missing altogether, librdkafka
looks for another coordinator for ever, and says nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from kio.schema.consumer_group_heartbeat.v1 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i32Timedelta

from broker.api import Api
from broker.apis.common import NO_THROTTLE

if TYPE_CHECKING:
    from broker.api import RequestContext

__all__ = ["APIS"]

_REASON: Final = "this broker has no consumer groups of KIP-848: set group.protocol=classic"
_NOBODY: Final = i32(0)
_NEVER: Final = i32Timedelta.parse(timedelta(0))


def _heartbeat(
    _: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.unsupported_version,
        error_message=_REASON,
        member_id=request.member_id,
        member_epoch=_NOBODY,
        heartbeat_interval=_NEVER,
        assignment=None,
    )


APIS = (
    Api(_heartbeat, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, min_version=0),
)
