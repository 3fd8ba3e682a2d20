"""All workers as one: their status and their metrics, asked for at each request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..observe.failures import latest
from ..observe.status import WorkerState, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..observe.status import StageStatus
    from ..settings import Settings
    from .messages import MetricFamily
    from .supervised_worker import SupervisedWorker

_WORST_FIRST: Final[tuple[WorkerState, ...]] = (
    *("failed", "stopped", "draining", "starting", "suspended", "running"),
)


class FleetStatus:
    """The source of the endpoints that are about all workers; `workers`: all of them."""

    def __init__(self, settings: Settings, workers: Sequence[SupervisedWorker]) -> None:
        self._settings = settings
        self._workers = workers
        self._started = time.monotonic()

    async def status(self) -> WorkerStatus:
        """Return the status of all workers as that of one.

        Counts are sums. It is live if all workers are, and ready if all are; one that is started again is
        live.
        """
        async with anyio.create_task_group() as tasks:
            for worker in self._workers:
                tasks.start_soon(worker.ask)
        summaries = tuple(worker.summary() for worker in self._workers)
        states = {summary.state for summary in summaries}
        problems = [f"worker {each.index}: {each.problem}" for each in summaries if each.problem]
        known = [(each.index, each.status) for each in self._workers if each.status is not None]
        return WorkerStatus(
            state=next(state for state in _WORST_FIRST if state in states),
            live=all(summary.live for summary in summaries),
            ready=all(summary.ready for summary in summaries),
            problem="; ".join(problems) or None,
            group=self._settings.group,
            topics=self._settings.topics or (self._settings.topic_pattern or "",),
            stages=tuple(
                _of_worker(stage, index) for index, status in known for stage in status.stages
            ),
            partitions=tuple(
                sorted(
                    (each for _, status in known for each in status.partitions),
                    key=lambda each: (each.topic, each.partition),
                )
            ),
            inflight_bytes=sum(status.inflight_bytes for _, status in known),
            inflight_limit=sum(status.inflight_limit for _, status in known),
            consumed=sum(summary.consumed for summary in summaries),
            settled=sum(summary.settled for summary in summaries),
            uptime=time.monotonic() - self._started,
            workers=summaries,
            failed=sum(worker.failed for worker in self._workers),
            repeated=sum(worker.repeated for worker in self._workers),
            failures=latest(each for worker in self._workers for each in worker.failures()),
            letters=next((status.letters for _, status in known), None),
            backfill=next((each.backfill for _, each in known if each.backfill is not None), None),
            tables=tuple(
                msgspec.structs.replace(table, name=f"{table.name} worker {index}")
                for index, status in known
                for table in status.tables
            ),
        )

    async def registry(self) -> CollectorRegistry:
        """Return the metrics of all workers, with the label `worker`, beside those of the supervisor.

        Nothing is summed: a counter of one worker begins anew when that one restarts, which Prometheus sees
        in its own series only. `sum without (worker) (rate(...))` is the whole.
        """
        answers: dict[int, tuple[MetricFamily, ...]] = {}

        async def ask(worker: SupervisedWorker) -> None:
            families = await worker.ask(metrics=True)
            if families is not None:
                answers[worker.index] = families

        async with anyio.create_task_group() as tasks:
            for worker in self._workers:
                tasks.start_soon(ask, worker)
        registry = CollectorRegistry()
        registry.register(
            _Families([*metrics_of_supervisor(self._workers, answers), *_labelled(answers)])
        )
        return registry


def metrics_of_supervisor(
    workers: Iterable[SupervisedWorker], answered: Collection[int]
) -> tuple[Metric, ...]:
    """Return the metrics that only the supervisor has.

    Args:
        answered: the numbers of the workers that answered this scrape.
    """
    up = GaugeMetricFamily(
        "kmr_worker_up", "1 if the worker answered this scrape, else 0.", labels=["worker"]
    )
    restarts = CounterMetricFamily(
        "kmr_worker_restarts",
        "Times that a worker was started again after it had ended by itself.",
        labels=["worker"],
    )
    for worker in workers:
        up.add_metric([str(worker.index)], float(worker.index in answered))
        restarts.add_metric([str(worker.index)], worker.restarts.total)
    return up, restarts


def _of_worker(stage: StageStatus, index: int) -> StageStatus:
    """Name a stage after its worker, unless it is that of a partition, which no other worker has."""
    if " " in stage.name:
        return stage
    return msgspec.structs.replace(stage, name=f"{stage.name} worker {index}")


def _labelled(answers: Mapping[int, Iterable[MetricFamily]]) -> Iterable[Metric]:
    """Return the metrics of all workers, with the label `worker`."""
    merged: dict[str, Metric] = {}
    for index, families in sorted(answers.items()):
        for family in families:
            metric = merged.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for name, labels, value in family.samples:
                metric.add_sample(name, {"worker": str(index), **labels}, float(value))
    return merged.values()


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
