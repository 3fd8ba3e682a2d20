"""What can go wrong in a cluster: the node is killed that leads a partition, or coordinates a group."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

import anyio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from chaos.scenarios import Scenario
from chaos.shape import GroupSpec, Shape
from chaos.site import Site
from chaos.workload import Workload
from kmr.chaos.faults import StormFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from random import Random

    from interop.nodes import Cluster

__all__ = ["FAILOVER", "KillCoordinator", "KillLeader", "failover_of"]

_POLL: Final = 0.25
_REQUEST_TIMEOUT_MS: Final = 5_000
_OFFSETS_TOPIC: Final = "__consumer_offsets"


class _KillNode(StormFault[Site]):
    """A node is killed, the workers go on without it, and it comes back."""

    records: ClassVar[int] = 10_000
    """So many are acknowledged, and committed by the workers, while the node is gone."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @abstractmethod
    async def choose(self, site: Site, random: Random) -> tuple[int, str]:
        """The `node.id`, and what it is to be killed for."""

    async def strike(self, site: Site, random: Random) -> str:
        """See `StormFault.strike`."""
        number, role = await self.choose(site, random)
        node = self._cluster.node(number)
        await self._cluster.kill(node)
        try:
            await site.load.until_more(self.records)
            await site.until_settled()
        finally:
            with anyio.CancelScope(shield=True):
                await self._cluster.start(node)
        await self._until_in_sync(site.topics[0], _OFFSETS_TOPIC)
        return f"node {number}, {role}"

    async def _until_in_sync(self, *topics: str) -> None:
        """Until every replica has everything: another node may be lost then."""
        while True:
            try:
                async with admin_client(self._cluster.bootstrap_servers) as admin:
                    found = await admin.describe_topics(list(topics))
            except (KafkaError, OSError):
                found = []
            partitions = [each for topic in found for each in topic["partitions"]]
            if partitions and all(len(p["isr"]) == len(p["replicas"]) for p in partitions):
                return
            await anyio.sleep(_POLL)


class KillLeader(_KillNode):
    """SIGKILL of the node that leads a partition, while the workers read it; started again later."""

    name = "kill-leader"

    async def choose(self, site: Site, random: Random) -> tuple[int, str]:
        """See `_KillNode.choose`."""
        partition = random.randrange(site.shape.partitions)
        async with admin_client(site.bootstrap_servers) as admin:
            (topic,) = await admin.describe_topics([site.topics[0]])
        (leader,) = [p["leader"] for p in topic["partitions"] if p["partition"] == partition]
        return leader, f"leader of {site.topics[0]}-{partition}"


class KillCoordinator(_KillNode):
    """SIGKILL of the node that coordinates the workers' group; started again later."""

    name = "kill-coordinator"

    async def choose(self, site: Site, random: Random) -> tuple[int, str]:
        """See `_KillNode.choose`."""
        group = random.choice(site.groups).name
        async with admin_client(site.bootstrap_servers) as admin:
            return await admin.find_coordinator(group), f"coordinator of {group}"


FAILOVER: Final = Scenario(
    "failover",
    "three nodes, replication 3, two in sync for acks=all: the leader of a partition and the "
    "coordinator of a group are killed; one group writes to ClickHouse, one to a topic",
    Shape(
        [
            GroupSpec("group", Workload("chaos_group", dead_topic="chaos-group-dead")),
            GroupSpec(
                "results",
                Workload("chaos_results", dead_topic="chaos-results-dead", topic="chaos-results"),
            ),
        ]
    ),
    (KillLeader.name, KillCoordinator.name),
    patience=180.0,
)


def failover_of(cluster: Cluster) -> Scenario:
    """FAILOVER, as it strikes this cluster."""
    faults = (KillLeader(cluster), KillCoordinator(cluster))
    return replace(FAILOVER, more_faults={fault.name: fault for fault in faults})


@asynccontextmanager
async def admin_client(bootstrap_servers: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client that is closed again, also when it could not even start."""
    admin = AIOKafkaAdminClient(
        bootstrap_servers=bootstrap_servers, request_timeout_ms=_REQUEST_TIMEOUT_MS
    )
    try:
        await admin.start()
        yield admin
    finally:
        with anyio.CancelScope(shield=True):
            await admin.close()
