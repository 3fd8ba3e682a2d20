"""SparkWriter without Spark: what a retry says, and which arguments are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.record import Range, Rows
from kmr.reducers.reducer import Retry
from kmr.sinks.spark.writer import SparkWriter

from ...flushes import outcome_now

if TYPE_CHECKING:
    from kmr.reducers.reducer import Context


def rows_of(first: int, last: int, partition: int = 0, **columns: Any) -> Rows:
    offsets = np.arange(first, last + 1)
    table = pa.table({"partition": [partition] * len(offsets), "offset": offsets, **columns})
    return Rows(table, (Range("t", partition, first, last),), offsets)


@pytest.mark.parametrize(
    ("format_", "aggregated", "doubles"),
    [
        ("delta", False, False),
        ("delta", True, True),
        ("iceberg", False, True),
        ("orc", True, False),
    ],
)
async def test_a_retry_says_that_rows_may_be_doubled_where_spark_appends_without_a_transaction_id(
    context: Context, format_: str, aggregated: bool, doubles: bool
) -> None:
    session = MagicMock()
    session.createDataFrame.side_effect = OSError("the connection is lost")
    writer = SparkWriter(path="hdfs://h/x", format=format_)
    await writer.open(context.with_sinks(session=session))
    rows = rows_of(0, 4)
    if aggregated:
        rows = Rows(rows.table, (*rows.ranges, Range("t", 1, 0, 4)), None)
    writer.add(rows)
    result = outcome_now(writer)
    assert isinstance(result, Retry)
    assert result.may_double is doubles


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a table, a path, or a transform"),
        ({"table": "t", "path": "p"}, "either table or path"),
        ({"table": "t", "partition_by": "a"}, "are for a path"),
        ({"path": "p"}, "need no Spark: use ParquetWriter"),
        ({"table": "t", "changes": True}, "needs key="),
        ({"table": "t", "key": ["id"]}, "set changes=True"),
        ({"table": "t", "create": True}, "create= is for changes=True"),
        (
            {"path": "p", "format": "orc", "changes": True, "key": ["id"]},
            "cannot change rows in files of orc: set format='delta'",
        ),
        (
            {"table": "t", "transform": print, "changes": True, "key": ["id"]},
            "remove transform= and options=",
        ),
        ({"table": "t", "max_rows": 0}, "max_rows must be above 0"),
        (
            {"path": "p", "format": "orc", "schema": pa.schema({"d": pa.duration("s")})},
            "column d of Spark",
        ),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        SparkWriter(**options)
