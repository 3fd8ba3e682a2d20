import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from struct import pack, unpack_from
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import NewRecord, build_batch
from kmr.broker.log.results import LogFailed

Batch = Callable[..., bytes]
Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
Produce = Callable[..., Awaitable[Any]]

PRODUCE = 0


@pytest.fixture
async def produce(broker: Broker, connect: Connect) -> Produce:
    """Produce to partition 0 of topic `t`, which is created; return the partition's result."""
    await broker.topics.create("t")
    client = await connect(broker)

    async def produce(
        records: bytes | None,
        *,
        version: int = 8,
        acks: int = -1,
        topic: str = "t",
        partition: int = 0,
    ) -> Any:
        topics = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        response = await client.call(
            PRODUCE,
            version,
            acks=acks,
            timeout=timedelta(seconds=30),
            transactional_id=None,
            topic_data=topics,
        )
        assert response.responses[0].name == topic
        (result,) = response.responses[0].partition_responses
        assert result.index == partition
        return result

    return produce


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", range(3, 12))
async def test_offsets_are_returned_in_every_version(
    produce: Produce, batch: Batch, version: int, acks: int
) -> None:
    for offset in (0, 2):
        result = await produce(batch(b"a", b"b"), version=version, acks=acks)
        assert (result.error_code, result.base_offset) == (ErrorCode.none, offset)
        assert result.log_append_time is None
        if version >= 5:
            assert result.log_start_offset == 0


async def test_several_partitions_and_topics_are_written_in_one_request(
    broker: Broker, connect: Connect, batch: Batch
) -> None:
    await broker.topics.create("a", 2)
    await broker.topics.create("b")
    client = await connect(broker)

    def part(index: int, *values: bytes) -> dict[str, Any]:
        return {"index": index, "records": batch(*values)}

    response = await client.call(
        PRODUCE,
        9,
        acks=-1,
        transactional_id=None,
        topic_data=[
            {"name": "a", "partition_data": [part(0, b"1"), part(1, b"2", b"3"), part(2, b"4")]},
            {"name": "b", "partition_data": [part(0, b"5")]},
        ],
    )
    codes = [[each.error_code for each in t.partition_responses] for t in response.responses]
    missing = ErrorCode.unknown_topic_or_partition
    assert codes == [[ErrorCode.none, ErrorCode.none, missing], [ErrorCode.none]]
    assert [each.log.next_offset for each in broker.topics.partitions] == [1, 2, 1]


async def test_log_append_time_is_in_the_response(
    broker: Broker, produce: Produce, batch: Batch
) -> None:
    await broker.topics.create("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    result = await produce(batch(b"a", timestamp=1000), topic="stamped")
    assert result.log_append_time is not None
    assert result.log_append_time.year > 2000


def damaged(data: bytes, at: int = -1) -> bytes:
    copy = bytearray(data)
    copy[at] ^= 1
    return bytes(copy)


MAGIC_AT = 16


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (lambda batch: damaged(batch(b"a")), ErrorCode.corrupt_message),
        (lambda batch: batch(b"a")[:-1], ErrorCode.invalid_record),
        (lambda batch: batch(b"a")[:30], ErrorCode.invalid_record),
        (lambda batch: batch(b"a")[:8], ErrorCode.invalid_record),
        (lambda _: b"x" * 100, ErrorCode.corrupt_message),
        (lambda batch: damaged(batch(b"a"), MAGIC_AT)[:17] + bytes(60), ErrorCode.corrupt_message),
        (lambda _: b"", ErrorCode.invalid_record),
        (lambda _: None, ErrorCode.invalid_record),
        (lambda batch: batch(b"a") + batch(b"b"), ErrorCode.invalid_record),
        (lambda batch: batch(b"x" * 1_048_588), ErrorCode.message_too_large),
    ],
)
async def test_records_that_cannot_be_stored_are_refused_with_a_reason(
    produce: Produce,
    batch: Batch,
    broker: Broker,
    data: Callable[[Batch], bytes | None],
    code: ErrorCode,
) -> None:
    result = await produce(data(batch))
    assert (result.error_code, result.base_offset) == (code, -1)
    assert result.error_message
    assert broker.topics.partitions[0].log.next_offset == 0
    assert (await produce(batch(b"sound"))).base_offset == 0


async def test_the_limit_of_a_topic_overrides_the_brokers(
    broker: Broker, produce: Produce, batch: Batch
) -> None:
    await broker.topics.create("small", 1, {"max.message.bytes": "200"})
    assert (await produce(batch(b"x" * 100), topic="small")).error_code is ErrorCode.none
    refused = await produce(batch(b"x" * 200), topic="small")
    assert refused.error_code is ErrorCode.message_too_large


@pytest.mark.parametrize("version", [8, 9, 11])
async def test_the_records_that_are_to_blame_are_named(
    broker: Broker, connect: Connect, version: int
) -> None:
    """From version 8 on, by their index in the batch (KIP-467)."""
    await broker.topics.create("compacted", 1, {"cleanup.policy": "compact"})
    keys = (b"a", None, b"b", None)
    records = bytes(build_batch([NewRecord(key, b"value") for key in keys]))
    topics = [{"name": "compacted", "partition_data": [{"index": 0, "records": records}]}]
    client = await connect(broker)
    response = await client.call(PRODUCE, version, acks=-1, topic_data=topics)
    (result,) = response.responses[0].partition_responses
    assert (result.error_code, result.base_offset) == (ErrorCode.invalid_record, -1)
    assert [each.batch_index for each in result.record_errors] == [1, 3]
    assert all("no key" in each.batch_index_error_message for each in result.record_errors)
    assert "2 records are refused" in result.error_message


async def test_an_old_record_format_is_named(produce: Produce) -> None:
    old = pack(">qiIbbqi", 0, 22, 0, 1, 0, 0, -1) + pack(">i", -1)
    result = await produce(old)
    assert result.error_code is ErrorCode.unsupported_for_message_format


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("unknown", 0, ErrorCode.unknown_topic_or_partition),
        ("t", 1, ErrorCode.unknown_topic_or_partition),
        ("t", -1, ErrorCode.unknown_topic_or_partition),
        ("__consumer_offsets", 0, ErrorCode.invalid_topic_exception),
    ],
)
async def test_a_missing_partition_is_refused(
    produce: Produce, batch: Batch, topic: str, partition: int, code: ErrorCode
) -> None:
    result = await produce(batch(b"a"), topic=topic, partition=partition)
    assert result.error_code is code


async def test_other_acks_are_refused(produce: Produce, batch: Batch) -> None:
    result = await produce(batch(b"a"), acks=2)
    assert result.error_code is ErrorCode.invalid_required_acks


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_versions_that_are_advertised_for_old_clients_are_refused(
    broker: Broker, connect: Connect, version: int
) -> None:
    client = await connect(broker)
    body = pack(">hi", -1, 1000) + pack(">ih1sii", 1, 1, b"t", 1, 0) + pack(">i3s", 3, b"old")
    payload = pack(">hhih", PRODUCE, version, 5, -1) + body
    await client.send_bytes(pack(">i", len(payload)) + payload)
    frame = await client.receive_frame()
    correlation_id, _, _, name, _, index, code = unpack_from(">iih1siih", frame)
    assert (correlation_id, name, index) == (5, b"t", 0)
    assert code == ErrorCode.unsupported_version


class Idempotent:
    """Send batches of one producer id, with given sequences."""

    def __init__(self, produce: Produce) -> None:
        self._produce = produce

    async def send(self, sequence: int, *, epoch: int = 0) -> tuple[ErrorCode, int]:
        data = build_batch(
            [NewRecord(None, b"a", (), 1000)],
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        result = await self._produce(bytes(data))
        return result.error_code, result.base_offset


async def test_a_batch_sent_twice_is_stored_once(produce: Produce) -> None:
    producer = Idempotent(produce)
    assert [await producer.send(n) for n in (0, 1, 1, 0, 2)] == [
        (ErrorCode.none, offset) for offset in (0, 1, 1, 0, 2)
    ]


async def test_a_gap_in_the_sequence_is_refused(produce: Produce) -> None:
    producer = Idempotent(produce)
    await producer.send(0)
    assert await producer.send(2) == (ErrorCode.out_of_order_sequence_number, -1)
    assert await producer.send(1) == (ErrorCode.none, 1)


async def test_an_older_epoch_is_fenced_off(produce: Produce) -> None:
    producer = Idempotent(produce)
    await producer.send(0, epoch=1)
    assert await producer.send(0, epoch=0) == (ErrorCode.invalid_producer_epoch, -1)


async def test_a_duplicate_is_acknowledged_only_when_the_first_is_on_disk(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(fsync="always")
    await broker.topics.create("t")
    client, again = await connect(broker), await connect(broker)
    disk = asyncio.Event()
    loop = asyncio.get_running_loop()
    works = PartitionLog.fsync

    def wait_and_sync(log: PartitionLog) -> int:
        asyncio.run_coroutine_threadsafe(disk.wait(), loop).result()
        return works(log)

    monkeypatch.setattr(PartitionLog, "fsync", wait_and_sync)
    data = bytes(
        build_batch(
            [NewRecord(None, b"a", (), 1000)], producer_id=7, producer_epoch=0, base_sequence=0
        )
    )
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": data}]}]
    first = asyncio.create_task(client.call(PRODUCE, 8, acks=-1, topic_data=topics))
    second = asyncio.create_task(again.call(PRODUCE, 8, acks=-1, topic_data=topics))
    done, _ = await asyncio.wait([first, second], timeout=0.1)
    assert not done
    disk.set()
    offsets = [
        each.responses[0].partition_responses[0].base_offset
        for each in await asyncio.gather(first, second)
    ]
    assert offsets == [0, 0]


async def test_the_producer_gets_an_error_when_the_disk_fails(
    broker: Broker, produce: Produce, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: PartitionLog) -> None:
        raise LogFailed("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "flush_pending", fail)
        result = await produce(batch(b"a"))
    assert result.error_code is ErrorCode.kafka_storage_error
    assert result.error_message == "no space left on device"
    assert broker.topics.partitions[0].high_watermark == 0


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_a_real_client_gets_back_what_it_sent(
    start: Start, codec: str | None, fsync: str
) -> None:
    broker = await start(fsync=fsync)
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, compression_type=codec, linger_ms=5
    )
    await producer.start()
    sent = [
        await producer.send(
            "t",
            f"value {number}".encode() * 20 if number % 10 else None,
            key=f"key {number}".encode() if number % 10 != 5 else None,
            headers=[("number", str(number).encode()), ("none", None)],
            timestamp_ms=1_700_000_000_000 + number,
            partition=0,
        )
        for number in range(1000)
    ]
    offsets = [record.offset for record in await asyncio.gather(*sent)]
    await producer.stop()
    assert offsets == list(range(1000))

    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    await consumer.start()
    consumer.assign([TopicPartition("t", 0)])
    await consumer.seek_to_beginning()
    for number in range(1000):
        record = await consumer.getone()
        assert record.offset == number
        assert record.value == (f"value {number}".encode() * 20 if number % 10 else None)
        assert record.key == (f"key {number}".encode() if number % 10 != 5 else None)
        assert record.headers == (("number", str(number).encode()), ("none", None))
        assert record.timestamp == 1_700_000_000_000 + number
    await consumer.stop()


async def test_a_real_client_gets_an_error_for_a_large_message(broker: Broker) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, max_request_size=4 * 2**20
    )
    await producer.start()
    with pytest.raises(MessageSizeTooLargeError):
        await producer.send_and_wait("t", b"x" * 2**20, partition=0)
    largest = 1_048_588 - 61 - 20
    assert (await producer.send_and_wait("t", b"x" * largest, partition=0)).offset == 0
    await producer.stop()


async def test_a_failed_write_closes_the_connection_of_a_producer_that_wants_no_answer(
    broker: Broker, connect: Connect, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: PartitionLog) -> None:
        raise LogFailed("no space left on device")

    await broker.topics.create("t", 1)
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": batch(b"a")}]}]
    client, other = await connect(broker), await connect(broker)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "flush_pending", fail)
        await client.send(client.message(PRODUCE, 8, acks=0, topic_data=topics))
        async with asyncio.timeout(60):
            assert await client.is_closed_by_broker()
    answer = await other.call(PRODUCE, 8, acks=-1, topic_data=topics)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
