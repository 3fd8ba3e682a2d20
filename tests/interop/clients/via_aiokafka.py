"""aiokafka."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import IllegalStateError, KafkaError, MessageSizeTooLargeError

from .base import (
    HEARTBEAT_MS,
    METADATA_MS,
    POLL_SECONDS,
    SESSION_MS,
    TIMEOUT,
    At,
    Group,
    Member,
    Message,
    Record,
    Refused,
    TooLarge,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from .base import Acks, Codec, Journal, Start

MAX_REQUEST = 10_000_000


class Aiokafka:
    name = "aiokafka"
    missing = None
    deletes_groups = False

    def has(self, codec: Codec) -> bool:
        return True

    def can_send(self, message: Message) -> bool:
        return message.value is not None or message.key is not None

    @asynccontextmanager
    async def producer(
        self, servers: str, *, codec: Codec = "none", acks: Acks = "all", idempotent: bool = False
    ) -> AsyncIterator[_Producer]:
        async with AIOKafkaProducer(
            bootstrap_servers=servers,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=5,
            max_request_size=MAX_REQUEST,
        ) as producer:
            yield _Producer(producer)

    @asynccontextmanager
    async def reader(
        self, servers: str, topic: str, start: Start = "beginning", *, partition: int = 0
    ) -> AsyncIterator[_Reader]:
        where = TopicPartition(topic, partition)
        async with AIOKafkaConsumer(bootstrap_servers=servers) as consumer:
            if isinstance(start, At):
                found = (await consumer.offsets_for_times({where: start.timestamp}))[where]
                start = "end" if found is None else found.offset
            consumer.assign([where])
            if start == "beginning":
                await consumer.seek_to_beginning(where)
            elif start == "end":
                await consumer.seek_to_end(where)
            else:
                consumer.seek(where, start)
            yield _Reader(consumer)

    @asynccontextmanager
    async def member(
        self, servers: str, group: str, topic: str, journal: Journal
    ) -> AsyncIterator[Member]:
        member, stop = Member(journal), asyncio.Event()
        running = asyncio.create_task(_run(servers, group, topic, member, stop))
        member.lives_in(running)
        try:
            yield member
        finally:
            stop.set()
            with anyio.CancelScope(shield=True):
                await running
            member.left()

    @asynccontextmanager
    async def admin(self, servers: str) -> AsyncIterator[_Admin]:
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            yield _Admin(admin)
        finally:
            await admin.close()


class _Producer:
    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int = 0) -> None:
        try:
            await asyncio.gather(
                *[
                    await self._producer.send(
                        topic, value, key, partition=partition, headers=list(headers)
                    )
                    for value, key, headers in messages
                ]
            )
        except MessageSizeTooLargeError as error:
            raise TooLarge from error


class _Reader:
    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer

    async def read(self, count: int) -> list[Record]:
        async with asyncio.timeout(TIMEOUT):
            return [_record(await self._consumer.getone()) for _ in range(count)]


def _record(record: Any) -> Record:
    message = Message(record.value, record.key, tuple(record.headers))
    return Record(record.partition, record.offset, record.timestamp, message)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: object) -> None:
        self._member.assigned(())

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._member.assigned(each.partition for each in assigned)


async def _run(servers: str, group: str, topic: str, member: Member, stop: asyncio.Event) -> None:
    async with AIOKafkaConsumer(
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=HEARTBEAT_MS,
        session_timeout_ms=SESSION_MS,
        metadata_max_age_ms=METADATA_MS,
    ) as consumer:
        consumer.subscribe([topic], listener=_Listener(member))
        uncommitted = False
        while not stop.is_set():
            found = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
            if found:
                member.read(_record(record) for records in found.values() for record in records)
                uncommitted = True
            if uncommitted:
                # A partition that was taken away is not committed: its next owner reads on from before.
                with suppress(KafkaError, IllegalStateError):
                    await consumer.commit()
                    uncommitted = False


class _Admin:
    def __init__(self, admin: AIOKafkaAdminClient) -> None:
        self._admin = admin

    async def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        topic = NewTopic(name, partitions, 1, topic_configs=dict(config))
        for _, code, *_rest in (await self._admin.create_topics([topic])).topic_errors:
            _check(code)

    async def delete_topic(self, name: str) -> None:
        for _, code, *_rest in (await self._admin.delete_topics([name])).topic_error_codes:
            _check(code)

    async def topics(self) -> Mapping[str, int]:
        found = await self._admin.describe_topics()
        return {topic["topic"]: len(topic["partitions"]) for topic in found}

    async def topic_config(self, name: str) -> Mapping[str, str]:
        return await self._config(ConfigResourceType.TOPIC, name)

    async def broker_config(self) -> Mapping[str, str]:
        return await self._config(ConfigResourceType.BROKER, "0")

    async def set_config(self, name: str, config: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, dict(config))
        for response in await self._admin.alter_configs([resource]):
            for code, *_rest in response.resources:
                _check(code)

    async def add_partitions(self, name: str, total: int) -> None:
        try:
            await self._admin.create_partitions({name: NewPartitions(total)})
        except KafkaError as error:
            raise Refused(error.errno) from error

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        at = TopicPartition(topic, partition)
        try:
            left: int = (await self._admin.delete_records({at: RecordsToDelete(before)}))[at]
        except KafkaError as error:
            raise Refused(error.errno) from error
        return left

    async def _config(self, kind: ConfigResourceType, name: str) -> Mapping[str, str]:
        (response,) = await self._admin.describe_configs([ConfigResource(kind, name)])
        ((code, _, _, _, entries),) = response.resources
        _check(code)
        return {entry[0]: entry[1] for entry in entries}

    async def groups(self) -> set[str]:
        return {name for name, *_ in await self._admin.list_consumer_groups()}

    async def group(self, name: str) -> Group:
        (response,) = await self._admin.describe_consumer_groups([name])
        (group,) = response.groups
        _check(group[0])
        return Group(state=group[2], members=len(group[5]))

    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        offsets = await self._admin.list_consumer_group_offsets(group)
        return {at.partition: each.offset for at, each in offsets.items() if at.topic == topic}

    async def delete_group(self, name: str) -> None:
        raise NotImplementedError


def _check(code: int) -> None:
    if code:
        raise Refused(code)
