"""The two readers of the Kafka source: a stream of micro-batches, and one batch.

Most processes that Spark gives them to only plan. What reads and decodes is imported by tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from framework.errors import ConsumerError
from framework.memory import keep_freed_memory
from framework.spark.client import client_of
from framework.spark.offsets import Offsets, read_offsets, show_offsets
from framework.spark.planning import divide, limit_offsets, ranges_between
from framework.spark.positions import Positions
from framework.spark.rows import conform

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from framework.spark.offsets import OffsetRange
    from framework.spark.options import SourceOptions

__all__ = ["KafkaBatchReader", "KafkaStreamReader", "RangePartition"]

_log = structlog.get_logger(__name__)


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(str(wanted))
        self.range = wanted


def _read(
    wanted: OffsetRange, options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    from framework.spark.fetching import read_range

    keep_freed_memory()
    batches = read_range(
        client_of(options.client),
        wanted,
        fail_on_data_loss=options.fail_on_data_loss,
        timeout=options.poll_timeout,
    )
    for batch in batches:
        if len(batch.records):
            yield conform(batch.records, schema)


class KafkaBatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets, once."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The ranges, one task each."""
        options = self._options
        positions = Positions(client_of(options.client), options)
        found = positions.required()
        start = positions.resolve(options.starting, found)
        end = positions.resolve(options.ending, found)
        ranges = divide(ranges_between(start, end), options.min_partitions)
        return [RangePartition(wanted) for wanted in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range. (Without any range, Spark still wants one empty partition read.)"""
        if not isinstance(partition, RangePartition):
            return iter(())
        return _read(partition.range, self._options, self._schema)


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in one long-lived process beside the driver, and reads them inside tasks.

    The two halves share nothing but the options: tasks have a copy of this object.
    """

    grid: int | None = None
    """Divide ranges only at multiples of this offset."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._told: dict[str, Any] = {}
        self._troubled = False

    def _positions(self) -> Positions:
        return Positions(client_of(self._options.client), self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's names from here on
        """Nowhere: a query without a checkpoint begins with a micro-batch that reads nothing.

        It ends where reading begins. Spark does not log what this method returns: were it the first
        offsets themselves, then `latest` would be another place when that micro-batch is repeated.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option `maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take note of the end of everything: this query reads no further."""
        positions = self._positions()
        self._target = positions.resolve(self._options.ending, positions.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; `start` itself when there is nothing new."""
        positions = self._positions()
        if not start:
            return show_offsets(positions.resolve(self._options.starting, positions.required()))
        standing = read_offsets(start)
        self._tell_group(start)  # Spark asks for more when all before is in the checkpoint
        end = positions.advance(standing)
        self._latest = dict(end)
        if self._target is not None:
            end = {
                p: min(offset, max(self._target[p], standing.get(p, 0)))
                for p, offset in end.items()
                if p in self._target
            }
        if isinstance(limit, ReadMaxRows):
            end = limit_offsets(standing, end, limit.max_rows)
        return show_offsets(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of everything, as of the last look."""
        return None if self._latest is None else show_offsets(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of a micro-batch, one task each; the same whenever it is planned again."""
        begin, until = read_offsets(start), read_offsets(end)
        if begin and (unknown := [p for p in until if p not in begin]):
            # New ones. Spark's own source reads them at once; ours has logged where they begin.
            first = client_of(self._options.client).beginnings(unknown)
            begin |= {p: min(first[p], until[p]) for p in unknown}
        ranges = ranges_between(begin, until)
        parts = divide(ranges, self._options.min_partitions, grid=self.grid)
        return [RangePartition(wanted) for wanted in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range; runs inside a task."""
        if not isinstance(partition, RangePartition):
            raise TypeError(f"not a partition of this source: {partition!r}")
        return _read(partition.range, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has no use any more for what is before `end`."""
        self._tell_group(end)

    def _tell_group(self, offsets: dict[str, Any]) -> None:
        """Commit how far the checkpoint is, for lag tools. The checkpoint is what counts."""
        group = self._options.group
        if group is None or offsets == self._told:
            return
        self._told = offsets
        try:
            client_of(self._options.client).commit(group, read_offsets(offsets))
        except ConsumerError as error:
            if not self._troubled:
                _log.warning("group offsets not committed; reading goes on", reason=str(error))
            self._troubled = True
        else:
            self._troubled = False

    def stop(self) -> None:
        """Disconnect."""
        client_of(self._options.client).close()
