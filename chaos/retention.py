"""A fault of the operator: retention takes everything that no worker has to read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka.admin import RecordsToDelete

from chaos.site import Site
from kmr.chaos.faults import StormFault
from kmr.delivery.announcement import look_back_of
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from random import Random
    from typing import Any


class RetentionAtTheEdge(StormFault[Site]):
    """Records are deleted up to where a worker that starts would begin; then one starts."""

    name = "retention-at-the-edge"

    async def strike(self, site: Site, random: Random) -> str:
        async with site.admin() as admin:
            edges: dict[Any, int] = {}
            for spec in site.groups:
                found = await admin.list_consumer_group_offsets(spec.name)
                for at, committed in found.items():
                    edge = _edge(TopicPartition(at.topic, at.partition), committed)
                    edges[at] = min(edge, edges.get(at, edge))
            await admin.delete_records({at: RecordsToDelete(edge) for at, edge in edges.items()})
        worker = random.choice(site.workers)
        await site.until_joined(worker)
        await worker.restart(kill=True)
        return f"{sum(edges.values()):,} records are gone; {worker.name}"


def _edge(partition: TopicPartition, committed: Any) -> int:
    offset = CommitOffset(committed.offset, committed.metadata)
    back = look_back_of(partition, offset)
    return offset.offset if back is None else min(back.offset, offset.offset)
