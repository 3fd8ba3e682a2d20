"""Groups, how far they are behind, and transactions, as metrics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from broker.telemetry.metrics import Gauges
from broker.transactions.types import TransactionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from broker.groups.coordinator import GroupCoordinator
    from broker.topics.topics import Topics
    from broker.transactions.coordinator import TransactionCoordinator

__all__ = ["group_families", "transaction_families"]


def group_families(groups: GroupCoordinator, topics: Topics) -> Iterator[Metric]:
    states, members, generations = (
        each.family()
        for each in (Gauges.GROUP_STATE, Gauges.GROUP_MEMBERS, Gauges.GROUP_GENERATION)
    )
    offsets, lags = Gauges.GROUP_OFFSET.family(), Gauges.GROUP_LAG.family()
    for group in groups.groups():
        label = (group.group_id,)
        states.add_metric((group.group_id, group.state.value), 1)
        members.add_metric(label, group.members)
        generations.add_metric(label, group.generation)
        for (topic, index), committed in groups.committed(group.group_id).items():
            where = (group.group_id, topic, str(index))
            offsets.add_metric(where, committed.offset)
            partition = topics.partition(topic, index)
            if partition is not None:
                start = max(committed.offset, partition.log.log_start_offset)
                lags.add_metric(where, max(0, partition.high_watermark - start))
    yield from (states, members, generations, offsets, lags)


def transaction_families(coordinator: TransactionCoordinator) -> Iterator[Metric]:
    transactions, oldest = Gauges.TRANSACTIONS.family(), Gauges.OLDEST_TRANSACTION.family()
    known = coordinator.transactions()
    numbers = Counter(each.state for each in known)
    for state in TransactionState:
        transactions.add_metric((state.value,), numbers[state])
    now_ms = coordinator.now_ms()
    ages = (now_ms - each.started_ms for each in known if each.state.is_active)
    oldest.add_metric((), max(ages, default=0) / 1000)
    yield from (transactions, oldest)
