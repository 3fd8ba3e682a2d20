"""Fetching by aiokafka's public `getmany`: ten times slower, and right with any version of aiokafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework.decode.columns import Row, from_rows
from framework.record import Batch, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RecordFetcher"]

_WAIT_MS = 200  # how long `wait` may not notice that a partition was resumed


class RecordFetcher:
    """Does what `BatchFetcher` does, from record objects.

    A batch ends with its last record: transaction markers after it belong to the next batch.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._arrived: dict[TopicPartition, Sequence[Any]] = {}
        self._next: dict[TopicPartition, int] = {}
        self._suspended = True

    def suspend(self) -> None:
        """From now on `take` returns nothing; what came in the assignment that ends is dropped."""
        self._suspended = True
        self._arrived.clear()
        self._next.clear()

    def resume(self) -> None:
        """Undo `suspend`."""
        self._suspended = False

    def wake(self) -> None:
        """Nothing waits for longer than a moment."""

    def start_offset(self, partition: TopicPartition) -> int | None:
        """Not known by this way."""

    def forget(self, partition: TopicPartition) -> None:
        """The position was moved: what has arrived is not wanted."""
        self._arrived.pop(partition, None)
        self._next.pop(partition, None)

    def take(self) -> list[Batch]:
        """Everything that has arrived for partitions that are not paused."""
        if self._suspended:
            return []
        paused = self._consumer.paused()
        ready = [partition for partition in self._arrived if partition not in paused]
        return [self._batch(partition, self._arrived.pop(partition)) for partition in ready]

    async def wait(self) -> None:
        """Until there may be something to take, or a moment has passed.

        Raises:
            KafkaError: a partition or the group membership has failed.
        """
        records = await self._consumer.getmany(timeout_ms=_WAIT_MS)
        for partition, found in records.items():
            key = TopicPartition(*partition)
            self._arrived[key] = [*self._arrived.get(key, ()), *found]

    def _batch(self, partition: TopicPartition, records: Sequence[Any]) -> Batch:
        first = min(self._next.get(partition, records[0].offset), records[0].offset)
        last = records[-1].offset
        self._next[partition] = last + 1
        rows = [
            Row(
                record.offset,
                -1 if record.timestamp is None else record.timestamp,
                -1 if record.timestamp_type is None else record.timestamp_type,
                record.key,
                record.value,
                record.headers,
            )
            for record in records
        ]
        return Batch(
            partition.topic,
            partition.partition,
            first,
            last,
            nbytes=sum(
                max(record.serialized_key_size, 0) + max(record.serialized_value_size, 0)
                for record in records
            ),
            load=lambda: from_rows(partition.topic, partition.partition, rows),
            max_timestamp_ms=max(row.timestamp_ms for row in rows),
        )
