"""A client of the transaction APIs in any version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.log.producers import ProducerIdentity
from kmr.broker.log.records import NewRecord, build_batch, parse_header

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]

(
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    OFFSET_FETCH,
    INIT,
    ADD_PARTITIONS,
    ADD_OFFSETS,
    END,
    TXN_OFFSET_COMMIT,
) = 0, 1, 2, 9, 22, 24, 25, 26, 28
MINUTE = timedelta(minutes=1)
OK = ErrorCode.none


class Fetched(NamedTuple):
    """A fetched partition; `batches` are (base offset, producer id, is control)."""

    batches: list[tuple[int, int, bool]]
    aborted: list[tuple[int, int]] | None
    last_stable_offset: int
    high_watermark: int


class Wire:
    """A client with one transactional id; versions are the newest unless given."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def init(
        self,
        transactional_id: str | None = "x",
        *,
        version: int = 4,
        timeout: timedelta = MINUTE,
        expected: ProducerIdentity | None = None,
    ) -> Any:
        fields: dict[str, Any] = {}
        if expected is not None:
            fields = {"producer_id": expected.producer_id, "producer_epoch": expected.epoch}
        return await self.client.call(
            INIT,
            version,
            transactional_id=transactional_id,
            transaction_timeout=timeout,
            **fields,
        )

    async def begin(self, transactional_id: str = "x") -> ProducerIdentity:
        """Start a producer, which fences the former one of this id."""
        async with asyncio.timeout(60):
            while True:
                answer = await self.init(transactional_id)
                if answer.error_code is not ErrorCode.concurrent_transactions:
                    assert answer.error_code is OK
                    return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    async def add(
        self,
        producer: ProducerIdentity,
        partitions: Iterable[int] = (0,),
        *,
        topic: str = "t",
        transactional_id: str = "x",
        version: int = 3,
    ) -> set[ErrorCode]:
        prefix = "v3_and_below_"
        fields = {
            "transactional_id": transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "topics": [{"name": topic, "partitions": list(partitions)}],
        }
        answer = await self.client.call(
            ADD_PARTITIONS, version, **{prefix + name: value for name, value in fields.items()}
        )
        return {
            partition.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for partition in topic.results_by_partition
        }

    async def produce(
        self,
        producer: ProducerIdentity,
        sequence: int,
        *,
        partition: int = 0,
        transactional_id: str | None = "x",
        transactional: bool = True,
        version: int = 10,
        topic: str = "t",
    ) -> ErrorCode:
        records = build_batch(
            [NewRecord(None, b"v", (), int(time.time() * 1000))],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        sent = {"index": partition, "records": bytes(records)}
        answer = await self.client.call(
            PRODUCE,
            version,
            transactional_id=transactional_id,
            acks=-1,
            topic_data=[{"name": topic, "partition_data": [sent]}],
        )
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def end(
        self,
        producer: ProducerIdentity,
        *,
        commit: bool,
        version: int = 3,
        transactional_id: str = "x",
    ) -> ErrorCode:
        answer = await self.client.call(
            END,
            version,
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        return ErrorCode(answer.error_code)

    async def end_and_raise(
        self, producer: ProducerIdentity, *, commit: bool, transactional_id: str = "x"
    ) -> tuple[ErrorCode, ProducerIdentity]:
        """EndTxn 5; return the code and the identity afterwards."""
        answer = await self.client.call(
            END,
            5,
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        return answer.error_code, ProducerIdentity(answer.producer_id, answer.producer_epoch)

    async def add_offsets(
        self, producer: ProducerIdentity, *, group: str = "g", version: int = 3
    ) -> ErrorCode:
        answer = await self.client.call(
            ADD_OFFSETS,
            version,
            transactional_id="x",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=group,
        )
        return ErrorCode(answer.error_code)

    async def commit_offsets(
        self,
        producer: ProducerIdentity,
        offset: int,
        *,
        version: int = 3,
        topic: str = "t",
        **member: Any,
    ) -> ErrorCode:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}
        answer = await self.client.call(
            TXN_OFFSET_COMMIT,
            version,
            transactional_id="x",
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[{"name": topic, "partitions": [partition]}],
            **member,
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def committed(self, *, stable: bool = False, version: int = 7) -> tuple[ErrorCode, int]:
        wanted = [{"name": "t", "partition_indexes": [0]}]
        fields: dict[str, Any] = {"require_stable": stable} if version >= 7 else {}
        if version >= 8:
            fields["groups"] = [{"group_id": "g", "topics": wanted}]
        else:
            fields |= {"group_id": "g", "topics": wanted}
        answer = await self.client.call(OFFSET_FETCH, version, **fields)
        topics = answer.groups[0].topics if version >= 8 else answer.topics
        found = topics[0].partitions[0]
        return found.error_code, found.committed_offset

    async def fetch(
        self, offset: int = 0, *, committed: bool, version: int = 11, max_bytes: int = 2**20
    ) -> Fetched:
        partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        answer = await self.client.call(
            FETCH,
            version,
            max_bytes=max_bytes,
            isolation_level=int(committed),
            topics=[{"topic": "t", "partitions": [partition]}],
        )
        (found,) = answer.responses[0].partitions
        batches, at = [], 0
        while at < len(found.records):
            header = parse_header(found.records, at)
            batches.append((header.base_offset, header.producer_id, header.is_control))
            at = header.end
        aborted = found.aborted_transactions
        return Fetched(
            batches,
            None
            if aborted is None
            else [(each.producer_id, each.first_offset) for each in aborted],
            found.last_stable_offset,
            found.high_watermark,
        )

    async def latest(self, *, committed: bool) -> int:
        answer = await self.client.call(
            LIST_OFFSETS,
            7,
            isolation_level=int(committed),
            topics=[{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        )
        return int(answer.topics[0].partitions[0].offset)


@pytest.fixture
async def broker(start: Start) -> Broker:
    """A broker with a topic "t" of three partitions."""
    broker = await start()
    await broker.topics.create("t", 3)
    return broker


@pytest.fixture
def speak(connect: Connect) -> Callable[[Broker], Awaitable[Wire]]:
    """Opens a connection."""

    async def speak(broker: Broker) -> Wire:
        return Wire(await connect(broker))

    return speak


@pytest.fixture
async def wire(broker: Broker, speak: Callable[[Broker], Awaitable[Wire]]) -> Wire:
    return await speak(broker)
