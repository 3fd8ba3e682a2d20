"""Read a topic, its end, or some records of a partition, without a group."""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiokafka
import anyio

from ..errors import ConsumerError
from ..formats.batch_decoder import BatchDecoder
from ..record import TopicPartition
from ..service.deadline import shield
from .admin import explain_refusal, log_offsets, offsets_at_times
from .connection import connect, require_topics
from .fetching import BatchFetcher
from .start_positions import NO_POSITION
from .topic_identity import TopicIdentity

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from ..record import Batch
    from ..settings import IsolationLevel
    from .connection import ConnectionConfig, ConsumerConfig

_PARTITION_BYTES: Final = 4 * 1024 * 1024
_STOP_TIMEOUT: Final = 5.0  # seconds
_LOOK: Final = 1.0  # seconds after which a topic that is followed is looked at, for new partitions


class ReadingProgress:
    """How far `read_topic` is.

    Attributes:
        of: offsets that it had to read when it began; None before.
        read: how many of them were yielded.
        starts: the first offset of each of the topic's partitions.
    """

    def __init__(self) -> None:
        self.of: int | None = None
        self.read = 0
        self.starts: Mapping[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._reader: tuple[aiokafka.AIOKafkaConsumer, BatchFetcher] | None = None
        self._identity: TopicIdentity | None = None

    def begin(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        fetcher: BatchFetcher,
        spans: Mapping[TopicPartition, tuple[int, int]],
    ) -> None:
        """Note what there is to read: from the first offset to the one before the second."""
        self._ends = {at: end for at, (_, end) in spans.items()}
        self.of = sum(end - start for start, end in spans.values())
        self.starts = {at: start for at, (start, _) in spans.items()}
        self._reader = consumer, fetcher

    def note(self, batch: Batch) -> None:
        """Note that a batch was yielded; nothing where only spans are read, whose end is known."""
        left = self._ends.get(batch.topic_partition, batch.first) - batch.first
        self.read += max(0, min(left, batch.last + 1 - batch.first))

    def current_at(self) -> float | None:
        """Return when the brokers last said that nothing else is to be read, by the event loop's clock.

        None: there is more, or nothing is known.
        """
        if self._reader is None:
            return None
        consumer, fetcher = self._reader
        times = [fetcher.at_end_since(partition) for partition in consumer.assignment()]
        known = [each for each in times if each is not None]
        return min(known) if known and len(known) == len(times) else None

    async def ends(self) -> Mapping[TopicPartition, int]:
        """Return the offset after the last record of each partition, as the brokers say now.

        Raises:
            ConsumerError: they refuse.
        """
        if self._reader is None:
            return {}
        consumer, _ = self._reader
        partitions = [TopicPartition(*each) for each in consumer.assignment()]
        return await log_offsets(consumer, "end", partitions)

    async def identify(self, consumer: aiokafka.AIOKafkaConsumer, topic: str) -> None:
        """Note which topic has this name now, before its offsets are asked for."""
        self._identity = TopicIdentity(consumer._client, topic)
        await self._identity.check()

    async def refuse_changes(self, topic: str) -> None:
        """Raise ConsumerError if the topic has got partitions since the beginning, or is another one."""
        if self._identity is not None:
            await self._identity.check()
        if self._reader is not None:
            numbers = self._reader[0]._client.cluster.partitions_for_topic(topic)
            if frozenset(numbers or ()) - {at.partition for at in self.starts}:
                raise ConsumerError(f"{topic} has new partitions; it has to be read again")


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Says which records of a topic are read.

    Attributes:
        last: at most so many offsets at the end of each partition; None: all.
        since: only records from this time on, in milliseconds since 1970; None: of any time.
        follow: go on with new records, without end.
        caught_up: with `follow`, called when everything that the topic had at the time of the call was
            yielded, and the caller asks for more.
        progress: tells the caller how far it is; then partitions that the topic gets end the reading,
            and so does another topic of its name.
        spans: only these partitions, from the first offset to the one before the second; None: all.
        isolation_level: `read_committed` leaves out records of open and aborted transactions.
    """

    last: int | None = None
    since: int | None = None
    follow: bool = False
    caught_up: Callable[[], None] | None = None
    progress: ReadingProgress | None = None
    spans: Mapping[int, tuple[int, int]] | None = None
    isolation_level: IsolationLevel = "read_committed"


async def read_topic(
    config: ConnectionConfig, topic: str, window: RecordSelection = RecordSelection()
) -> AsyncGenerator[Batch]:
    """Yield what a topic has at the time of the call, in order within each partition.

    Raises:
        BrokerUnavailable: no broker answers.
        ConsumerError: there is no such topic, or the broker refuses. With `RecordSelection.progress` also if
            the topic gets new partitions, is deleted or made anew.
        CorruptRecords: a record batch is damaged.
    """
    options = {"max_partition_fetch_bytes": _PARTITION_BYTES}
    async with _reader(config, topic, window.isolation_level, options) as (consumer, fetcher):
        starts, ends = await _bounds(consumer, config, topic, window)
        behind = {at: end for at, end in ends.items() if starts[at] < end}
        caught_up, progress = window.caught_up, window.progress or ReadingProgress()
        if window.progress is not None:
            progress.begin(consumer, fetcher, {at: (starts[at], end) for at, end in ends.items()})
        if window.follow:
            ends = dict.fromkeys(ends, 2**63 - 1)
        left = {partition for partition, end in ends.items() if starts[partition] < end}
        if not left:
            return
        consumer.assign([aiokafka.TopicPartition(*partition) for partition in left])
        for partition in left:
            consumer.seek(aiokafka.TopicPartition(*partition), starts[partition])
        fetcher.resume()
        while left:
            if not behind and caught_up is not None:
                caught_up()
                caught_up = None
            batches = _take(fetcher, topic)
            for batch in batches:
                partition, end = batch.topic_partition, ends[batch.topic_partition]
                if partition in left and batch.last + 1 >= end:
                    left.remove(partition)
                    consumer.pause(aiokafka.TopicPartition(*partition))
                if batch.first < end:
                    yield batch if batch.last < end else batch.slice(batch.first, end - 1)
                progress.note(batch)
                if batch.last + 1 >= behind.get(partition, 0):
                    behind.pop(partition, None)
            await progress.refuse_changes(topic)
            if not batches:  # others may have come while the caller had the last ones
                with anyio.move_on_after(_LOOK):
                    await fetcher.wait()


def _take(fetcher: BatchFetcher, topic: str) -> list[Batch]:
    try:
        return fetcher.take()
    except NO_POSITION as error:
        raise ConsumerError(
            f"{topic} has no record at the next offset any more: it was made anew, or its records were "
            "deleted before they were read"
        ) from error


@asynccontextmanager
async def _reader(
    config: ConnectionConfig,
    topic: str,
    isolation_level: IsolationLevel,
    options: Mapping[str, object],
) -> AsyncIterator[tuple[aiokafka.AIOKafkaConsumer, BatchFetcher]]:
    """Connect a consumer without a group, whose fetcher hands over whole batches when it is resumed."""
    consumer = aiokafka.AIOKafkaConsumer(
        **config.client_options(),
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level=isolation_level,
        **options,
    )
    await connect(consumer, config)
    try:
        await require_topics(consumer._client, config, (topic,))
        await consumer._fetcher.close()
        decoder = BatchDecoder(read_committed=isolation_level == "read_committed")
        consumer._fetcher = fetcher = BatchFetcher(consumer._fetcher, decoder, "earliest")
        yield consumer, fetcher
    finally:
        with shield(_STOP_TIMEOUT):
            await consumer.stop()


async def _bounds(
    consumer: aiokafka.AIOKafkaConsumer,
    config: ConnectionConfig,
    topic: str,
    window: RecordSelection,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offset of each partition, and the one after its last."""
    if window.progress is not None:
        await window.progress.identify(consumer, topic)
    numbers = consumer._client.cluster.partitions_for_topic(topic)
    partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
    with explain_refusal(f"the offsets of {topic}", config):
        starts = await log_offsets(consumer, "beginning", partitions)
        ends = await log_offsets(consumer, "end", partitions)
        if window.since is not None:
            found = await offsets_at_times(consumer, dict.fromkeys(partitions, window.since))
            starts = {at: ends[at] if each is None else each for at, each in found.items()}
    if window.last is not None:
        starts = {at: max(first, ends[at] - window.last) for at, first in starts.items()}
    if window.spans is not None:
        partitions = [at for at in partitions if at.partition in window.spans]
        starts, ends = (
            {at: window.spans[at.partition][side] for at in partitions} for side in (0, 1)
        )
    return starts, ends


async def read_range(
    config: ConsumerConfig, partition: TopicPartition, first: int, end: int
) -> AsyncGenerator[Batch]:
    """Yield the records `[first, end)` of a partition, with the isolation of the worker's consumer.

    See `Consumer.read_range`.
    """
    options = {
        "client_rack": config.client_rack,
        "max_partition_fetch_bytes": config.max_partition_fetch_bytes,
        "fetch_max_bytes": config.fetch_max_bytes,
    }
    at, isolation = aiokafka.TopicPartition(*partition), config.isolation_level
    async with _reader(config, partition.topic, isolation, options) as (consumer, fetcher):
        consumer.assign([at])
        with explain_refusal(f"the offsets of {partition}", config):
            ends = await log_offsets(consumer, "end", [partition])
            end = min(end, ends[partition])
            starts = await log_offsets(consumer, "beginning", [partition])
        position = max(first, starts[partition])
        if position < end:
            consumer.seek(at, position)
            fetcher.resume()
        while position < end:
            try:
                batches = fetcher.take()
            except NO_POSITION:  # retention was faster
                with explain_refusal(f"the offsets of {partition}", config):
                    starts = await log_offsets(consumer, "beginning", [partition])
                position = max(position, starts[partition])
                consumer.seek(at, position)
                continue
            for batch in batches:
                position = batch.last + 1
                if batch.first < end:
                    yield batch if batch.last < end else batch.slice(batch.first, end - 1)
            if position < end and not batches:
                await fetcher.wait()
