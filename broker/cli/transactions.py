"""The transactions of a cluster as plain data: who has what open, and how to end what hangs (KIP-664)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka import TopicPartition
from aiokafka.protocol.api import Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)
from kio.schema.errors import ErrorCode

from broker.cli.errors import CommandError
from broker.cli.messages import Message, element

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiokafka.admin import AIOKafkaAdminClient

__all__ = ["OpenTransaction", "TransactionAdmin", "TransactionInfo"]

_WRITE_MARKERS, _DESCRIBE_PRODUCERS, _DESCRIBE, _LIST = 27, 61, 65, 66
_MARKERS_VERSION = 1
_TRANSACTIONS = 1  # what a coordinator is asked for
_PAUSE = 0.2  # seconds
_TRIES = 50


@dataclass(frozen=True)
class TransactionInfo:
    """A transactional id, as its coordinator knows it; times in milliseconds, -1 without one."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is open in a partition since `start_offset`, as its leader knows it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class _Described(Response):  # type: ignore[misc]
    """DescribeTransactions: kio reads no -1, which is the time of a transaction that there is not."""

    API_KEY = _DESCRIBE
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "states",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("timeout_ms", Int32),
                ("started_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class TransactionAdmin:
    """Questions and orders about transactions; see `broker.cli.admin.open_admin`."""

    def __init__(self, client: AIOKafkaAdminClient) -> None:
        self._client = client
        self._kafka = client._client  # noqa: SLF001  it has no other way to send a request

    async def known(self) -> list[tuple[str, int, str]]:
        """Transactional id, producer id and state of all that the coordinators know."""
        await self._refresh()
        nodes = [node.nodeId for node in self._kafka.cluster.brokers()]
        answers = [await self._send(Message(_LIST, 0), node) for node in nodes]
        for answer in answers:
            _raise_for(answer.error_code, "transactions")
        return sorted(
            (each.transactional_id, int(each.producer_id), each.transaction_state)
            for answer in answers
            for each in answer.transaction_states
        )

    async def describe(self, transactional_id: str) -> TransactionInfo:
        """Raises CommandError when there is no such transactional id."""
        node = await self._client.find_coordinator(transactional_id, _TRANSACTIONS)
        answer = await self._send(
            Message(_DESCRIBE, 0, response=_Described, transactional_ids=(transactional_id,)), node
        )
        ((code, _, state, timeout_ms, started_ms, producer_id, epoch, topics, _),) = answer.states
        _raise_for(code, f"transactional id {transactional_id}")
        return TransactionInfo(
            transactional_id=transactional_id,
            state=state,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            started_ms=started_ms,
            partitions=tuple(
                TopicPartition(topic, index) for topic, indexes, _ in topics for index in indexes
            ),
        )

    async def open_in(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """What is open in these partitions. Raises CommandError."""
        await self._refresh()
        found: list[OpenTransaction] = []
        for partition in partitions:
            topic = element(
                _DESCRIBE_PRODUCERS,
                0,
                "topics",
                name=partition.topic,
                partition_indexes=(partition.partition,),
            )
            answer = await self._send(
                Message(_DESCRIBE_PRODUCERS, 0, topics=(topic,)), self._leader(partition)
            )
            (described,) = answer.topics[0].partitions
            _raise_for(described.error_code, _name(partition), described.error_message)
            found += [
                OpenTransaction(
                    partition=partition,
                    producer_id=int(each.producer_id),
                    producer_epoch=int(each.producer_epoch),
                    coordinator_epoch=int(each.coordinator_epoch),
                    start_offset=int(each.current_txn_start_offset),
                    last_timestamp_ms=int(each.last_timestamp),
                )
                for each in described.active_producers
                if each.current_txn_start_offset >= 0
            ]
        return found

    async def hanging_in(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """What is open in these partitions and nobody will ever end: no coordinator knows of it."""
        candidates = await self.open_in(partitions)
        known: set[tuple[int, TopicPartition]] = set()
        if candidates:
            wanted = {each.producer_id for each in candidates}
            for transactional_id, producer_id, _ in await self.known():
                if producer_id in wanted:
                    info = await self.describe(transactional_id)
                    known |= {(info.producer_id, each) for each in info.partitions}
        return [each for each in candidates if (each.producer_id, each.partition) not in known]

    async def abort(self, transaction: OpenTransaction) -> None:
        """Abort a transaction in its partition, there alone. Raises CommandError."""
        where = transaction.partition
        topic = element(
            _WRITE_MARKERS,
            _MARKERS_VERSION,
            *("markers", "topics"),
            name=where.topic,
            partition_indexes=(where.partition,),
        )
        marker = element(
            _WRITE_MARKERS,
            _MARKERS_VERSION,
            "markers",
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
            transaction_result=False,
            topics=(topic,),
        )
        answer = await self._send(
            Message(_WRITE_MARKERS, _MARKERS_VERSION, markers=(marker,)), self._leader(where)
        )
        _raise_for(answer.markers[0].topics[0].partitions[0].error_code, _name(where))

    async def _refresh(self) -> None:
        await self._kafka.force_metadata_update()

    def _leader(self, partition: TopicPartition) -> int:
        leader = self._kafka.cluster.leader_for_partition(partition)
        if leader is None or leader < 0:
            raise CommandError(f"{_name(partition)}: does not exist, or has no leader now")
        return int(leader)

    async def _send(self, request: Message, node: int) -> Any:
        for _ in range(_TRIES):
            if await self._kafka.ready(node):
                break
            await asyncio.sleep(_PAUSE)
        return await self._kafka.send(node, request)


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _raise_for(code: int, what: str, message: str | None = None) -> None:
    """Raise what a response says, in the broker's words or by the name that the protocol has for it."""
    if code:
        raise CommandError(f"{what}: {message or ErrorCode(code).name.replace('_', ' ')}")
