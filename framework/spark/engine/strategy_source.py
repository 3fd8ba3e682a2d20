"""The strategy inside a query: a Kafka source of its own, whose tasks also map and write.

Only failed records, rows for the driver and reports leave a task, in `REPORT_SCHEMA`. Planner
processes import this module, so it imports what runs a strategy (`task.py`) only inside functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ...kafka.connection import ConnectionConfig
    from ...kafka.consumer import CommitOffset
    from ...record import Batch, TopicPartition
    from ...reducers.reducer import Context
    from ...strategy import Strategy
    from ..reader import KafkaStreamReader, RangePartition
    from ..source_settings import SourceSettings

REPORT_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int, headers array<struct<key string, value binary>>, "
    "reason string, stage string, attempt int, "
    "exception string, traceback string, rows binary, report binary"
)
"""The rows of a task, as DDL. A row is one of three kinds; its other columns are null: the columns of a
failed record; `rows` (packed) with the topic, partition and first offset they begin at; `report`."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The strategy and its context, pickled for tasks. Make one with `of`.

    Attributes:
        logged: the newest micro-batch that the checkpoint had when the query started, -1 without one; an
            earlier query may have written the rows of it.
        checkpoint: its URI, of a strategy that remembers records there; else None.
        memory_bytes: how much a task may remember; None: see `TaskMemory`.
        idle: see `KafkaStreamReader`.
        connection: of the brokers that have the topics of look-up tables.
    """

    payload: bytes
    logged: int = -1
    checkpoint: str | None = None
    memory_bytes: int | None = None
    idle: tuple[int, int] | None = None
    connection: ConnectionConfig | None = None

    @classmethod
    def of(
        cls,
        strategy: Strategy,
        context: Context,
        *,
        logged: int = -1,
        checkpoint: str | None = None,
        memory_bytes: int | None = None,
        connection: ConnectionConfig | None = None,
    ) -> TaskPlan:
        """Pickle definitions from `__main__` by value, everything else by name.

        Raises:
            StrategyError: the strategy cannot be pickled.
        """
        from ..shipping import pickled

        payload = pickled((strategy, context))
        window = strategy.window
        idle = None if window is None or window.idle is None else (window.idle, window.holds)
        return cls(payload, logged, checkpoint, memory_bytes, idle, connection)


def strategy_source(name: str, plan: TaskPlan, settings: SourceSettings) -> type[DataSource]:
    """Make a data source whose tasks fetch, map and write."""

    class StrategySource(DataSource):
        """Pickled by value, with plan and settings in it."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return REPORT_SCHEMA

        def streamReader(self, schema: StructType) -> KafkaStreamReader:  # noqa: N802
            from pyspark.sql.pandas.types import to_arrow_schema

            from ..reader import KafkaStreamReader
            from .chunks import GRID

            # Spark expects exactly these types of batches, including nullability.
            expected = to_arrow_schema(schema, timezone="UTC")
            process = partial(_run_task, plan)
            at_end = None
            if plan.checkpoint is not None:
                at_end = partial(_memory_at_end, plan.checkpoint)
            return KafkaStreamReader(
                settings, expected, process=process, grid=GRID, idle=plan.idle, at_end=at_end
            )

    return StrategySource


def _run_task(
    plan: TaskPlan, part: RangePartition, batches: Iterator[Batch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    from .task import run_task

    return run_task(plan, part.range, batches, schema, part.idle)


def _memory_at_end(checkpoint: str, partition: TopicPartition, end: CommitOffset) -> CommitOffset:
    from .task_memory import memory_at_end

    return memory_at_end(checkpoint, partition, end)
