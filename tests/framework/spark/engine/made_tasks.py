"""Strategies with a poisoned record and a picky sink, and what their tasks report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kmr import Aggregate, Strategy, map_record
from kmr.delivery.failures import FAILED_SCHEMA
from kmr.record import Range
from kmr.reducers.collect import Collecting, one_table
from kmr.reducers.reducer import Context
from kmr.reducers.sink import Refusal, RowsRefused
from kmr.spark.engine.strategy_source import TaskPlan
from kmr.spark.engine.task import run_task
from kmr.testing import batch_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmr.record import Record

SCHEMA = pa.schema([*FAILED_SCHEMA, pa.field("rows", pa.binary()), pa.field("report", pa.binary())])
CONTEXT = Context(group="g", stage="")
COUNT = Aggregate(["value"], {"n": ("*", "count")})


@map_record
def parse(record: Record) -> dict[str, Any] | None:
    assert record.value is not None
    if record.value == b"poison":
        raise ValueError("poisoned")
    return None if record.value == b"skip" else {"value": record.value.decode()}


class PickySink(Collecting):
    """Refuses the value `bad`; an error of its own is a wrong sink."""

    def flush(self) -> None:
        values = one_table(self.rows)["value"].to_pylist()
        if "broken" in values:
            raise OSError("the disk is full")
        if "bad" in values:
            raise RowsRefused([Refusal(self.rows[0], "refused")])


def task(strategy: Strategy, values: Sequence[bytes | None], *, partition: int = 0) -> pa.Table:
    batch = batch_of("t", partition, 10, values)
    wanted = Range("t", partition, 10, batch.last)
    plan = TaskPlan.of(strategy, CONTEXT)
    return pa.Table.from_batches(run_task(plan, wanted, iter([batch]), SCHEMA), SCHEMA)
