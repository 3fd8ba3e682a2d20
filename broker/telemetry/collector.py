"""Reads, when somebody asks for the metrics, what a running broker knows anyway."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from broker.telemetry.groups import group_families, transaction_families
from broker.telemetry.logs import log_families, topic_families
from broker.telemetry.metrics import Gauges, Info
from broker.telemetry.traffic import buffer_families, connection_families, request_families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from broker.api import Services
    from broker.log.partition import PartitionLog
    from broker.server.server import Server

__all__ = ["BrokerCollector"]


class BrokerCollector(Collector):
    """The families of `broker.telemetry.metrics` of one broker; asked in its event loop only."""

    def __init__(
        self, services: Services, server: Server, internal_logs: Mapping[str, PartitionLog]
    ) -> None:
        """`internal_logs`: of the internal topics, which are not listed while they are empty, by name."""
        self._services = services
        self._server = server
        self._internal_logs = internal_logs

    def collect(self) -> Iterator[Metric]:
        services, server = self._services, self._server
        topics = services.topics
        yield from _broker(services.cluster_id, services.settings.data_dir)
        yield from request_families(services.requests, server, topics)
        yield from connection_families(server)
        yield from buffer_families(
            {"request": server.request_buffers, "response": services.response_buffers}
        )
        yield from topic_families(topics, self._internal_logs)
        yield from log_families(topics, self._internal_logs)
        yield from group_families(services.groups, topics)
        yield from transaction_families(services.transactions)


def _broker(cluster_id: str, data_dir: Path) -> Iterator[Metric]:
    about = Info.BROKER.family()
    about.add_metric((), {"version": _version(), "cluster_id": cluster_id})
    yield about
    free = Gauges.DISK_FREE_BYTES.family()
    with suppress(OSError):
        disk = os.statvfs(data_dir)
        free.add_metric((), disk.f_bavail * disk.f_frsize)
    yield free


def _version() -> str:
    try:
        return version("kafka-map-reduce")
    except PackageNotFoundError:
        return "unknown"  # it runs from a checkout
