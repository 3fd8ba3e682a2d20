"""The strategy inside a query: as a Kafka source of its own, or as a function behind another source.

Either way only failed records, rows for the driver and reports leave a task, in `REPORT_SCHEMA`. Planner
processes import this module, so it imports what runs a strategy (`task.py`) only inside functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark import cloudpickle

from ..source.data_source import COLUMNS, HEADERS, KafkaDataSource, arrow_schema
from ..source.options import SourceOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ...record import Batch, Range
    from ...reducers.reducer import Context
    from ...strategy import Strategy
    from ..source.reader import KafkaStreamReader

__all__ = ["REPORT_SCHEMA", "TaskPlan", "strategy_function", "strategy_source"]

REPORT_SCHEMA = (
    f"{COLUMNS}, {HEADERS}, reason string, stage string, attempt int, "
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
    """

    payload: bytes
    logged: int = -1

    @classmethod
    def of(cls, strategy: Strategy, context: Context, *, logged: int = -1) -> TaskPlan:
        """Pickle definitions from `__main__` by value, everything else by name."""
        payload: bytes = cloudpickle.dumps((strategy, context))  # type: ignore[no-untyped-call]
        return cls(payload, logged)


def strategy_source(name: str, plan: TaskPlan) -> type[KafkaDataSource]:
    """Make a data source whose tasks fetch, map and write."""

    class StrategySource(KafkaDataSource):
        """Pickled by value, with the plan in it."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return REPORT_SCHEMA

        def streamReader(self, schema: StructType) -> KafkaStreamReader:  # noqa: N802
            from ..source.reader import KafkaStreamReader
            from .chunks import GRID

            options = SourceOptions.parse(self.options, streaming=True)
            process = partial(_run_task, plan)
            return KafkaStreamReader(options, arrow_schema(schema), process=process, grid=GRID)

    return StrategySource


def _run_task(
    plan: TaskPlan, wanted: Range, batches: Iterator[Batch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    from .task import run_task

    return run_task(plan, wanted, batches, schema)


def strategy_function(
    plan: TaskPlan, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make a function for `mapInArrow` that maps and writes the rows of Spark's own Kafka source."""
    from .task import run_rows

    return partial(run_rows, plan, schema)
