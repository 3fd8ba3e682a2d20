"""Values that many responses share."""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i32Timedelta

from broker.errors import RequestError

if TYPE_CHECKING:
    from broker.api import RequestContext

__all__ = [
    "LEADER_EPOCH",
    "NO_THROTTLE",
    "STORAGE_FAILED",
    "ResourceType",
    "check_broker",
]

NO_THROTTLE = i32Timedelta.parse(timedelta(0))
"""Clients are slowed down by back-pressure, never by quotas."""

LEADER_EPOCH = i32(0)
"""There is one node, so no partition ever changes its leader."""

STORAGE_FAILED = "the broker's disk failed; its log says how"
"""All that clients are told of it."""


class ResourceType(IntEnum):
    """What settings belong to, in the APIs about them."""

    TOPIC = 2
    BROKER = 4


def check_broker(context: RequestContext, name: str) -> None:
    """Raises RequestError unless it is this node, or "", which means every node."""
    if name not in {str(context.node_id), ""}:
        raise RequestError(
            ErrorCode.invalid_request, f"there is no broker {name!r}, only {context.node_id}"
        )
