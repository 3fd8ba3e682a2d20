"""Values that many responses share."""

from __future__ import annotations

from datetime import timedelta

from kio.schema.types import BrokerId
from kio.static.primitive import i32, i32Timedelta

from broker.api import NODE_ID

__all__ = ["LEADER_EPOCH", "NODE", "NO_THROTTLE"]

NO_THROTTLE = i32Timedelta.parse(timedelta(0))
"""Clients are slowed down by back-pressure, never by quotas."""

NODE = BrokerId(NODE_ID)

LEADER_EPOCH = i32(0)
"""There is one node, so no partition ever changes its leader."""
