"""Several workers as one: status and metrics from their real endpoints."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import aiohttp
import anyio
import msgspec
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kmr.observe.failures import Failure
from kmr.observe.health import HealthServer
from kmr.observe.metrics import Metrics
from kmr.settings import Settings
from kmr.supervisor.restarts import Restarts
from kmr.supervisor.slot import Slot
from kmr.supervisor.whole import Whole
from tests.framework.cli.watched_worker import STUCK
from tests.framework.supervisor.test_slot import Process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.observe.status import WorkerStatus
    from kmr.supervisor.process import WorkerProcess


@asynccontextmanager
async def workers(*statuses: WorkerStatus | None) -> AsyncIterator[Whole]:
    """Serve the endpoints of workers; one without a status has no process."""
    slots = [Slot(index, Restarts(5, 300)) for index in range(len(statuses))]
    async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
        for slot, status in zip(slots, statuses, strict=True):
            if status is not None:
                await tasks.start(serve, slot, status)
        yield Whole(Settings(topics=("flights",), group="flights-group"), slots, session)
        tasks.cancel_scope.cancel()


async def serve(
    slot: Slot, status: WorkerStatus, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    metrics = Metrics()
    metrics.settled.labels("flights").inc(status.settled)
    metrics.flush_records.labels("reduce-1").observe(5)
    async with HealthServer("127.0.0.1", 0, lambda: status, metrics) as server:
        process = Process(100 + slot.index)
        process.url = server.url
        process.serving.set()
        slot.begin(cast("WorkerProcess", process))
        task_status.started()
        await anyio.sleep_forever()


OTHER = msgspec.structs.replace(
    STUCK,
    problem=None,
    settled=7,
    partitions=(msgspec.structs.replace(STUCK.partitions[0], partition=1),),
)


async def test_the_status_of_several_workers_is_that_of_one_with_sums() -> None:
    async with workers(OTHER, STUCK) as whole:
        status = await whole.status()
    assert (status.state, status.live, status.ready) == ("running", True, True)
    assert status.problem == "worker 1: reduce-1: no answer from the database"
    assert (status.settled, status.consumed) == (57, 180)
    assert (status.inflight_bytes, status.inflight_limit) == (2 * 2**20, 2 * 2**21)
    assert [stage.name for stage in status.stages] == ["reduce-1 worker 0", "reduce-1 worker 1"]
    assert [each.partition for each in status.partitions] == [0, 1]
    assert [(each.index, each.pid, each.settled) for each in status.workers] == [
        (0, 100, 7),
        (1, 101, 50),
    ]


async def test_failures_of_all_workers_are_summed_and_say_whose_they_are() -> None:
    failure = Failure(9.0, "flush repeated", "reduce-1", "no answer")
    failing = msgspec.structs.replace(OTHER, failed=2, repeated=1, failures=(failure,))
    later = msgspec.structs.replace(failure, time=10.0)
    other = msgspec.structs.replace(STUCK, failed=3, repeated=4, failures=(later,))
    async with workers(failing, other) as whole:
        status = await whole.status()
    assert (status.failed, status.repeated) == (5, 5)
    assert [(each.time, each.worker) for each in status.failures] == [(10.0, 1), (9.0, 0)]


async def test_one_worker_that_is_not_live_or_not_there_is_seen_in_the_whole() -> None:
    dead = msgspec.structs.replace(STUCK, live=False, problem="map flights-0: hangs")
    async with workers(OTHER, dead, None) as whole:
        status = await whole.status()
    assert (status.state, status.live, status.ready) == ("starting", False, False)
    assert status.problem == "worker 1: map flights-0: hangs"


async def test_metrics_of_all_workers_have_a_label_and_are_not_summed() -> None:
    async with workers(OTHER, STUCK, None) as whole:
        registry = await whole.registry()
    lines = generate_latest(registry).decode().splitlines()
    assert 'kmr_settled_records_total{topic="flights",worker="0"} 7.0' in lines
    assert 'kmr_settled_records_total{topic="flights",worker="1"} 50.0' in lines
    assert [line for line in lines if line.startswith("kmr_worker_up")] == [
        'kmr_worker_up{worker="0"} 1.0',
        'kmr_worker_up{worker="1"} 1.0',
        'kmr_worker_up{worker="2"} 0.0',
    ]
    assert lines.count("# TYPE kmr_settled_records_total counter") == 1
    text = openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    parsed = {family.name: family for family in families}
    assert parsed["kmr_reduce_flush_records"].type == "histogram"
    assert {each.labels["worker"] for each in parsed["kmr_settled_records"].samples} == {"0", "1"}
