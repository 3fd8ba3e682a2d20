"""The reader of the Kafka source: a stream of micro-batches.

Spark's planner process and its tasks both unpickle it. The decoder, which loads a compiler,
is imported by tasks only.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import aiokafka.errors
import structlog
from aiokafka.errors import KafkaError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..archives.archive import shared_archive
from ..errors import ConsumerError, OffsetOutOfRange
from ..record import Range
from .blocking_client import shared_client
from .idle import IdleClock, read_idle
from .offsets import (
    DATA_LOSS_ADVICE,
    OffsetPlanner,
    Offsets,
    check_topics,
    divide_ranges,
    limit_offsets,
    ranges_between,
    read_offsets,
    show_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    import pyarrow as pa

    from ..formats.batch_decoder import BatchDecoder
    from ..kafka.consumer import CommitOffset
    from ..kafka.fetching import FetchedPartition
    from ..record import Batch, TopicPartition
    from .blocking_client import BlockingClient
    from .idle import Idle
    from .source_settings import ClientConfig, SourceSettings

    RangeProcessor: TypeAlias = Callable[
        ["RangePartition", Iterator[Batch], pa.Schema], Iterator[pa.RecordBatch]
    ]

_log = structlog.get_logger(__name__)

_RETRY_AFTER: Final = 0.1  # seconds, after an error or an empty response
_OUT_OF_RANGE: Final = 1


def read_records(settings: SourceSettings, wanted: Range) -> Iterator[Batch]:
    """Yield the records of a range: from the archive as far as that reaches, then from the topic.

    Raises as `read_range` and `Archive`.
    """
    if settings.archive is not None:
        archive = shared_archive(settings.archive)
        end = min(archive.end(wanted.topic_partition, wanted.first), wanted.last + 1)
        if end > wanted.first:
            yield from archive.batches(wanted._replace(last=end - 1))
            wanted = wanted._replace(first=end)
    if wanted.first <= wanted.last:
        yield from read_range(
            shared_client(settings.client),
            wanted,
            fail_on_data_loss=settings.fail_on_data_loss,
            timeout=settings.poll_timeout,
        )


def read_range(
    client: BlockingClient, wanted: Range, *, fail_on_data_loss: bool, timeout: float
) -> Iterator[Batch]:
    """Fetch the records of a range, in order, as batches that are decoded on first use.

    The batches' ranges follow each other without a gap and cover the whole range.

    Args:
        timeout: seconds without a new record after which the range counts as unreadable.

    Raises:
        OffsetOutOfRange: records of the range are gone, and `fail_on_data_loss`.
        ConsumerError: the broker does not deliver the range.
        CorruptRecords: a record batch is damaged.
    """
    partition = wanted.topic_partition
    decoder = _decoder(client.config)
    position = wanted.first
    deadline = time.monotonic() + timeout
    coming = client.fetch(partition, position)
    while position <= wanted.last:
        trouble = "there are no records yet"
        fetched: FetchedPartition | None = None
        try:
            fetched = coming.result()
        except KafkaError as error:
            trouble = repr(error)
        if fetched is not None and fetched.error == _OUT_OF_RANGE:
            position = _after_loss(client, wanted, position, fail=fail_on_data_loss)
            if position <= wanted.last:
                coming = client.fetch(partition, position)
            continue
        if fetched is not None and fetched.error:
            trouble = aiokafka.errors.for_code(fetched.error).__name__
        elif fetched is not None and fetched.data:
            batch = decoder.batch(
                partition.topic, partition.partition, fetched.data, position, fetched.aborted
            )
            if batch is not None:
                deadline = time.monotonic() + timeout
                position = batch.last + 1
                if position <= wanted.last:
                    coming = client.fetch(partition, position)
                yield (
                    batch if batch.last <= wanted.last else batch.slice(batch.first, wanted.last)
                )
                continue
        if time.monotonic() >= deadline:
            _give_up(wanted, position, trouble, timeout, fail=fail_on_data_loss)
            return
        if fetched is None or fetched.error:
            time.sleep(_RETRY_AFTER)
        coming = client.fetch(partition, position)


@lru_cache(maxsize=32)
def _decoder(config: ClientConfig) -> BatchDecoder:
    """Return the decoder that tasks of this process share: it learns how far a topic's batches expand."""
    from ..formats.batch_decoder import BatchDecoder

    return BatchDecoder(read_committed=config.isolation_level == "read_committed")


def _after_loss(client: BlockingClient, wanted: Range, position: int, *, fail: bool) -> int:
    """Return the next offset of the range that the broker has; it does not have `position`."""
    partition = wanted.topic_partition
    beginning = client.beginnings([partition])[partition]
    end = client.ends([partition])[partition]
    where = f"{partition}: offset {position} is gone; the broker has {beginning} to {end - 1}"
    if fail:
        raise OffsetOutOfRange(f"{where} (wanted: {wanted}). {DATA_LOSS_ADVICE}")
    following = beginning if position < beginning <= wanted.last else wanted.last + 1
    _log.warning("records are gone, going on after them", where=where, next=following)
    return following


def _give_up(wanted: Range, position: int, trouble: str, timeout: float, *, fail: bool) -> None:
    reason = f"{wanted.topic_partition}: nothing at offset {position} of {wanted} in {timeout:g} s: {trouble}"
    if fail:
        raise ConsumerError(f"{reason}. {DATA_LOSS_ADVICE}")
    _log.warning("records cannot be read, going on after them", reason=reason)


class RangePartition(InputPartition):
    """The range that one task reads; without offsets, the partition is only idle for longer.

    Attributes:
        idle: microseconds without a record: before the micro-batch, and at its end.
    """

    def __init__(self, wanted: Range, idle: tuple[int, int] = (0, 0)) -> None:
        super().__init__(str(wanted))
        self.range = wanted
        self.idle = idle


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in one long-lived process beside the driver, and reads them inside tasks.

    The two halves share only the settings: each task has a copy of this object.

    Args:
        process: turns the batches of a range into the rows for Spark.
        grid: divide ranges only at multiples of this offset.
        idle: the shortest time without a record that counts, and the longest, in microseconds; None: none
            does.
        at_end: see `SourceSettings.commits`.
    """

    def __init__(
        self,
        settings: SourceSettings,
        schema: pa.Schema,
        *,
        process: RangeProcessor,
        grid: int | None = None,
        idle: tuple[int, int] | None = None,
        at_end: Callable[[TopicPartition, CommitOffset], CommitOffset] | None = None,
    ) -> None:
        self._settings = settings
        self._at_end = at_end
        self._idle = idle
        self._clock: IdleClock | None = None
        self._schema = schema
        self._process = process
        self._grid = grid
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._committed: dict[str, Any] = {}
        self._commit_failed = False

    @property
    def _planner(self) -> OffsetPlanner:
        return OffsetPlanner(shared_client(self._settings.client), self._settings)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's names from here on
        """Return no offsets: a query without a checkpoint begins with an empty micro-batch.

        That micro-batch ends where reading begins. Spark does not log the result of this method: if it
        were the starting offsets, `latest` would be another place when the micro-batch is repeated.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return `max_offsets_per_trigger`."""
        limit = self._settings.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take note of the current end offsets: this query reads no further."""
        bounds = self._settings.bounds
        self._target = self._planner.ends() if bounds is None else dict(bounds.until)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch; `start` itself when there is nothing new."""
        planner = self._planner
        if not start:
            bounds, partitions = self._settings.bounds, planner.required_partitions()
            return show_offsets(planner.first(partitions) if bounds is None else bounds.first)
        position = read_offsets(start)
        self.commit(start)  # Spark plans the next one: the checkpoint has all before `start`
        end = planner.latest(position)
        self._latest = end
        if self._target is not None:
            end = {
                p: min(offset, max(self._target[p], position.get(p, 0)))
                for p, offset in end.items()
                if p in self._target
            }
        if isinstance(limit, ReadMaxRows):
            end = limit_offsets(position, end, limit.max_rows)
        return show_offsets(end, self._idle_at(position, read_idle(start), end))

    def _idle_at(self, start: Offsets, before: Idle, end: Offsets) -> Idle:
        """Return for how long partitions are idle at the end of a micro-batch."""
        if self._idle is None or self._target is not None:  # a query that ends waits for nothing
            return {p: idle for p, idle in before.items() if end.get(p) == start[p]}
        if self._clock is None:
            self._clock = IdleClock(*self._idle)
        return self._clock.passed(start, before, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the end offsets of the last `latestOffset`, without its limit."""
        return None if self._latest is None else show_offsets(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the ranges of a micro-batch, one task each; the same whenever it is planned again."""
        check_topics(self._settings, read_offsets(end))  # one that is repeated may have others
        # A partition that only `end` has is new: `latest` gave it its first offset, so it has no range yet.
        ranges = ranges_between(read_offsets(start), read_offsets(end))
        parts = divide_ranges(ranges, self._settings.min_partitions, grid=self._grid)
        before, after = read_idle(start), read_idle(end)
        idle = [
            RangePartition(Range(*p, first, first - 1), (before.get(p, 0), after[p]))
            for p, first in sorted(read_offsets(end).items())
            if after.get(p, 0) > before.get(p, 0)
        ]
        reads = [RangePartition(part, (before.get(part.topic_partition, 0), 0)) for part in parts]
        return [*reads, *idle]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range; runs inside a task."""
        if not isinstance(partition, RangePartition):
            raise TypeError(f"not a partition of this source: {partition!r}")
        batches = read_records(self._settings, partition.range)
        return self._process(partition, batches, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit `end` to the group, for lag tools; Spark no longer needs earlier offsets.

        A failure is only logged: the checkpoint is what counts.
        """
        if end == self._committed:
            return
        self._committed = end
        try:
            client = shared_client(self._settings.client)
            entries = self._settings.commits(read_offsets(end), self._at_end)
            client.commit(self._settings.group, entries)
        except ConsumerError as error:
            if not self._commit_failed:
                _log.warning("group offsets not committed; reading goes on", reason=str(error))
            self._commit_failed = True
        else:
            self._commit_failed = False

    def stop(self) -> None:
        """Disconnect."""
        shared_client(self._settings.client).close()
