"""Transactions that write records and commit the offsets of a consumer group: all of them or none (KIP-98).

The group's coordinator checks the generation and the member that every transaction names (KIP-447): a worker
that has lost its partitions cannot commit. aiokafka sends an older request, which names no member, so its
sender gets another one here.
"""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

import aiokafka
import aiokafka.errors as kafka_errors
import anyio
import structlog
from aiokafka.client import CoordinationType
from aiokafka.producer.sender import Sender, TxnOffsetCommitHandler
from aiokafka.structs import OffsetAndMetadata

from ..errors import BrokerUnavailable, CommitFenced, CommitRefused, ConsumerError, KmrError
from ..service.deadline import shield
from .connection import drop_producer, stop_producer
from .group_offsets import COORDINATOR_GONE, FENCED, Membership, fenced

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from ..kio_requests import KioRequest
    from ..record import TopicPartition
    from .consumer import CommitOffset

_log = structlog.get_logger(__name__)

_CLOSE_TIMEOUT: Final = 2.0  # seconds
# The topic is not known yet, the coordinator loads, a transaction of ours is still being completed.
_AGAIN: Final = (3, 14, 51)
_REFUSED: Final = (
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.GroupAuthorizationFailedError,
    kafka_errors.TransactionalIdAuthorizationFailed,
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.InvalidTransactionTimeout,
)
_TOO_OLD: Final = (kafka_errors.IncompatibleBrokerVersion, NotImplementedError)


class Transactions:
    """The transactions of one worker, one at a time, with a producer that all of its writers share.

    Calls: `open`; then any number of `async with transactions:`, which waits until the transaction before has
    ended; in it `begin`, for a producer to send with, and `commit`. A transaction that was begun and not
    committed is aborted at the end of the block. At last `close`.

    After anything that fails, the producer is replaced. The new one has the same transactional id: the broker
    ends the transaction of the one before and refuses its late requests. So inside `async with` no earlier
    transaction is open: the committed offsets say whether it was committed.

    Args:
        client: options of the connection.
        group: the consumer group whose offsets are committed.
        transactional_id: the broker lets only the newest producer with this id write.
        timeout: seconds after which the broker aborts a transaction that has not ended; also the longest time
            that one of our steps takes.
        options: further options of the producer.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        group: str,
        transactional_id: str,
        timeout: float,
        **options: Any,
    ) -> None:
        self.transactional_id = transactional_id
        self.on_abort: Callable[[], None] = lambda: None
        """Called for each transaction that was begun and not committed."""
        self._client = client
        self._group = group
        self._timeout = timeout
        self._options = options
        self._lock = anyio.Lock(fast_acquire=True)
        self._producer: Any = None
        self._begun = False
        self._left_open = False

    @property
    def in_use(self) -> bool:
        """Whether a transaction may be open."""
        return self._lock.locked()

    async def open(self) -> None:
        """Connect. The broker aborts a transaction that an earlier process with the same id left open.

        Raises:
            BrokerUnavailable: no broker has answered.
            CommitRefused: the broker does not allow it.
        """
        async with self:
            pass

    async def __aenter__(self) -> Self:
        """Raises what `open` raises."""
        await self._lock.acquire()
        try:
            if self._producer is None:
                await self._connect()
        except BaseException:
            self._lock.release()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._begun:
                await self._abort()
        finally:
            self._lock.release()

    @property
    def producer(self) -> Any:
        """The producer, an `AIOKafkaProducer`; only inside `async with`."""
        return self._producer

    async def begin(self) -> Any:
        """Begin the transaction, unless that is done; return the producer, an `AIOKafkaProducer`."""
        if not self._begun:
            await self._producer.begin_transaction()
            self._begun = True
        return self._producer

    async def commit(
        self, offsets: Mapping[TopicPartition, CommitOffset], member: Membership
    ) -> None:
        """Commit what was sent, and the offsets.

        Raises:
            CommitFenced: the group is in another generation. Nothing is committed.
            CommitRefused: the broker does not allow it. Nothing is committed.
            ConsumerError: not acknowledged in time. Either all or nothing is committed.
        """
        if offsets:
            member.require(self._group)
        producer = await self.begin()
        producer._sender.member = member
        theirs = {
            aiokafka.TopicPartition(*partition): OffsetAndMetadata(*offset)
            for partition, offset in offsets.items()
        }
        try:
            with anyio.fail_after(self._timeout):
                if theirs:
                    await producer.send_offsets_to_transaction(theirs, self._group)
                await producer.commit_transaction()
        except TimeoutError:
            raise ConsumerError(
                f"group {self._group}: transaction not acknowledged in {self._timeout:g} s"
            ) from None
        except kafka_errors.KafkaError as error:
            raise self._error(error) from error
        self._begun = False

    async def close(self) -> None:
        """Abort a transaction that is open, and disconnect."""
        with anyio.move_on_after(_CLOSE_TIMEOUT), suppress(ConsumerError):
            if self._left_open:
                await self._connect()
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_producer(producer, _CLOSE_TIMEOUT)

    async def _abort(self) -> None:
        """Replace the producer, so that the broker aborts the transaction of the one before."""
        self._begun = False
        self._left_open = True
        self.on_abort()
        producer, self._producer = self._producer, None
        with shield(_CLOSE_TIMEOUT):
            await self._drop(producer)
        try:
            # Now, not with the next transaction: readers and the group wait for its end.
            await self._connect()
        except KmrError as error:
            _log.warning("transaction not aborted yet", reason=str(error))

    async def _drop(self, producer: Any) -> None:
        await drop_producer(producer)
        _ignore(producer._txn_manager.wait_for_transaction_end())

    async def _connect(self) -> None:
        producer: Any = aiokafka.AIOKafkaProducer(
            **self._client,
            **self._options,
            acks="all",
            transactional_id=self.transactional_id,
            transaction_timeout_ms=round(self._timeout * 1000),
        )
        plain = producer._sender
        producer._sender = _Sender(
            producer.client,
            acks=plain._acks,
            txn_manager=producer._txn_manager,
            message_accumulator=producer._message_accumulator,
            retry_backoff_ms=plain._retry_backoff * 1000,
            request_timeout_ms=plain._request_timeout_ms,
        )
        started = False
        try:
            await _within(self._timeout, producer.start())
            started = True
        except TimeoutError:
            raise BrokerUnavailable(
                f"transactional id {self.transactional_id}: no answer in {self._timeout:g} s"
            ) from None
        except kafka_errors.KafkaError as error:
            raise self._error(error) from error
        finally:
            if not started:
                with shield(_CLOSE_TIMEOUT):
                    await drop_producer(producer)
        self._producer = producer
        self._left_open = False

    def _error(self, error: kafka_errors.KafkaError) -> ConsumerError:
        cause: BaseException = error
        if isinstance(error.__cause__, (*_REFUSED, *_TOO_OLD)):
            cause = error.__cause__
        described = f"{type(cause).__name__}: {cause}"
        if isinstance(cause, CommitFenced):
            return cause
        if isinstance(cause, _TOO_OLD):
            return CommitRefused(f"transactions need brokers of Kafka 2.5 or later: {described}")
        if isinstance(cause, _REFUSED):
            return CommitRefused(
                f"transactional id {self.transactional_id}, group {self._group}: the broker refuses the "
                f"transaction: {described}; allow our user Write on the transactional id and the output "
                "topic, and Read on the group and the input topics"
            )
        if isinstance(cause, kafka_errors.KafkaConnectionError):
            return BrokerUnavailable(f"no broker answers: {described}")
        return ConsumerError(f"transactional id {self.transactional_id}: {described}")


async def _within(seconds: float, action: Coroutine[Any, Any, None]) -> None:
    """Await a call of aiokafka in a task of its own: it may suppress the cancellation of a scope around it.

    Raises TimeoutError, and what the call raises.
    """
    task = asyncio.create_task(action)
    task.add_done_callback(_ignore)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise TimeoutError
        task.result()
    finally:
        task.cancel()


def _ignore(future: asyncio.Future[Any] | None) -> None:
    """Keep asyncio from logging the error of a future that nothing awaits any more."""
    if future is not None and future.done() and not future.cancelled():
        future.exception()


class _Fenced(kafka_errors.KafkaError, CommitFenced):  # type: ignore[misc]
    """The group has refused the offsets of this generation."""


class _Sender(Sender):  # type: ignore[misc]
    """aiokafka's sender, whose offsets name the member that commits them.

    Attributes:
        member: set before offsets are sent.
    """

    member = Membership()

    async def _do_txn_offset_commit(self, offsets: Any, group_id: str) -> None:
        if not offsets:
            return
        try:
            node_id = await self._find_coordinator(CoordinationType.GROUP, group_id)
        except kafka_errors.GroupAuthorizationFailedError as error:
            self._txn_manager.error_transaction(error)
            return
        await _OffsetsHandler(self, offsets, group_id).do(node_id)


class _OffsetsHandler(TxnOffsetCommitHandler):  # type: ignore[misc]
    def create_request(self) -> KioRequest:
        """Return version 3 (KIP-447), the first that names the member and its generation."""
        from kio.schema.txn_offset_commit.v3 import TxnOffsetCommitRequest
        from kio.schema.txn_offset_commit.v3.request import (
            TxnOffsetCommitRequestPartition,
            TxnOffsetCommitRequestTopic,
        )

        from ..kio_requests import KioRequest

        topics = defaultdict(list)
        for partition, offset in self._offsets.items():
            made: Any = TxnOffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=offset.offset,
                committed_metadata=offset.metadata,
            )
            topics[partition.topic].append(made)
        member: Membership = self._sender.member
        manager = self._sender._txn_manager
        return KioRequest(
            TxnOffsetCommitRequest(
                transactional_id=manager.transactional_id,
                group_id=self._group_id,
                producer_id=manager.producer_id,
                producer_epoch=manager.producer_epoch,
                generation_id=member.generation,  # type: ignore[arg-type]
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                topics=tuple(
                    TxnOffsetCommitRequestTopic(name=name, partitions=tuple(lines))
                    for name, lines in topics.items()
                ),
            )
        )

    def handle_response(self, response: Any) -> float | None:
        """Note the committed offsets; return the seconds until the others are sent again, or None."""
        manager = self._sender._txn_manager
        for topic in response.topics:
            for answer in topic.partitions:
                partition = aiokafka.TopicPartition(topic.name, answer.partition_index)
                code = int(answer.error_code)
                if code == 0:
                    manager.offset_committed(
                        partition, self._offsets[partition].offset, self._group_id
                    )
                elif code in COORDINATOR_GONE or code in _AGAIN:
                    if code in COORDINATOR_GONE:
                        self._sender._coordinator_dead(CoordinationType.GROUP)
                    backoff: float = self._default_backoff
                    return backoff
                else:
                    manager.error_transaction(self._refusal(partition, code))
                    return None
        return None

    def _refusal(self, partition: Any, code: int) -> kafka_errors.KafkaError:
        error, where = kafka_errors.for_code(code), f"{partition.topic}-{partition.partition}"
        if code in FENCED:
            return _Fenced(fenced(self._group_id, "transaction", f"{where}: {error.__name__}"))
        return error(where)
