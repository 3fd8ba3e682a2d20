"""A consumer that reads partitions from an archive as far as that reaches, and from there on the topic."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import anyio

from ..kafka.kafka_consumer import KafkaConsumer
from ..service.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from ..kafka.connection import ConsumerConfig
    from ..kafka.consumer import RebalanceListener
    from ..kafka.fetching import BatchFetcher
    from ..record import Batch, TopicPartition
    from .archive import Archive, PartitionReader


class ArchiveConsumer(KafkaConsumer):
    """A `Consumer` whose first offsets are in an archive; membership and commits are those of Kafka.

    While a partition is read from the archive, the Kafka client has it paused.

    Args:
        open_archive: called once, in a thread, when the consumer starts.
        on_skip: see `KafkaConsumer`.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        open_archive: Callable[[], Archive],
        *,
        on_skip: Callable[[TopicPartition, int], None],
    ) -> None:
        super().__init__(config, on_skip=on_skip)
        self._open_archive = open_archive
        self._archive: Archive
        self._places: dict[TopicPartition, _Place] = {}
        self._stopped_reading: set[TopicPartition] = set()

    async def start(
        self, listener: RebalanceListener, admitted: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """See `Consumer.start`; also raises what `Archive.open` raises."""
        self._archive = await run_in_thread(self._open_archive)
        await super().start(_Listener(self, listener), admitted)

    def begin(self) -> None:
        """Forget what was read and paused before an assignment."""
        self._places.clear()
        self._stopped_reading.clear()

    async def place(self, partitions: frozenset[TopicPartition]) -> None:
        """Find out where partitions that were assigned, and not sought, are read."""
        unknown = [at for at in partitions if at not in self._places]
        committed = await self.committed(sorted(unknown)) if unknown else {}
        for at, entry in committed.items():
            if entry is not None:
                self._places[at] = self._place_at(at, entry.offset)
        super().pause(at for at, place in self._places.items() if place.reader is not None)

    def _place_at(self, at: TopicPartition, offset: int) -> _Place:
        end = self._archive.end(at, offset)
        return _Place(offset, end, self._archive.reader(at) if end > offset else None)

    async def _take(self, fetcher: BatchFetcher, max_bytes: int | None) -> list[Batch]:
        """See `KafkaConsumer`. A cancellation loses nothing: places move when all is read."""
        found: list[tuple[_Place, Batch]] = []
        left = math.inf if max_bytes is None else max_bytes
        for at, place in sorted(self._places.items(), key=lambda item: item[1].offset):
            if left <= 0 or fetcher.is_suspended:
                break
            if place.reader is not None and at not in self._stopped_reading:
                read = partial(place.reader.read, place.offset, place.end)
                batch = await run_in_thread(read)
                found.append((place, batch))
                left -= batch.nbytes
        batches = [] if fetcher.is_suspended else [b for place, b in found if self._move(place, b)]
        if left <= 0:
            return batches
        return batches + await super()._take(fetcher, None if max_bytes is None else int(left))

    def _move(self, place: _Place, batch: Batch) -> bool:
        """Move a place behind a batch; return False if a rebalance, a seek or a pause came in between."""
        at = batch.topic_partition
        if self._places.get(at) is not place or at in self._stopped_reading:
            return False
        place.offset = batch.last + 1
        if place.offset >= place.end:
            self._go_on_with_the_topic(at, place)
        return True

    def _go_on_with_the_topic(self, at: TopicPartition, place: _Place) -> None:
        place.reader = None
        super().seek(at, place.end)
        super().resume([at])

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        paused = list(partitions)
        self._stopped_reading.update(paused)
        super().pause(paused)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        resumed = list(partitions)
        self._stopped_reading.difference_update(resumed)
        super().resume(at for at in resumed if not self._is_archived(at))
        if self._fetcher is not None:
            self._fetcher.wake()

    def _is_archived(self, at: TopicPartition) -> bool:
        place = self._places.get(at)
        return place is not None and place.reader is not None

    def seek(self, partition: TopicPartition, offset: int) -> None:
        place = self._places[partition] = self._place_at(partition, offset)
        if place.reader is not None:
            super().pause([partition])
            return
        super().seek(partition, offset)
        if partition not in self._stopped_reading:
            super().resume([partition])

    async def read_range(
        self, partition: TopicPartition, first: int, end: int
    ) -> AsyncGenerator[Batch]:
        archived = min(end, self._archive.end(partition, first))
        reader = self._archive.reader(partition)
        while first < archived:
            batch = await run_in_thread(partial(reader.read, first, archived))
            first = batch.last + 1
            yield batch
        if first < end:
            async for batch in super().read_range(partition, first, end):
                yield batch

    def answered_at(self, partition: TopicPartition) -> float | None:
        if self._is_archived(partition):
            return anyio.current_time()
        return super().answered_at(partition)


class _Place:
    """Where a partition is read.

    Attributes:
        offset: the next one.
        end: the offset where the archive ends.
        reader: of the archive; None: the topic is read.
    """

    def __init__(self, offset: int, end: int, reader: PartitionReader | None) -> None:
        self.offset = offset
        self.end = end
        self.reader = reader


class _Listener:
    """Tells the worker, and then says where its partitions are read."""

    def __init__(self, consumer: ArchiveConsumer, listener: RebalanceListener) -> None:
        self._consumer = consumer
        self._listener = listener

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self._listener.revoked(partitions)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._consumer.begin()
        await self._listener.assigned(partitions)
        await self._consumer.place(partitions)
