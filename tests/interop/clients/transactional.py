"""Transactional producers, and readers of committed records, of every client that has them."""

from __future__ import annotations

import asyncio
import warnings
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import confluent_kafka as ck
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError as AiokafkaError
from aiokafka.errors import ProducerFenced

from .base import POLL_SECONDS, TIMEOUT
from .blocking import Worker
from .via_librdkafka import QUIET, RECONNECT

with warnings.catch_warnings():  # it reads its schemas by a deprecated function
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import errors as kafka_errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

TIMEOUT_MS = int(TIMEOUT * 1000)


class Fenced(Exception):
    """A newer producer has the transactional id, or the broker took it away."""


class Failed(Exception):
    """The client gives up: its user closes it and begins anew."""


class Transactions(Protocol):
    """A transactional producer; each method raises Fenced or Failed."""

    async def begin(self) -> None: ...
    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """Returns when all are acknowledged."""

    async def send_offset(self, topic: str, group: str, offset: int) -> None:
        """The group's committed offset of partition 0 after this transaction."""

    async def commit(self) -> None: ...
    async def abort(self) -> None: ...


class TransactionalClient(ABC):
    """A client library."""

    name: str

    @abstractmethod
    def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> AbstractAsyncContextManager[Transactions]:
        """Entered, it has the transactional id."""

    @abstractmethod
    async def read(self, servers: str, topic: str, *, committed: bool, last: bytes) -> list[bytes]:
        """The values of partition 0 from the beginning to the one that is `last`."""

    @abstractmethod
    async def committed(self, servers: str, group: str, topic: str) -> int:
        """The offset that the group has committed for partition 0, 0 if none; raises Failed."""


class ViaAiokafka(TransactionalClient):
    name = "aiokafka"

    @asynccontextmanager
    async def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> AsyncIterator[Transactions]:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            request_timeout_ms=TIMEOUT_MS,
        )
        await _translated(producer.start())
        try:
            yield _Aiokafka(producer)
        finally:
            await producer.stop()

    async def read(self, servers: str, topic: str, *, committed: bool, last: bytes) -> list[bytes]:
        isolation = "read_committed" if committed else "read_uncommitted"
        values: list[bytes] = []
        async with (
            asyncio.timeout(TIMEOUT * 4),
            AIOKafkaConsumer(bootstrap_servers=servers, isolation_level=isolation) as consumer,
        ):
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            while last not in values:
                values.append((await consumer.getone()).value)
        return values

    async def committed(self, servers: str, group: str, topic: str) -> int:
        async def ask() -> int:
            async with AIOKafkaConsumer(
                bootstrap_servers=servers, group_id=group, isolation_level="read_committed"
            ) as consumer:
                return await consumer.committed(TopicPartition(topic, 0)) or 0

        return int(await _translated(ask()))


async def _translated(operation: Any) -> Any:
    try:
        return await asyncio.wait_for(operation, TIMEOUT * 2)
    except ProducerFenced as error:
        raise Fenced from error
    except (AiokafkaError, TimeoutError) as error:
        raise Failed from error


class _Aiokafka:
    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def begin(self) -> None:
        await _translated(self._producer.begin_transaction())

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        async def all_of_them() -> None:
            sent = [await self._producer.send(topic, value, partition=0) for value in values]
            await asyncio.gather(*sent)

        await _translated(all_of_them())

    async def send_offset(self, topic: str, group: str, offset: int) -> None:
        offsets = {TopicPartition(topic, 0): offset}
        await _translated(self._producer.send_offsets_to_transaction(offsets, group))

    async def commit(self) -> None:
        await _translated(self._producer.commit_transaction())

    async def abort(self) -> None:
        await _translated(self._producer.abort_transaction())


class _Blocking(ABC):
    """A producer that blocks, which only its own thread uses."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def begin(self) -> None:
        await self._worker.call(self._translated, self._begin)

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        await self._worker.call(self._translated, lambda: self._send(topic, values))

    async def send_offset(self, topic: str, group: str, offset: int) -> None:
        await self._worker.call(self._translated, lambda: self._send_offset(topic, group, offset))

    async def commit(self) -> None:
        await self._worker.call(self._translated, self._commit)

    async def abort(self) -> None:
        await self._worker.call(self._translated, self._abort)

    @staticmethod
    @abstractmethod
    def _translated(operation: Callable[[], Any]) -> Any: ...
    @abstractmethod
    def _begin(self) -> None: ...
    @abstractmethod
    def _send(self, topic: str, values: Sequence[bytes]) -> None: ...
    @abstractmethod
    def _send_offset(self, topic: str, group: str, offset: int) -> None: ...
    @abstractmethod
    def _commit(self) -> None: ...
    @abstractmethod
    def _abort(self) -> None: ...


class ViaLibrdkafka(TransactionalClient):
    name = "librdkafka"

    @asynccontextmanager
    async def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> AsyncIterator[Transactions]:
        producer = ck.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 5,
                **RECONNECT,
                **QUIET,
            }
        )
        async with Worker() as worker:
            transactions = _Librdkafka(worker, servers, producer)
            worker.at_end(transactions.close)
            await worker.call(_Librdkafka._translated, lambda: producer.init_transactions(TIMEOUT))
            yield transactions

    async def read(self, servers: str, topic: str, *, committed: bool, last: bytes) -> list[bytes]:
        def read() -> list[bytes]:
            consumer = self._consumer(servers, committed=committed)
            consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
            values: list[bytes] = []
            polls = 0
            while last not in values:
                polls += 1
                assert polls * POLL_SECONDS < TIMEOUT * 4, values
                found = consumer.consume(100, POLL_SECONDS)
                values += [each.value() or b"" for each in found if each.error() is None]
            consumer.close()
            return values

        async with Worker() as worker:
            return await worker.call(read)

    async def committed(self, servers: str, group: str, topic: str) -> int:
        def ask() -> int:
            consumer = self._consumer(servers, group, committed=True)
            (found,) = consumer.committed([ck.TopicPartition(topic, 0)], TIMEOUT)
            consumer.close()
            return max(int(found.offset), 0)

        async with Worker() as worker:
            return int(await worker.call(_Librdkafka._translated, ask))

    @staticmethod
    def _consumer(servers: str, group: str = "unused", *, committed: bool) -> ck.Consumer:
        return ck.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                **RECONNECT,
                **QUIET,
            }
        )


class _Librdkafka(_Blocking):
    def __init__(self, worker: Worker, servers: str, producer: ck.Producer) -> None:
        super().__init__(worker)
        self._servers = servers
        self._producer = producer
        self._groups: dict[str, ck.Consumer] = {}

    def close(self) -> None:
        for consumer in self._groups.values():
            consumer.close()
        self._producer.purge()

    @staticmethod
    def _translated(operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except ck.KafkaException as error:
            fenced = (ck.KafkaError._FENCED, ck.KafkaError.PRODUCER_FENCED)
            raise (Fenced if error.args[0].code() in fenced else Failed) from error

    def _begin(self) -> None:
        self._producer.begin_transaction()

    def _send(self, topic: str, values: Sequence[bytes]) -> None:
        errors: list[ck.KafkaError] = []

        def delivered(error: ck.KafkaError | None, _: object) -> None:
            if error is not None:
                errors.append(error)

        for value in values:
            self._producer.produce(topic, value, partition=0, on_delivery=delivered)
        left = self._producer.flush(TIMEOUT * 4)
        if errors or left:
            raise ck.KafkaException(
                errors[0] if errors else ck.KafkaError(ck.KafkaError._TIMED_OUT)
            )

    def _send_offset(self, topic: str, group: str, offset: int) -> None:
        if group not in self._groups:
            self._groups[group] = ck.Consumer(
                {"bootstrap.servers": self._servers, "group.id": group, **QUIET}
            )
        member = self._groups[group].consumer_group_metadata()
        offsets = [ck.TopicPartition(topic, 0, offset)]
        self._producer.send_offsets_to_transaction(offsets, member, TIMEOUT)

    def _commit(self) -> None:
        self._producer.commit_transaction(TIMEOUT)

    def _abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT)


class ViaKafkaPython(TransactionalClient):
    name = "kafka-python"

    @asynccontextmanager
    async def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = 60_000
    ) -> AsyncIterator[Transactions]:
        async with Worker() as worker:
            producer = await worker.call(
                kafka.KafkaProducer,
                bootstrap_servers=servers,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                max_block_ms=TIMEOUT_MS // 4,
                linger_ms=5,
                reconnect_backoff_ms=20,
                reconnect_backoff_max_ms=200,
            )
            worker.at_end(partial(_KafkaPython.closed, producer))
            await worker.call(_KafkaPython._translated, producer.init_transactions)
            yield _KafkaPython(worker, producer)

    async def read(self, servers: str, topic: str, *, committed: bool, last: bytes) -> list[bytes]:
        def read() -> list[bytes]:
            consumer = kafka.KafkaConsumer(
                bootstrap_servers=servers,
                isolation_level="read_committed" if committed else "read_uncommitted",
                consumer_timeout_ms=int(TIMEOUT * 4000),
            )
            where = kafka.TopicPartition(topic, 0)
            consumer.assign([where])
            consumer.seek_to_beginning(where)
            values: list[bytes] = []
            for record in consumer:
                values.append(record.value)
                if record.value == last:
                    break
            consumer.close()
            assert last in values
            return values

        async with Worker() as worker:
            return await worker.call(read)

    async def committed(self, servers: str, group: str, topic: str) -> int:
        def ask() -> int:
            consumer = kafka.KafkaConsumer(
                bootstrap_servers=servers, group_id=group, isolation_level="read_committed"
            )
            found = consumer.committed(kafka.TopicPartition(topic, 0))
            consumer.close()
            return int(found or 0)

        async with Worker() as worker:
            return int(await worker.call(_KafkaPython._translated, ask))


class _KafkaPython(_Blocking):
    def __init__(self, worker: Worker, producer: kafka.KafkaProducer) -> None:
        super().__init__(worker)
        self._producer = producer
        self._transactions = producer._transaction_manager

    @staticmethod
    def closed(producer: kafka.KafkaProducer) -> None:
        producer._sender.force_close()  # it fails what is left, so that `close` does not wait
        producer._sender.join(TIMEOUT)
        producer.close(timeout=0)

    @staticmethod
    def _translated(operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError) as error:
            raise Fenced from error
        except kafka_errors.KafkaError as error:
            raise Failed from error

    def _begin(self) -> None:
        self._producer.begin_transaction()

    def _send(self, topic: str, values: Sequence[bytes]) -> None:
        sent = [self._producer.send(topic, value, partition=0) for value in values]
        # After a kill of the broker it waits in vain now and then, as in `_end`.
        self._producer.flush(timeout=TIMEOUT / 4)
        for each in sent:
            each.get(timeout=TIMEOUT)

    def _send_offset(self, topic: str, group: str, offset: int) -> None:
        where = kafka.TopicPartition(topic, 0)
        offsets = {where: kafka.structs.OffsetAndMetadata(offset, "", -1)}
        self._end(self._transactions.send_offsets_to_transaction(offsets, group))

    def _commit(self) -> None:
        self._end(self._transactions.begin_commit())

    def _abort(self) -> None:
        self._end(self._transactions.begin_abort())

    def _end(self, result: Any) -> None:
        """As the producer's own methods do, which wait without end."""
        self._producer._sender.wakeup()
        if not result.wait(TIMEOUT_MS // 4):
            raise Failed("the producer waits in vain")


TRANSACTIONAL_CLIENTS: Sequence[TransactionalClient] = (
    ViaAiokafka(),
    ViaLibrdkafka(),
    ViaKafkaPython(),
)
