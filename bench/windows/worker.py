"""A worker of this project counts hits: `python -m bench.windows.worker JOB`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import anyio

from bench.job import FLUSH_ROWS
from bench.process import Stopwatch, Taken
from bench.windows.job import TABLE, Hit, WindowJob
from kmr import Json, Strategy, Window
from kmr.service.process import freeze_modules, keep_freed_memory
from kmr.settings import Settings
from kmr.sinks import ClickHouseWriter, KafkaWriter
from kmr.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from kmr.observe.status import WorkerStatus


def strategy_of(job: WindowJob, length: str) -> Strategy:
    """Return a count for each window and path."""
    window = Window(
        *(length,),
        time="ts",
        by=["path"],
        columns={"hits": ("*", "count")},
        late="drop",
        keyed=True,
    )
    sink: Any = KafkaWriter(job.results, key="path", max_rows=FLUSH_ROWS, max_age=0.5)
    if job.clickhouse_url is not None:
        sink = ClickHouseWriter(TABLE, url=job.clickhouse_url, max_rows=FLUSH_ROWS, max_age=0.5)
    return Strategy(value=Json(Hit), reduce=[window, sink])


def is_written(status: WorkerStatus, job: WindowJob) -> bool:
    """Return whether only the records that close the last windows are left."""
    return sum(each.watermark or 0 for each in status.partitions) >= job.records


def is_open(status: WorkerStatus, job: WindowJob) -> bool:
    """Return whether all records are in open windows."""
    return sum(each.held for each in status.partitions) >= job.records


def run(job: WindowJob, length: str, is_done: Callable[[WorkerStatus, WindowJob], bool]) -> Taken:
    """Run a worker until it is done; return the time since it was started."""
    settings = Settings(
        topics=(job.topic,), group=job.group, bootstrap_servers=job.bootstrap_servers
    )
    keep_freed_memory()  # as `kmr run` does

    async def work() -> Taken:
        watch = Stopwatch()
        if is_done is is_open:
            watch.begin()  # a restart counts from its start
        worker = Worker(strategy_of(job, length), settings)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await worker.ready()
            freeze_modules()  # as `kmr run` does
            while worker.status().consumed == 0:  # noqa: ASYNC110  samples the clock
                await anyio.sleep(0.001)
            watch.begin()
            while not is_done(worker.status(), job):  # noqa: ASYNC110
                await anyio.sleep(0.02)
            taken = watch.taken()
            worker.shutdown("done")
        return taken

    return anyio.run(work)


if __name__ == "__main__":
    wanted = WindowJob(**json.loads(sys.argv[1]))
    done = run(wanted, "1h", is_open) if len(sys.argv) > 2 else run(wanted, "1m", is_written)
    json.dump(done._asdict(), sys.stdout)
