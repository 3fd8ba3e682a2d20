"""`kmr-clickhouse`: DataFrames and streams of Spark into ClickHouse, each batch once."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from ....errors import SinkError, StrategyError, did_you_mean
from ..ddl import TableLayout
from ..staging import StagedRows, StagedTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

    from pyspark.sql.types import StructType

_OPTIONS: Final = (
    *("table", "url", "database", "create", "extra_columns", "job", "block_rows", "by_offsets"),
    *("order_by", "partition_by", "ttl", "engine"),
)
_OF_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
_BLOCK_ROWS: Final = 500_000
_MOST_BLOCK_ROWS: Final = 1_000_000
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class Options(NamedTuple):
    """The options of a DataFrame writer."""

    table: StagedTable
    job: str | None
    block_rows: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Read the options. Raises StrategyError."""
        known = {name.lower(): value for name, value in given.items()}
        for name in known:
            if name not in _OPTIONS and name not in _OF_SPARK:
                raise StrategyError(
                    f"kmr-clickhouse has no option {name}{did_you_mean(name, _OPTIONS)}"
                )
        database, _, name = known.get("table", "").rpartition(".")
        if not name:
            raise StrategyError('kmr-clickhouse: set option("table", "hits")')
        extra: Any = known.get("extra_columns", "error")
        if extra not in ("error", "ignore"):
            raise StrategyError(f"kmr-clickhouse: extra_columns is error or ignore, not {extra!r}")
        order_by = known.get("order_by")
        block_rows = _count("block_rows", known.get("block_rows", str(_BLOCK_ROWS)))
        by_offsets = _flag("by_offsets", known.get("by_offsets", "false"))
        return cls(
            StagedTable(
                name,
                known.get("url"),
                known.get("database") or database or None,
                create=_flag("create", known.get("create", "false")),
                layout=TableLayout(
                    None if order_by is None else tuple(map(str.strip, order_by.split(","))),
                    known.get("partition_by"),
                    known.get("ttl"),
                    known.get("engine"),
                ),
                extra=extra,
                range_offsets=block_rows if by_offsets else None,
            ),
            known.get("job"),
            block_rows,
        )


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise StrategyError(f"kmr-clickhouse: {name} is true or false, not {text!r}")
    return text.lower() == "true"


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_BLOCK_ROWS:
        raise StrategyError(f"kmr-clickhouse: {name} is 1 to {_MOST_BLOCK_ROWS}, not {text!r}")
    return int(text)


class ClickHouseSource(DataSource):
    """The format `kmr-clickhouse` of `df.write` and `df.writeStream`: rows that did not come from kmr.

    Each batch is in the table once: tasks stage their rows, the driver publishes those of the tasks that
    succeeded, and a batch that is repeated is found in the ledger, the table `<table>_kmr_batches`. The
    batch of a stream is named by its query and number, that of `df.write` by the option `job`.

    Example:
        ```python
        from kmr.sinks import ClickHouseSource

        def follow(spark, stream):
            spark.dataSource.register(ClickHouseSource)
            return (
                stream.writeStream.format("kmr-clickhouse")
                .option("url", "http://localhost:8123")
                .option("table", "hits")
                .option("create", "true")
                .option("checkpointLocation", "checkpoint")
                .start()
            )
        ```

    The options of the writer:

    - `table`: its name, also `database.table`.
    - `url`, `database`: as for `ClickHouseWriter`; without a URL the environment's `KMR_CLICKHOUSE_URL`, in
      the driver and the executors.
    - `create`: `true` makes a missing table, with the columns of the DataFrame; `order_by` (columns,
      separated by commas), `partition_by`, `ttl` and `engine` as for `ClickHouseWriter`.
    - `extra_columns`: `ignore` leaves out columns that the table lacks; `error` is the default.
    - `job`: only of `df.write`: the name of this write. A write that is repeated under the same name writes
      nothing if the first one was published. Without it each call writes.
    - `block_rows`: rows of one INSERT, 500,000 by default.
    - `by_offsets`: `true`: the rows carry `topic`, `partition` and `offset`, and all rows of a record come in
      one batch. Then a record is written once, also by another query or job: what the table has is left out.

    Args:
        options: Spark gives them.

    Raises:
        StrategyError: an option is wrong, the columns do not fit, or the table does not recognise a
            repeated INSERT. Before the first row.
        SinkError: ClickHouse does not answer, or a value does not fit. Then the batch is not published.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options.of(options)

    @classmethod
    def name(cls) -> str:
        return "kmr-clickhouse"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        _check_mode(overwrite)
        given = self._options
        anyio.run(_prepare, given.table, _arrow(schema))
        return BatchWriter(given.table, given.block_rows, given.job or f"write {uuid.uuid4()}")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        _check_mode(overwrite)
        given = self._options
        if given.job is not None:
            raise StrategyError(
                "kmr-clickhouse: job is for df.write; a stream is named by its checkpoint, and the numbers "
                "of its batches begin again with a new one"
            )
        anyio.run(_prepare, given.table, _arrow(schema))
        return MicroBatchWriter(given.table, given.block_rows)


def _check_mode(overwrite: bool) -> None:
    if overwrite:
        raise StrategyError(
            'kmr-clickhouse appends: say mode("append"), or outputMode("append") of a stream; to replace a '
            "table, write another one and EXCHANGE TABLES"
        )


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


async def _prepare(table: StagedTable, schema: pa.Schema) -> None:
    await table.using(lambda connection: table.prepare(connection, schema))


@dataclass
class StagedTask(WriterCommitMessage):
    """What a task reports: its staging table, and whose batch it is of."""

    job: str
    batch: int
    rows: StagedRows


def _stage(
    table: StagedTable, block_rows: int, job: str, batch: int, batches: Iterable[pa.RecordBatch]
) -> StagedTask:
    blocks = _blocks(batches, block_rows)
    work = partial(table.stage, job=job, batch=batch, blocks=blocks)
    rows: StagedRows = anyio.run(table.using, work)
    return StagedTask(job, batch, rows)


def _blocks(batches: Iterable[pa.RecordBatch], block_rows: int) -> Iterator[pa.Table]:
    """Join and cut batches to tables of at most so many rows."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while count + len(rest) >= block_rows:
            taken = block_rows - count
            yield pa.Table.from_batches([*waiting, rest.slice(0, taken)])
            waiting, count, rest = [], 0, rest.slice(taken)
        if len(rest):
            waiting.append(rest)
            count += len(rest)
    if waiting:
        yield pa.Table.from_batches(waiting)


def _publish(table: StagedTable, messages: Sequence[WriterCommitMessage | None]) -> None:
    staged = [each for each in messages if isinstance(each, StagedTask)]
    if not staged:
        return
    job, batch = staged[0].job, staged[0].batch
    rows = [each.rows for each in staged]
    anyio.run(table.using, partial(table.publish, job=job, batch=batch, staged=rows))


def _abort(table: StagedTable, messages: Sequence[WriterCommitMessage | None]) -> None:
    rows = [each.rows for each in messages if isinstance(each, StagedTask)]
    anyio.run(table.using, partial(table.drop, staged=rows))


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: the batch 0 of its job."""

    def __init__(self, table: StagedTable, block_rows: int, job: str) -> None:
        self._table, self._block_rows, self._job = table, block_rows, job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return _stage(self._table, self._block_rows, self._job, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _publish(self._table, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._table, messages)


class MicroBatchWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, table: StagedTable, block_rows: int) -> None:
        self._table, self._block_rows = table, block_rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        task: Any = TaskContext.get()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise SinkError("kmr-clickhouse: Spark does not tell the task which query it is of")
        return _stage(self._table, self._block_rows, f"query {query}", int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId  # the messages have it
        _publish(self._table, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId
        _abort(self._table, messages)
