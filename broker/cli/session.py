"""What a person does with a cluster from the console: one admin client, producer and consumer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from broker.cli.admin import Admin, open_admin
from broker.cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

__all__ = ["Session", "open_session"]

_JOIN_SECONDS = 10.0


class Session:
    """A cluster, the topics that are subscribed, and the group that was joined; use `open_session`."""

    def __init__(self, admin: Admin, settings: Mapping[str, Any]) -> None:
        self.admin = admin
        self.topics: set[str] = set()
        self.group: str | None = None
        self.news: list[str] = []
        """What happened meanwhile and was not asked for: rebalances."""
        self._settings = settings
        self._producer: AIOKafkaProducer[bytes, bytes] | None = None
        self._consumer: AIOKafkaConsumer[bytes, bytes] | None = None

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes]],
        partition: int | None,
    ) -> tuple[int, int]:
        """Send a record and wait for its acknowledgement; returns its partition and offset."""
        if self._producer is None:
            producer = AIOKafkaProducer(**self._settings, acks="all")
            await producer.start()
            self._producer = producer
        partitions = await self.admin.need_topic(topic)
        if partition is not None and not 0 <= partition < partitions:
            raise CommandError(f"topic {topic} has no partition {partition}: it has {partitions}")
        sent = await self._producer.send_and_wait(
            topic, value, key=key, headers=list(headers), partition=partition
        )
        return sent.partition, sent.offset

    async def subscribe(self, topics: Sequence[str], *, from_end: bool = False) -> None:
        """Add topics to those that are read. Raises CommandError for one that does not exist."""
        existing = await self.admin.topics(internal=True)
        for topic in topics:
            if topic not in existing:
                raise CommandError(f"topic {topic}: does not exist")
        new = set(topics) - self.topics
        self.topics |= new
        if new:
            await self._read_anew(at_end=new if from_end else ())

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Stop reading these topics, or all if none is named."""
        for topic in topics:
            if topic not in self.topics:
                raise CommandError(f"topic {topic}: is not subscribed")
        self.topics -= set(topics) or self.topics
        await self._read_anew()

    async def join(self, group: str) -> None:
        """Read as a member of a group from now on."""
        if self.group is not None:
            raise CommandError(f"already in group {self.group}: leave it first")
        if not self.topics:
            raise CommandError("subscribe to a topic first: a group shares partitions of topics")
        self.group = group
        try:
            await self._read_anew()
        except BaseException:
            self.group = None
            await self._stop_reading()
            raise

    async def leave(self) -> None:
        """Leave the group; what is subscribed is then read without one."""
        if self.group is None:
            raise CommandError("in no group")
        self.group = None
        await self._read_anew()

    async def poll(self, limit: int, wait: float) -> list[Any]:
        """The next records, waiting `wait` seconds for the first; in a group they are committed."""
        if self._consumer is None:
            raise CommandError("subscribe to a topic first")
        batches = await self._consumer.getmany(timeout_ms=int(wait * 1000), max_records=limit)
        if self.group is not None and batches:
            try:
                await self._consumer.commit(
                    {tp: records[-1].offset + 1 for tp, records in batches.items()}
                )
            except (CommitFailedError, IllegalStateError):
                self.news.append("the group rebalances: these records will be delivered again")
        return [record for records in batches.values() for record in records]

    async def seek(self, where: str) -> None:
        """Go on at the beginning, at the end, or at an offset in all partitions that are read."""
        consumer = self._consumer
        if consumer is None or not consumer.assignment():
            raise CommandError("no partitions to seek in: subscribe to a topic first")
        partitions = sorted(consumer.assignment())
        if where == "beginning":
            await consumer.seek_to_beginning(*partitions)
        elif where == "end":
            await consumer.seek_to_end(*partitions)
        elif where.isdigit():
            for tp in partitions:
                consumer.seek(tp, int(where))
        else:
            raise CommandError(f"seek where? beginning, end or an offset, not {where!r}")

    async def positions(self) -> dict[TopicPartition, int]:
        """The partitions that are read, and the next offset of each."""
        consumer = self._consumer
        if consumer is None:
            return {}
        return {tp: await consumer.position(tp) for tp in sorted(consumer.assignment())}

    async def close(self) -> None:
        """Leave the group, and close all connections."""
        await self._stop_reading()
        if self._producer is not None:
            await self._producer.stop()

    async def _read_anew(self, at_end: Iterable[str] = ()) -> None:
        """A new consumer for what is subscribed; without a group it goes on where the last one was."""
        before = {} if self.group else await self.positions()
        await self._stop_reading()
        if not self.topics:
            return
        consumer = AIOKafkaConsumer(
            **self._settings,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self._consumer = consumer
        if self.group is not None:
            listener = _Listener(self.news)
            consumer.subscribe(sorted(self.topics), listener=listener)
            await consumer.start()
            async with asyncio.timeout(_JOIN_SECONDS):
                await listener.assigned.wait()
            return
        await consumer.start()
        existing = await self.admin.topics(internal=True)
        partitions = [
            TopicPartition(topic, index)
            for topic in sorted(self.topics)
            for index in range(existing.get(topic, 0))
        ]
        consumer.assign(partitions)
        for tp in partitions:
            if tp in before:
                consumer.seek(tp, before[tp])
            elif tp.topic in at_end:
                await consumer.seek_to_end(tp)

    async def _stop_reading(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes which partitions the group gives us."""

    def __init__(self, news: list[str]) -> None:
        self.assigned = asyncio.Event()
        self._news = news

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Nothing to do: everything that was shown is committed."""

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        shown = " ".join(f"{tp.topic}:{tp.partition}" for tp in sorted(assigned))
        self._news.append(f"the group gives us {shown or 'no partition'}")
        self.assigned.set()


@asynccontextmanager
async def open_session(settings: Mapping[str, Any]) -> AsyncIterator[Session]:
    """A session with a cluster. Raises KafkaError when no broker answers."""
    async with open_admin(settings) as admin:
        session = Session(admin, settings)
        try:
            yield session
        finally:
            await session.close()
