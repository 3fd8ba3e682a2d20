"""Starting the tasks' processes before the first task needs them."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from framework.spark.session import is_local
from framework.spark.task import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from framework.spark.plan import TaskPlan
    from framework.spark.properties import ClientConfig

__all__ = ["warm_up"]

_log = structlog.get_logger(__name__)


def warm_up(session: SparkSession, plan: TaskPlan, config: ClientConfig) -> None:
    """Start the processes of a local master's tasks, in a thread of its own; returns at once.

    Spark needs several Python processes, one after the other, to plan a query. Meanwhile those that will
    run its tasks import the strategy, load compiled code and connect, which takes longer than a small
    micro-batch does. Trouble is not told here.
    """
    context = session.sparkContext
    if not is_local(context.master):
        return
    slots = context.defaultParallelism

    def run() -> None:
        try:
            context.setJobDescription("kmr: the tasks' processes start")
            # By a DataFrame: Spark keeps other processes for RDDs.
            rows = session.range(0, slots, 1, slots)
            rows.mapInArrow(partial(_prepare, plan, config), rows.schema).collect()
        except Exception as error:  # noqa: BLE001  whatever it is, tasks tell it better
            _log.debug("the tasks' processes could not be prepared", error=str(error))

    threading.Thread(target=run, name="kmr-warm-up", daemon=True).start()


def _prepare(
    plan: TaskPlan, config: ClientConfig, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # Spark would print an error with its stack, and the query's tasks meet it too.
    with suppress(Exception):
        prepare(plan, config)
    yield from rows  # all of them: Spark ends a process that has not read its input
