"""Several workers as one: status and metrics over their real channels."""

from __future__ import annotations

import math
import socket
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio
import msgspec
from anyio.abc import AsyncResource
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kmr.observe.failures import FailureSummary
from kmr.observe.metrics import Metrics
from kmr.settings import Settings
from kmr.supervisor.fleet_status import FleetStatus
from kmr.supervisor.messages import Job, encode
from kmr.supervisor.process import WorkerProcess, connect
from kmr.supervisor.supervised import Channel
from kmr.supervisor.supervised_worker import Restarts, SupervisedWorker
from kmr.supervisor.supervisor import Directories
from tests.framework.cli.watched_worker import STUCK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kmr.observe.status import WorkerStatus


class Supervised(AsyncResource):
    """A worker's end of the channel, in this process: it reports a status and metrics until `end`."""

    def __init__(self, index: int, status: WorkerStatus) -> None:
        self.pid = 100 + index
        self.returncode = None
        self.connection, self._ours = socket.socketpair()
        self._ended = anyio.Event()
        self._closed = threading.Event()
        channel = Channel(self._ours, self._closed.set)
        self.connection.sendall(encode(Job(index, "flow", None, {}, leaves=True)))
        channel.job()
        metrics = Metrics()
        metrics.settled.labels("flights").inc(status.settled)
        metrics.flush_records.labels("reduce-1").observe(5)
        metrics.drain_seconds.set(math.inf)

        def look() -> WorkerStatus:
            anyio.current_time()  # as a worker's own status does
            return status

        channel.report(look, metrics.registry)

    async def wait(self) -> int:
        await self._ended.wait()
        return 0

    async def aclose(self) -> None:
        """Nothing is left open."""

    def end(self) -> None:
        self._ours.shutdown(socket.SHUT_RDWR)
        assert self._closed.wait(60)
        self._ours.close()
        self._ended.set()


@asynccontextmanager
async def workers(*statuses: WorkerStatus | None) -> AsyncIterator[FleetStatus]:
    """Workers that report over real channels; one without a status has no process."""
    made = [SupervisedWorker(index, Restarts(5, 300)) for index in range(len(statuses))]
    channels = []
    async with anyio.create_task_group() as tasks:
        for worker, status in zip(made, statuses, strict=True):
            if status is not None:
                channel = Supervised(worker.index, status)
                channels.append(channel)
                process = WorkerProcess(
                    worker.index,
                    cast("anyio.abc.Process", channel),
                    *await connect(channel.connection),
                )
                tasks.start_soon(process.run, Directories().serve)
                await process.reports.wait()
                worker.begin(process)
        yield FleetStatus(Settings(topics=("flights",), group="flights-group"), made)
        for channel in channels:
            channel.end()


OTHER = msgspec.structs.replace(
    STUCK,
    problem=None,
    settled=7,
    partitions=(msgspec.structs.replace(STUCK.partitions[0], partition=1),),
)


async def test_the_status_of_several_workers_is_that_of_one_with_sums() -> None:
    async with workers(OTHER, STUCK) as fleet:
        status = await fleet.status()
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
    failure = FailureSummary(9.0, "flush repeated", "reduce-1", "no answer")
    failing = msgspec.structs.replace(OTHER, failed=2, repeated=1, failures=(failure,))
    later = msgspec.structs.replace(failure, time=10.0)
    other = msgspec.structs.replace(STUCK, failed=3, repeated=4, failures=(later,))
    async with workers(failing, other) as fleet:
        status = await fleet.status()
    assert (status.failed, status.repeated) == (5, 5)
    assert [(each.time, each.worker) for each in status.failures] == [(10.0, 1), (9.0, 0)]


async def test_one_worker_that_is_not_live_or_not_there_is_seen_in_the_status_of_all() -> None:
    dead = msgspec.structs.replace(STUCK, live=False, problem="map flights-0: hangs")
    async with workers(OTHER, dead, None) as fleet:
        status = await fleet.status()
    assert (status.state, status.live, status.ready) == ("starting", False, False)
    assert status.problem == "worker 1: map flights-0: hangs"


async def test_metrics_of_all_workers_have_a_label_and_are_not_summed() -> None:
    async with workers(OTHER, STUCK, None) as fleet:
        registry = await fleet.registry()
    lines = generate_latest(registry).decode().splitlines()
    assert 'kmr_settled_records_total{topic="flights",worker="0"} 7.0' in lines
    assert 'kmr_settled_records_total{topic="flights",worker="1"} 50.0' in lines
    assert [line for line in lines if line.startswith("kmr_worker_up")] == [
        'kmr_worker_up{worker="0"} 1.0',
        'kmr_worker_up{worker="1"} 1.0',
        'kmr_worker_up{worker="2"} 0.0',
    ]
    assert 'kmr_consumer_drain_seconds{worker="0"} +Inf' in lines
    assert lines.count("# TYPE kmr_settled_records_total counter") == 1
    text = openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    parsed = {family.name: family for family in families}
    assert parsed["kmr_reduce_flush_records"].type == "histogram"
    assert {each.labels["worker"] for each in parsed["kmr_settled_records"].samples} == {"0", "1"}
