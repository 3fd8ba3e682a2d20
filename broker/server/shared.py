"""What all connections of a server share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from broker.buffers import BufferPool
from broker.security.admission import Admission

if TYPE_CHECKING:
    from broker.appends import Appends
    from broker.dispatch import Dispatcher
    from broker.security.users import Users
    from broker.settings import BrokerSettings
    from broker.telemetry.metrics import Metrics

__all__ = ["Shared"]

_PASSWORD_CHECKS = 2  # at the same time


class Shared:
    """Who handles their requests, and the limits that hold for all of them together."""

    def __init__(
        self,
        settings: BrokerSettings,
        dispatcher: Dispatcher,
        appends: Appends,
        metrics: Metrics,
        users: Users | None,
    ) -> None:
        """`users`: who may authenticate, as all must then."""
        self.settings = settings
        self.dispatcher = dispatcher
        self.appends = appends
        self.metrics = metrics
        self.users = users
        self.request_buffers = BufferPool(settings.request_memory_bytes)
        self.password_checks = anyio.CapacityLimiter(_PASSWORD_CHECKS)
        self.admission = Admission(
            total=settings.max_connections,
            per_address=settings.max_connections_per_address,
            unsettled=settings.max_unauthenticated_connections,
        )
