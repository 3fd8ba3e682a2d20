"""The commands of the console, with one admin client, producer and consumer of a cluster."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Annotated, Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from cyclopts import Parameter

from .cluster_admin import ClusterAdmin, check_partition, open_admin
from .formats import formatter
from .group import show_group
from .terminal import CommandError, Flag, Texts, UsageError, columns, pairs, required, say
from .topic import show_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

_JOIN_SECONDS = 10.0


class Session:
    """The subscribed topics and the joined group in one cluster; use `open_session`.

    Each public async method is a command. All raise KafkaError, and CommandError for a wrong request.
    """

    def __init__(self, admin: ClusterAdmin, settings: Mapping[str, Any]) -> None:
        self.admin = admin
        self.news: list[str] = []
        """Messages about rebalances, to be shown after the next command."""
        self._settings = settings
        self._subscribed: set[str] = set()
        self._group: str | None = None
        self._producer: AIOKafkaProducer[bytes, bytes] | None = None
        self._consumer: AIOKafkaConsumer[bytes, bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the group, and close all connections but the admin client's."""
        await self._stop_reading()
        if self._producer is not None:
            await self._producer.stop()

    def commands(self) -> list[Callable[..., Any]]:
        """Return the commands in the order of the help."""
        return [
            getattr(self, name)
            for name, each in vars(Session).items()
            if iscoroutinefunction(each) and not name.startswith("_")
        ]

    # -- topics and groups -------------------------------------------------------------------------

    async def topics(self) -> None:
        """List the topics."""
        topics = await self.admin.topics()
        say(*(columns(["TOPIC", "PARTITIONS"], topics.items()) if topics else ["no topics"]))

    async def create(self, topic: str, /, *, partitions: int = -1, config: Texts = ()) -> None:
        """Create a topic.

        Parameters
        ----------
        partitions
            Number of partitions; -1 takes the broker's default.
        config
            A setting of the topic as name=value; may be repeated.
        """
        await self.admin.create_topic(
            topic, partitions=partitions, config=pairs(config, "--config")
        )
        say(f"{topic}: created")

    async def delete(self, *topics: str) -> None:
        """Delete topics with all their records."""
        for topic in required(topics, "topic"):
            await self.admin.delete_topic(topic)
            say(f"{topic}: deleted")

    async def describe(self, *topics: str) -> None:
        """Show settings and offsets of topics."""
        for topic in required(topics, "topic"):
            say(*show_topic(await self.admin.describe_topic(topic)))

    async def groups(self) -> None:
        """List the consumer groups."""
        say(*(await self.admin.groups() or ["no groups"]))

    async def group(self, name: str, /) -> None:
        """Show the members of a group, its committed offsets, and its lag."""
        say(*show_group(await self.admin.describe_group(name)))

    # -- records --------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        /,
        *values: Annotated[str, Parameter(allow_leading_hyphen=False)],
        key: str | None = None,
        header: Texts = (),
        partition: int | None = None,
        null: Flag = False,
    ) -> None:
        """Send records, one for each value.

        Parameters
        ----------
        values
            Values; quote those with spaces: send orders 'two words' --key 7
        key
            Key of the records; it chooses the partition.
        header
            A header as name=value; may be repeated.
        partition
            Partition to send to, instead of the key's.
        null
            Send a record without a value: a tombstone.
        """
        records: list[bytes | None] = [value.encode() for value in values]
        if null:
            records.append(None)
        if not records:
            raise UsageError("nothing to send: name a value, or --null")
        headers = [(name, value.encode()) for name, value in pairs(header, "--header").items()]
        if self._producer is None:
            producer = AIOKafkaProducer(**self._settings, acks="all")
            await producer.start()
            self._producer = producer
        partitions = await self.admin.ensure_topic(topic)
        if partition is not None:
            check_partition(topic, partition, partitions)
        for value in records:
            sent = await self._producer.send_and_wait(
                topic,
                value,
                key=None if key is None else key.encode(),
                headers=headers,
                partition=partition,
            )
            say(f"{topic}:{sent.partition}:{sent.offset}")

    async def subscribe(self, *topics: str, from_end: Flag = False) -> None:
        """Read topics, in addition to those that are already subscribed.

        Parameters
        ----------
        from_end
            Read only new records. In a group, committed offsets take precedence.
        """
        await self.admin.partitions(required(topics, "topic"))
        new = set(topics) - self._subscribed
        self._subscribed |= new
        if new:
            await self._restart_consumer(at_end=new if from_end else ())
        await self.status()

    async def unsubscribe(self, *topics: str) -> None:
        """Stop reading topics; default: all."""
        for topic in topics:
            if topic not in self._subscribed:
                raise CommandError(f"topic {topic}: not subscribed")
        self._subscribed -= set(topics) or self._subscribed
        await self._restart_consumer()
        await self.status()

    async def join(self, group: str, /) -> None:
        """Join a group, which assigns the partitions of the subscribed topics."""
        if self._group is not None:
            raise CommandError(f"already in group {self._group}; leave it first")
        if not self._subscribed:
            raise CommandError("subscribe to a topic first; a group assigns partitions of topics")
        self._group = group
        try:
            await self._restart_consumer()
        except BaseException:
            self._group = None
            await self._stop_reading()
            raise
        await self.status()

    async def leave(self) -> None:
        """Leave the group, and read all partitions of the subscribed topics."""
        if self._group is None:
            raise CommandError("in no group")
        self._group = None
        await self._restart_consumer()
        await self.status()

    async def poll(
        self,
        *,
        limit: Annotated[int, Parameter("--max")] = 20,
        wait: float = 2.0,
        form: Annotated[str, Parameter("--format")] = "full",
    ) -> None:
        """Show the next records; in a group, commit their offsets.

        Parameters
        ----------
        limit
            Maximum number of records.
        wait
            Seconds to wait for the first record.
        form
            As in `kmr broker consume`: value, key-value, full, json or a template.
        """
        write = formatter(form)
        if self._consumer is None:
            raise CommandError("subscribe to a topic first")
        batches = await self._consumer.getmany(timeout_ms=int(wait * 1000), max_records=limit)
        if self._group is not None and batches:
            try:
                await self._consumer.commit(
                    {tp: records[-1].offset + 1 for tp, records in batches.items()}
                )
            except (CommitFailedError, IllegalStateError):
                self.news.append("the group rebalances; these records will be delivered again")
        written = b"".join(write(record) for records in batches.values() for record in records)
        shown = written.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
        say(*(shown if batches else ["no new records"]))

    async def seek(self, where: str, /) -> None:
        """Continue at the beginning, at the end, or at an offset."""
        consumer = self._consumer
        if consumer is None or not consumer.assignment():
            raise CommandError("no partitions assigned; subscribe to a topic first")
        partitions = sorted(consumer.assignment())
        if where == "beginning":
            await consumer.seek_to_beginning(*partitions)
        elif where == "end":
            await consumer.seek_to_end(*partitions)
        elif where.isdigit():
            for tp in partitions:
                consumer.seek(tp, int(where))
        else:
            raise CommandError(f"seek {where}: expected beginning, end or an offset")
        await self.status()

    async def status(self) -> None:
        """Show the subscribed topics, the group, and the next offset of each partition."""
        if not self._subscribed:
            say("nothing is subscribed")
            return
        group = f"in group {self._group}" if self._group else "in no group"
        say(f"reading {', '.join(sorted(self._subscribed))}, {group}")
        rows = [(*tp, offset) for tp, offset in (await self._positions()).items()]
        if rows:
            say(*columns(["TOPIC", "PARTITION", "NEXT"], rows))

    # -- the consumer ------------------------------------------------------------------------------

    async def _positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each assigned partition."""
        consumer = self._consumer
        if consumer is None:
            return {}
        return {tp: await consumer.position(tp) for tp in sorted(consumer.assignment())}

    async def _restart_consumer(self, at_end: Iterable[str] = ()) -> None:
        """Replace the consumer after a change; without a group the new one keeps the positions."""
        before = {} if self._group else await self._positions()
        await self._stop_reading()
        if not self._subscribed:
            return
        consumer = AIOKafkaConsumer(
            **self._settings,
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self._consumer = consumer
        if self._group is not None:
            listener = _Listener(self.news)
            consumer.subscribe(sorted(self._subscribed), listener=listener)
            await consumer.start()
            async with asyncio.timeout(_JOIN_SECONDS):
                await listener.assigned.wait()
            return
        await consumer.start()
        existing = await self.admin.topics(internal=True)
        partitions = await self.admin.partitions(sorted(self._subscribed & existing.keys()))
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
    """Reports the assigned partitions."""

    def __init__(self, news: list[str]) -> None:
        self.assigned = asyncio.Event()
        self._news = news

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Do nothing: the offsets of all records that were shown are committed."""

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        shown = " ".join(f"{tp.topic}:{tp.partition}" for tp in sorted(assigned))
        self._news.append(f"assigned partitions: {shown or 'none'}")
        self.assigned.set()


@asynccontextmanager
async def open_session(settings: Mapping[str, Any]) -> AsyncIterator[Session]:
    """Connect to a cluster. Raises KafkaError, CommandError."""
    async with open_admin(settings) as admin, Session(admin, settings) as session:
        yield session
