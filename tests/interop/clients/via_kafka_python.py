"""kafka-python."""

from __future__ import annotations

import time
import warnings
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from .base import (
    HEARTBEAT_MS,
    METADATA_MS,
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

with warnings.catch_warnings():  # it reads its schemas by a deprecated function
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import codec as codecs
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.errors import (
        BrokerResponseError,
        KafkaConnectionError,
        KafkaError,
        MessageSizeTooLargeError,
        for_code,
    )

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from .base import Acks, Codec, Journal, Member, Start

RECONNECT = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200}
POLL_MS = int(POLL_SECONDS * 1000)
MEMBER_POLL_MS = 2_000
"""A poll that ends before the answer to its SyncGroup forgets that generation (kafka-python 3.0)."""


class KafkaPython:
    name = "kafka-python"
    missing = None
    deletes_groups = True

    def has(self, codec: Codec) -> bool:
        return codec == "none" or bool(getattr(codecs, f"has_{codec}")())

    def can_send(self, message: Message) -> bool:
        nothing = message.value is None and message.key is None
        return not nothing and all(value is not None for _, value in message.headers)

    @asynccontextmanager
    async def producer(
        self, servers: str, *, codec: Codec = "none", acks: Acks = "all", idempotent: bool = False
    ) -> AsyncIterator[_Producer]:
        async with Worker() as worker:
            producer = await worker.call(
                kafka.KafkaProducer,
                bootstrap_servers=servers,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                linger_ms=5,
                max_request_size=10_000_000,
                **RECONNECT,
            )
            worker.at_end(producer.close)
            yield _Producer(worker, producer)

    @asynccontextmanager
    async def reader(
        self, servers: str, topic: str, start: Start = "beginning", *, partition: int = 0
    ) -> AsyncIterator[_Reader]:
        async with Worker() as worker:
            consumer = await worker.call(
                kafka.KafkaConsumer,
                bootstrap_servers=servers,
                enable_auto_commit=False,
                **RECONNECT,
            )
            worker.at_end(consumer.close)
            where = kafka.TopicPartition(topic, partition)
            await worker.call(_position, consumer, where, start)
            yield _Reader(worker, consumer)

    def member(
        self, servers: str, group: str, topic: str, journal: Journal
    ) -> AbstractAsyncContextManager[Member]:
        def run(member: Member, stop: threading.Event) -> None:
            _run(servers, group, topic, member, stop)

        return member_in_thread(journal, run)

    @asynccontextmanager
    async def admin(self, servers: str) -> AsyncIterator[_Admin]:
        async with Worker() as worker:
            admin = await worker.call(kafka.KafkaAdminClient, bootstrap_servers=servers)
            worker.at_end(admin.close)
            yield _Admin(worker, admin)


class _Producer:
    def __init__(self, worker: Worker, producer: kafka.KafkaProducer) -> None:
        self._worker = worker
        self._producer = producer

    async def send(self, topic: str, messages: Sequence[Message], *, partition: int = 0) -> None:
        await self._worker.call(self._send, topic, messages, partition)

    def _send(self, topic: str, messages: Sequence[Message], partition: int) -> None:
        futures = [
            self._producer.send(topic, value, key, list(headers), partition=partition)
            for value, key, headers in messages
        ]
        try:
            for future in futures:
                future.get(TIMEOUT)
        except MessageSizeTooLargeError as error:
            raise TooLarge from error


def _position(consumer: kafka.KafkaConsumer, where: kafka.TopicPartition, start: Start) -> None:
    if isinstance(start, At):
        found = consumer.offsets_for_times({where: start.timestamp})[where]
        start = "end" if found is None else found.offset
    consumer.assign([where])
    if start == "beginning":
        consumer.seek_to_beginning(where)
    elif start == "end":
        consumer.seek_to_end(where)
    else:
        consumer.seek(where, start)
    consumer.position(where)


class _Reader:
    def __init__(self, worker: Worker, consumer: kafka.KafkaConsumer) -> None:
        self._worker = worker
        self._consumer = consumer

    async def read(self, count: int) -> list[Record]:
        return await self._worker.call(self._read, count)

    def _read(self, count: int) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + TIMEOUT
        while len(records) < count:
            assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
            records += _poll(self._consumer, POLL_MS, count - len(records))
        return records


def _poll(consumer: kafka.KafkaConsumer, timeout_ms: int, count: int = 500) -> list[Record]:
    try:
        found = consumer.poll(timeout_ms, count)
    except KafkaConnectionError:  # the next poll connects again
        return []
    return [
        Record(
            record.partition,
            record.offset,
            record.timestamp,
            Message(record.value, record.key, tuple(record.headers)),
        )
        for records in found.values()
        for record in records
    ]


class _Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: object) -> None:
        self._member.assigned(())

    def on_partitions_assigned(self, assigned: set[kafka.TopicPartition]) -> None:
        self._member.assigned(each.partition for each in assigned)


def _run(servers: str, group: str, topic: str, member: Member, stop: threading.Event) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=HEARTBEAT_MS,
        session_timeout_ms=SESSION_MS,
        metadata_max_age_ms=METADATA_MS,
        **RECONNECT,
    )
    consumer.subscribe([topic], listener=_Listener(member))
    uncommitted = False
    try:
        while not stop.is_set():
            records = _poll(consumer, MEMBER_POLL_MS)
            if records:
                member.read(records)
                uncommitted = True
            if uncommitted:
                # A partition that was taken away is not committed: its next owner reads on from before.
                with suppress(KafkaError):
                    consumer.commit()
                    uncommitted = False
    finally:
        consumer.close()


class _Admin:
    def __init__(self, worker: Worker, admin: kafka.KafkaAdminClient) -> None:
        self._worker = worker
        self._admin = admin

    async def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        topic = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config)}
        await self._ask(self._admin.create_topics, {name: topic})

    async def delete_topic(self, name: str) -> None:
        await self._ask(self._admin.delete_topics, [name])

    async def topics(self) -> Mapping[str, int]:
        found = await self._ask(self._admin.describe_topics)
        return {topic["name"]: len(topic["partitions"]) for topic in found}

    async def topic_config(self, name: str) -> Mapping[str, str]:
        return await self._config(ConfigResourceType.TOPIC, name)

    async def broker_config(self) -> Mapping[str, str]:
        return await self._config(ConfigResourceType.BROKER, "0")

    async def set_config(self, name: str, config: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, dict(config))
        altered = await self._ask(self._admin.alter_configs, [resource], raise_on_unknown=False)
        outcome = altered["topic"][name]
        if outcome != "OK":  # "[Error 40] InvalidConfigurationError: ..."
            raise Refused(int(outcome.partition("]")[0].rpartition(" ")[2]))

    async def add_partitions(self, name: str, total: int) -> None:
        await self._ask(self._admin.create_partitions, {name: total})

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        at = kafka.TopicPartition(topic, partition)
        left = await self._ask(self._admin.delete_records, {at: before})
        low_watermark: int = left[at]["low_watermark"]
        return low_watermark

    async def _config(self, kind: ConfigResourceType, name: str) -> Mapping[str, str]:
        resource = ConfigResource(kind, name)
        found = await self._ask(self._admin.describe_configs, [resource], config_filter="all")
        return {key: entry["value"] for key, entry in found[kind.name.lower()][name].items()}

    async def groups(self) -> set[str]:
        return {group["group_id"] for group in await self._ask(self._admin.list_groups)}

    async def group(self, name: str) -> Group:
        found = (await self._ask(self._admin.describe_groups, [name]))[name]
        return Group(state=found["group_state"], members=len(found["members"]))

    async def committed(self, group: str, topic: str) -> Mapping[int, int]:
        found = await self._ask(self._admin.list_group_offsets, {group: None})
        offsets = found[group].items()
        return {at.partition: each.offset for at, each in offsets if at.topic == topic}

    async def delete_group(self, name: str) -> None:
        outcome = (await self._ask(self._admin.delete_groups, [name]))[name]
        if outcome != "OK":
            raise Refused(next(c for c in range(100) if for_code(c).__name__ == outcome))

    async def _ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await self._worker.call(function, *args, **kwargs)
        except BrokerResponseError as error:
            raise Refused(error.errno) from error
