"""A worker's real HTTP endpoints, with figures that a test foresees."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from kmr.observe.health import OneWorker, StatusHistory, build_app, listen_on
from kmr.observe.metrics import Metrics
from kmr.observe.status import PartitionStatus, StageStatus, WorkerStatus
from kmr.service.http import HttpServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STUCK = WorkerStatus(
    state="running",
    live=True,
    ready=True,
    problem="reduce-1: no answer from the database",
    group="flights-group",
    topics=("flights",),
    stages=(StageStatus("reduce-1", "retrying", 3, 1000, 2000, 4.5, "no answer"),),
    partitions=(PartitionStatus("flights", 0, 50, 40, 90, 0, 1250, paused=True),),
    inflight_bytes=2**20,
    inflight_limit=2**21,
    consumed=90,
    settled=50,
    uptime=1.0,
)


class Worker:
    """Each time it is asked, half a second has passed and so many records were settled."""

    def __init__(self) -> None:
        self.now = STUCK
        self.asked = 0

    def status(self) -> WorkerStatus:
        self.asked += 1
        self.now = msgspec.structs.replace(
            self.now,
            uptime=self.now.uptime + 0.5,
            consumed=self.now.consumed + 100,
            settled=self.now.settled + 50,
        )
        return self.now

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        source = OneWorker(self.status, Metrics())
        app = build_app(
            source, StatusHistory(source.status)
        )  # nothing but a request asks for the status
        async with HttpServer(app, partial(listen_on, "127.0.0.1", port)) as server:
            yield server.url
