"""A fault of the operator: retention takes everything that no worker has to read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from chaos.site import Site
from kmr.chaos.faults import StormFault
from kmr.delivery.announcement import read_metadata
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from random import Random

Offsets = dict[Any, int]
"""By aiokafka's partition."""


class RetentionAtTheEdge(StormFault[Site]):
    """While a worker is down, each partition loses all records before the one where it would begin."""

    name = "retention-at-the-edge"

    async def strike(self, site: Site, random: Random) -> str:
        worker = random.choice(site.workers)
        await site.until_joined(worker)
        async with site.admin() as admin:
            while not await _would_delete(admin, site):  # noqa: ASYNC110
                await anyio.sleep(1)
            await worker.service.kill()
            try:
                edges = await _edges(admin, site)
                begins = await _delete(admin, dict.fromkeys(edges, 0))
                left = await _delete(admin, edges)
            finally:
                await worker.service.start()
        deleted = [left[at] - begins[at] for at in edges]
        return f"{sum(deleted):,} records are gone, at least {min(deleted):,} of a partition; {worker.name}"


async def _would_delete(admin: AIOKafkaAdminClient, site: Site) -> bool:
    edges = await _edges(admin, site)
    begins = await _delete(admin, dict.fromkeys(edges, 0))
    return len(edges) == site.shape.partitions and all(edges[at] > begins[at] for at in edges)


async def _delete(admin: AIOKafkaAdminClient, edges: Offsets) -> Offsets:
    """Delete the records before these offsets; return where the logs begin then."""
    orders = {at: RecordsToDelete(edge) for at, edge in edges.items()}
    found: Offsets = await admin.delete_records(orders)
    return found


async def _edges(admin: AIOKafkaAdminClient, site: Site) -> Offsets:
    """Return where workers that start would begin."""
    edges: Offsets = {}
    for spec in site.groups:
        found = await admin.list_consumer_group_offsets(spec.name)
        for at, committed in found.items():
            edge = _edge(TopicPartition(at.topic, at.partition), committed)
            edges[at] = min(edge, edges.get(at, edge))
    return edges


def _edge(partition: TopicPartition, committed: Any) -> int:
    offset = CommitOffset(committed.offset, committed.metadata)
    back = read_metadata(partition, offset).back
    return offset.offset if back is None else min(back.offset, offset.offset)
