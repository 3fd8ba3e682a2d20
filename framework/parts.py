"""The parts of a worker that its stages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .delivery.ledger import Ledgers
    from .intake.backpressure import Budget, Gate
    from .observe.metrics import Metrics
    from .record import TopicPartition


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of a worker that all stages of a kind share.

    Attributes:
        gate: while it is closed, no map, or no flush, begins.
        on_failure: called with the error that ends a stage, before its streams are closed.
        is_at_end: returns whether the broker has no more records of a partition, and said so lately.
    """

    ledgers: Ledgers
    gate: Gate
    budget: Budget
    metrics: Metrics
    on_failure: Callable[[BaseException], None]
    is_at_end: Callable[[TopicPartition], bool] = lambda _partition: False
