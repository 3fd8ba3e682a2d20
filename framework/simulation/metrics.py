"""The metrics of simulated workers, which are not kept."""

from __future__ import annotations

from typing import Any, Self

from prometheus_client.metrics import MetricWrapperBase

from ..observe.metrics import Metrics


class _UnreadCollector:
    """Any of Prometheus' collectors; it keeps nothing."""

    def labels(self, *_values: object) -> Self:
        return self

    def remove(self, *_values: object) -> None:
        pass

    def clear(self) -> None:
        pass

    def inc(self, amount: float = 1) -> None:
        if amount < 0:
            raise ValueError(f"a counter cannot fall (by {-amount})")

    def set(self, _value: float) -> None:
        pass

    def observe(self, _value: float) -> None:
        pass

    def info(self, _values: dict[str, str]) -> None:
        pass

    def set_function(self, _function: Any) -> None:
        pass


class UnreadMetrics(Metrics):
    """A worker's metrics without their series, which would take 5 % of a schedule; failures are counted."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in list(vars(self).items()):
            if isinstance(value, MetricWrapperBase):
                setattr(self, name, _UnreadCollector())
