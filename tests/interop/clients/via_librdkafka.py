"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from .base import (
    HEARTBEAT_MS,
    POLL_SECONDS,
    SESSION_MS,
    TIMEOUT,
    At,
    Group,
    Message,
    Record,
    Refused,
    TooLarge,
)
from .blocking import Worker, member_in_thread

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from .base import Acks, Codec, Journal, Member, Start

RECONNECT: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    # When librdkafka 2.16 forgets its brokers to begin anew, what waited for them may wait for ever: a call
    # for the coordinator, or a member that asked for the metadata of its topic before it joins.
    "metadata.recovery.strategy": "none",
}
QUIET: dict[str, Any] = {
    "log_level": 2,
    "error_cb": lambda _: None,
}  # a broker that is away is part of the tests


class Librdkafka:
    missing = None
    deletes_groups = True

    def __init__(self, *, cooperative: bool = False) -> None:
        """With `cooperative`, group members only give up the partitions that move (KIP-429)."""
        self.name = "librdkafka-cooperative" if cooperative else "librdkafka"
        self._strategy = "cooperative-sticky" if cooperative else "range,roundrobin"

    def has(self, codec: Codec) -> bool:
        return True

    def can_send(self, message: Message) -> bool:
        return True

    @asynccontextmanager
    async def producer(
        self, servers: str, *, codec: Codec = "none", acks: Acks = "all", idempotent: bool = False
    ) -> AsyncIterator[_Producer]:
        producer = ck.Producer(
            {
                "bootstrap.servers": servers,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "message.max.bytes": 10_000_000,
                "linger.ms": 5,
                **RECONNECT,
                **QUIET,
            }
        )
        async with Worker() as worker:
            worker.at_end(producer.close)
            yield _Producer(worker, producer)

    @asynccontextmanager
    async def reader(
        self, servers: str, topic: str, start: Start = "beginning", *, partition: int = 0
    ) -> AsyncIterator[_Reader]:
        consumer = ck.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                **RECONNECT,
                **QUIET,
            }
        )
        async with Worker() as worker:
            worker.at_end(consumer.close)
            await worker.call(_position, consumer, topic, partition, start)
            yield _Reader(worker, consumer)

    def member(
        self, servers: str, group: str, topic: str, journal: Journal
    ) -> AbstractAsyncContextManager[Member]:
        def run(member: Member, stop: threading.Event) -> None:
            _run(servers, group, topic, self._strategy, member, stop)

        return member_in_thread(journal, run)

    @asynccontextmanager
    async def admin(self, servers: str) -> AsyncIterator[_Admin]:
        async with Worker() as worker:
            yield _Admin(worker, AdminClient({"bootstrap.servers": servers, **QUIET}))


class _Producer:
    def __init__(self, worker: Worker, producer: ck.Producer) -> None:
        self._worker = worker
        self._producer = producer

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int = 0) -> None:
        await self._worker.call(self._send, topic, messages, partition)

    def _send(self, topic: str, messages: Sequence[Message], partition: int) -> None:
        errors: list[ck.KafkaError] = []

        def delivered(error: ck.KafkaError | None, _: object) -> None:
            if error is not None:
                errors.append(error)

        for value, key, headers in messages:
            while True:
                try:
                    self._producer.produce(
                        topic, value, key, partition, delivered, headers=list(headers) or None
                    )
                    break
                except BufferError:
                    self._producer.poll(POLL_SECONDS)
        assert self._producer.flush(TIMEOUT) == 0
        for error in errors:
            if error.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE:
                raise TooLarge(str(error))
            raise ck.KafkaException(error)


def _position(consumer: ck.Consumer, topic: str, partition: int, start: Start) -> None:
    named = {"beginning": ck.OFFSET_BEGINNING, "end": ck.OFFSET_END}
    if isinstance(start, At):
        wanted = ck.TopicPartition(topic, partition, start.timestamp)
        (found,) = consumer.offsets_for_times([wanted], TIMEOUT)
    else:
        offset = start if isinstance(start, int) else named[start]
        found = ck.TopicPartition(topic, partition, offset)
    consumer.assign([found])
    if start == "end":
        message: Any = consumer.poll(TIMEOUT)
        assert message.error().code() == ck.KafkaError._PARTITION_EOF


class _Reader:
    def __init__(self, worker: Worker, consumer: ck.Consumer) -> None:
        self._worker = worker
        self._consumer = consumer

    async def read(self, count: int) -> list[Record]:
        return await self._worker.call(self._read, count)

    def _read(self, count: int) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + TIMEOUT
        while len(records) < count:
            assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
            records += _records(self._consumer.consume(count - len(records), POLL_SECONDS))
        return records


def _records(found: list[Any]) -> list[Record]:
    """Errors are the end of a partition, or a broker that is away; not that there is nothing to read."""
    for message in found:
        error = message.error()
        if error is not None and error.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE:
            raise ck.KafkaException(error)
    return [
        Record(
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            Message(message.value(), message.key(), tuple(message.headers() or ())),
        )
        for message in found
        if message.error() is None
    ]


def _run(
    servers: str, group: str, topic: str, strategy: str, member: Member, stop: threading.Event
) -> None:
    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "partition.assignment.strategy": strategy,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
            **RECONNECT,
            **QUIET,
        }
    )
    consumer.subscribe([topic])
    uncommitted = False
    try:
        while not stop.is_set():
            records = _records(consumer.consume(500, POLL_SECONDS))
            member.assigned(each.partition for each in consumer.assignment())
            if records:
                member.read(records)
                uncommitted = True
            if uncommitted:
                uncommitted = not _commit(consumer)
    finally:
        consumer.close()


def _commit(consumer: ck.Consumer) -> bool:
    """False if it has to be done again, as in a rebalance.

    A partition that was taken away is not committed: its next owner reads on from before.
    """
    try:
        consumer.commit(asynchronous=False)
    except ck.KafkaException as error:
        nothing_left: bool = error.args[0].code() == ck.KafkaError._NO_OFFSET
        return nothing_left
    return True


class _Admin:
    def __init__(self, worker: Worker, admin: AdminClient) -> None:
        self._worker = worker
        self._admin = admin

    async def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        topic = NewTopic(name, partitions, 1, config=dict(config))
        await self._result(self._admin.create_topics([topic])[name])

    async def delete_topic(self, name: str) -> None:
        await self._result(self._admin.delete_topics([name])[name])

    async def topics(self) -> Mapping[str, int]:
        found = await self._worker.call(self._admin.list_topics, timeout=TIMEOUT)
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    async def topic_config(self, name: str) -> Mapping[str, str]:
        return await self._config(ConfigResource(ConfigResource.Type.TOPIC, name))

    async def broker_config(self) -> Mapping[str, str]:
        return await self._config(ConfigResource(ConfigResource.Type.BROKER, "0"))

    async def set_config(self, name: str, config: Mapping[str, str]) -> None:
        changes = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=changes)
        await self._result(self._admin.incremental_alter_configs([resource])[resource])

    async def add_partitions(self, name: str, total: int) -> None:
        await self._result(self._admin.create_partitions([NewPartitions(name, total)])[name])

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        at = ck.TopicPartition(topic, partition, ck.OFFSET_END if before < 0 else before)
        (future,) = self._admin.delete_records([at]).values()
        left: int = (await self._result(future)).low_watermark
        return left

    async def _config(self, resource: ConfigResource) -> Mapping[str, str]:
        entries = await self._result(self._admin.describe_configs([resource])[resource])
        return {name: entry.value for name, entry in entries.items()}

    async def groups(self) -> set[str]:
        found = await self._result(self._admin.list_consumer_groups())
        assert not found.errors
        return {group.group_id for group in found.valid}

    async def group(self, name: str) -> Group:
        found = await self._result(self._admin.describe_consumer_groups([name])[name])
        return Group(state=found.state.name.title().replace("_", ""), members=len(found.members))

    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        wanted = [ck.ConsumerGroupTopicPartitions(group)]
        found = await self._result(self._admin.list_consumer_group_offsets(wanted)[group])
        return {at.partition: at.offset for at in found.topic_partitions if at.topic == topic}

    async def delete_group(self, name: str) -> None:
        await self._result(self._admin.delete_consumer_groups([name])[name])

    async def _result(self, future: Any) -> Any:
        try:
            return await self._worker.call(future.result, TIMEOUT)
        except ck.KafkaException as error:
            raise Refused(error.args[0].code()) from error
