"""The topic `_schemas`: the registry writes its changes there, and learns them by reading it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    for_code,
)

from kmr.errors import KmrError

from .error_codes import STORE_FAILED, TOO_LARGE, RequestRefused
from .records import NoopKey, UnknownRecord, decode_record, encode_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import Key, Value
    from .state import RegistryState

logger = structlog.get_logger(__name__)

SCHEMAS_TOPIC: Final = "_schemas"
"""Name of the topic, Confluent's default."""
_DELETED: Final = (
    f"the topic {SCHEMAS_TOPIC} was deleted; restart the registry to begin with an empty one"
)
_PARTITION: Final = TopicPartition(SCHEMAS_TOPIC, 0)
_REPLICAS: Final = 3  # if there are so many brokers
_MOST_BATCH_BYTES: Final = 64 * 1024 * 1024  # the topic's own limit is lower
_PATIENCE: Final = 30.0  # seconds that a change may take
_CHECK_INTERVAL: Final = 2.0  # seconds without records after which the topic is looked at


class SchemasTopicError(KmrError):
    """The topic of the schemas cannot be used; the message says what to do."""


class SchemasTopic:
    """The one partition of `_schemas`, and the state that its records add up to, while it is entered.

    A task applies each record as soon as consumers can read it. `catch_up` waits for those that are there
    now, `append` for its own.
    """

    def __init__(self, state: RegistryState, **client: Any) -> None:
        """`client`: arguments of aiokafka's clients: addresses, encryption, authentication."""
        self._state = state
        self._client = client
        self._read_to = 0
        self._failure = ""
        self._progress = anyio.Event()
        self._consumer: AIOKafkaConsumer
        self._ends: AIOKafkaConsumer
        self._producer: AIOKafkaProducer | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Find or create the topic, and read it. Raises SchemasTopicError."""
        async with AsyncExitStack() as stack:
            try:
                await self._create_if_missing()
                # Not "earliest": a topic that begins anew would be added to the old state.
                self._consumer = AIOKafkaConsumer(
                    **self._client, auto_offset_reset="none", enable_auto_commit=False
                )
                # A connection of its own: on that of the consumer a question waits for the end of a fetch.
                self._ends = AIOKafkaConsumer(**self._client)
                for each in (self._consumer, self._ends):
                    await each.start()
                    stack.push_async_callback(each.stop)
                stack.push_async_callback(self._close_producer)
                await self._open_producer()
                self._consumer.assign([_PARTITION])
                begin = (await self._consumer.beginning_offsets([_PARTITION]))[_PARTITION]
                self._consumer.seek(_PARTITION, begin)
                self._read_to = begin
            except (KafkaError, OSError) as error:
                raise SchemasTopicError(
                    f"the topic {SCHEMAS_TOPIC} of the schema registry cannot be opened: {error}"
                ) from error
            reading = asyncio.create_task(self._read())
            stack.push_async_callback(_ended, reading)
            try:
                await self.catch_up()
                if not self._read_to:
                    # A topic that is deleted and begins anew has an earlier end, then.
                    await self.append([(NoopKey(), None)])
            except RequestRefused as error:
                raise SchemasTopicError(error.message) from error
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def check(self) -> None:
        """Raise RequestRefused if the state is not that of the topic any more."""
        if self._failure:
            raise RequestRefused(STORE_FAILED, self._failure)

    async def catch_up(self) -> None:
        """Wait until all records that can be read now are applied. Raises RequestRefused."""
        try:
            end = (await self._ends.end_offsets([_PARTITION]))[_PARTITION]
        except (KafkaError, OSError) as error:
            raise RequestRefused(
                STORE_FAILED, f"{SCHEMAS_TOPIC} cannot be read: {error}"
            ) from error
        if end < self._read_to:
            self._failure = _DELETED
        await self._applied(end)

    async def append(self, records: Sequence[tuple[Key, Value]]) -> None:
        """Append these records as one batch, and wait until they are applied. Raises RequestRefused."""
        now_ms = int(time.time() * 1000)
        try:
            producer = self._producer or await self._open_producer()
        except (KafkaError, OSError) as error:
            raise RequestRefused(STORE_FAILED, f"the change was not written: {error}") from error
        batch = producer.create_batch()
        for key, value in (encode_record(*each) for each in records):
            if batch.append(timestamp=now_ms, key=key, value=value) is None:
                raise RequestRefused(TOO_LARGE, "the schema is too large")
        try:
            with anyio.CancelScope(shield=True):
                try:
                    sent = await producer.send_batch(batch, SCHEMAS_TOPIC, partition=0)
                    written = await sent
                except BaseException:
                    await self._close_producer()
                    raise
        except MessageSizeTooLargeError as error:
            raise RequestRefused(
                TOO_LARGE,
                f"the schema is larger than a record of the topic {SCHEMAS_TOPIC} may be; raise its"
                " max.message.bytes",
            ) from error
        except (KafkaError, OSError) as error:
            raise RequestRefused(STORE_FAILED, f"the change was not written: {error}") from error
        await self._applied(written.offset + len(records))

    async def _open_producer(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._client,
            acks="all",
            enable_idempotence=True,
            max_request_size=_MOST_BATCH_BYTES,
            max_batch_size=_MOST_BATCH_BYTES,
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer
        return producer

    async def _close_producer(self) -> None:
        """Let the next change have another one: after a batch that failed, sequence numbers do not fit."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()

    async def _applied(self, end: int) -> None:
        with anyio.move_on_after(_PATIENCE):
            while self._read_to < end and not self._failure:
                await self._progress.wait()
        self.check()
        if self._read_to < end:
            raise RequestRefused(
                STORE_FAILED, f"{SCHEMAS_TOPIC} was not read to its end in {_PATIENCE:.0f} seconds"
            )

    async def _read(self) -> None:
        """Apply records until cancelled, or until the topic is not the one that was opened."""
        reported = ""
        while not self._failure:
            try:
                await self._apply_next()
                reported = ""
            except OffsetOutOfRangeError:
                self._failure = _DELETED
            except (KafkaError, OSError, RequestRefused) as error:
                if reported != str(error):
                    reported = str(error)
                    logger.warning("schemas cannot be read for now", error=reported)
                await anyio.sleep(1)
        self._moved()
        logger.error("the schema registry has stopped", reason=self._failure)

    def _moved(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()

    async def _apply_next(self) -> None:
        found = await self._consumer.getmany(_PARTITION, timeout_ms=int(_CHECK_INTERVAL * 1000))
        ignored = 0
        for record in found.get(_PARTITION, ()):
            try:
                self._state.apply(*decode_record(record.key, record.value))
            except UnknownRecord:
                ignored += 1
        self._read_to = await self._consumer.position(_PARTITION)
        self._moved()
        if ignored:
            logger.warning(
                "ignored records of an unknown kind", topic=SCHEMAS_TOPIC, records=ignored
            )
        if not found:
            end = (await self._consumer.end_offsets([_PARTITION]))[_PARTITION]
            if end < self._read_to:
                raise OffsetOutOfRangeError

    async def _create_if_missing(self) -> None:
        """Raises SchemasTopicError if the topic has several partitions, or may delete schemas."""
        admin = AIOKafkaAdminClient(**self._client)
        await admin.start()
        try:
            try:
                replicas = min(_REPLICAS, len((await admin.describe_cluster())["brokers"]))
                settings = {"cleanup.policy": "compact"}
                topic = NewTopic(SCHEMAS_TOPIC, 1, replicas, topic_configs=settings)
                created = await admin.create_topics([topic])
                for error in created.topic_errors:
                    if error[1]:
                        raise for_code(error[1])(error[2])
            except TopicAlreadyExistsError:
                pass
            [described] = await admin.describe_topics([SCHEMAS_TOPIC])
            resource = ConfigResource(ConfigResourceType.TOPIC, SCHEMAS_TOPIC)
            [configs] = await admin.describe_configs([resource])
        finally:
            await admin.close()
        count = len(described["partitions"])
        if count != 1:
            raise SchemasTopicError(
                f"the topic {SCHEMAS_TOPIC} of the schema registry has {count} partitions, but schemas"
                " need the order of one; delete it"
            )
        values = {entry[0]: entry[1] for each in configs.resources for entry in each[4]}
        if values.get("cleanup.policy") != "compact":
            raise SchemasTopicError(
                f"the topic {SCHEMAS_TOPIC} of the schema registry is not compacted, so that retention"
                " would delete schemas; set its cleanup.policy to compact (kmr broker topic configure)"
            )


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
