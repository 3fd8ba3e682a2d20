"""KafkaWriter and DeadLetterWriter, against the broker of this process."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pyarrow as pa
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from broker import Broker, BrokerSettings
from framework.errors import SinkError, StrategyError
from framework.failures import FAILED_SCHEMA
from framework.record import Range, Rows
from framework.reducer import Context, Empty, Flushed, Retry
from framework.sinks.kafka.messages import partitions_by_key
from framework.sinks.kafka.writer import DeadLetterWriter, KafkaWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiokafka import ConsumerRecord

    from framework.reducer import FlushResult

TOPIC = "out"


def context(bootstrap_servers: str) -> Context:
    return Context("g", bootstrap_servers, "reduce-1", {"client_id": "test"})


def rows_of(table: pa.Table | None = None, first: int = 0, **columns: Any) -> Rows:
    table = table if table is not None else pa.table(columns)
    offsets = np.arange(first, first + table.num_rows, dtype=np.int64)
    return Rows(table, (Range("in", 0, first, first + table.num_rows - 1),), offsets)


async def create(broker: Broker, topic: str = TOPIC, partitions: int = 1, **configs: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        configs = {name.replace("_", "."): value for name, value in configs.items()}
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
    finally:
        await admin.close()


async def delete(broker: Broker, topic: str = TOPIC) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()


async def consumed(broker: Broker, partitions: int = 1) -> list[ConsumerRecord[bytes, bytes]]:
    """Everything in the topic, partition by partition."""
    consumer: AIOKafkaConsumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    await consumer.start()
    try:
        assigned = [TopicPartition(TOPIC, number) for number in range(partitions)]
        consumer.assign(assigned)
        await consumer.seek_to_beginning(*assigned)
        ends = await consumer.end_offsets(assigned)
        records: list[ConsumerRecord[bytes, bytes]] = []
        with anyio.fail_after(20):
            for partition in assigned:
                while await consumer.position(partition) < ends[partition]:
                    fetched = await consumer.getmany(partition, timeout_ms=200)
                    records += fetched.get(partition, [])
        return records
    finally:
        await consumer.stop()


@asynccontextmanager
async def opened(broker: Broker, writer: KafkaWriter) -> AsyncIterator[KafkaWriter]:
    copy = writer.spawn()
    await copy.open(context(broker.bootstrap_servers))
    try:
        yield copy
    finally:
        await copy.close()


async def flushed(writer: KafkaWriter) -> Flushed:
    result: FlushResult = await writer.flush()
    assert isinstance(result, Flushed), result
    return result


async def test_a_row_is_a_message_with_the_row_as_json(broker: Broker) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC)) as writer:
        writer.add(rows_of(carrier=["UA", None], delay=[5, 7]))
        writer.add(rows_of(first=2, carrier=["DL"], delay=[1]))
        assert await flushed(writer) == Flushed(poisoned=[])
    records = await consumed(broker)
    assert [record.value for record in records] == [
        b'{"carrier":"UA","delay":5}',
        b'{"carrier":null,"delay":7}',
        b'{"carrier":"DL","delay":1}',
    ]
    assert {record.key for record in records} == {None}


async def test_keys_values_headers_and_times_come_from_columns(broker: Broker) -> None:
    await create(broker)
    writer = KafkaWriter(
        TOPIC, key="k", value="v", headers={"trace": "t", "n": "n"}, timestamp="at"
    )
    table = pa.table(
        {
            "k": ["a", None],
            "v": pa.array([b"\xff", None], pa.binary()),
            "t": pa.array([b"x", None], pa.binary()),
            "n": [1, 2],
            "at": pa.array([1_500_000, 2_500_999], pa.timestamp("us", "UTC")),
        }
    )
    async with opened(broker, writer) as writer:
        writer.add(rows_of(table))
        await flushed(writer)
    first, second = await consumed(broker)
    assert (first.key, first.value, first.timestamp) == (b"a", b"\xff", 1500)
    assert first.headers == (("trace", b"x"), ("n", b"1"))
    assert (second.key, second.value, second.timestamp) == (None, None, 2500)
    assert second.headers == (("n", b"2"),)


async def test_messages_of_one_key_keep_their_partition_and_their_order(broker: Broker) -> None:
    await create(broker, partitions=3)
    keys = [f"key-{number % 7}" for number in range(500)]
    async with opened(broker, KafkaWriter(TOPIC, key="k")) as writer:
        for first in (0, 250):
            part = slice(first, first + 250)
            writer.add(rows_of(first=first, k=keys[part], n=list(range(500))[part]))
        await flushed(writer)
    records = await consumed(broker, partitions=3)
    assert len(records) == 500
    partition_of = DefaultPartitioner()
    for record in records:
        assert record.partition == partition_of(record.key, [0, 1, 2], [0, 1, 2])
    for key in set(keys):
        of_key = [record.offset for record in records if record.key == key.encode()]
        assert of_key == sorted(of_key)


@given(st.lists(st.none() | st.binary(max_size=9), max_size=20), st.integers(1, 12))
def test_partitions_are_those_of_the_java_client(keys: list[bytes | None], count: int) -> None:
    partitions = list(range(count))
    expected = [
        7 if key is None else DefaultPartitioner()(key, partitions, partitions) for key in keys
    ]
    assert partitions_by_key(keys, partitions, 7).tolist() == expected


async def test_without_keys_each_flush_goes_to_the_next_partition(broker: Broker) -> None:
    await create(broker, partitions=2)
    async with opened(broker, KafkaWriter(TOPIC)) as writer:
        for number in range(3):
            writer.add(rows_of(n=[number]))
            await flushed(writer)
            writer.reset()
    records = await consumed(broker, partitions=2)
    assert [(record.partition, record.value) for record in records] == [
        (0, b'{"n":0}'),
        (0, b'{"n":2}'),
        (1, b'{"n":1}'),
    ]


async def test_a_partition_may_be_given_or_come_from_a_column(broker: Broker) -> None:
    await create(broker, partitions=3)
    async with opened(broker, KafkaWriter(TOPIC, partition=2, value="v")) as writer:
        writer.add(rows_of(v=["fixed"]))
        await flushed(writer)
    async with opened(broker, KafkaWriter(TOPIC, partition="p", value="v")) as writer:
        writer.add(rows_of(v=["one", "zero"], p=[1, 0]))
        await flushed(writer)
        writer.reset()
        writer.add(rows_of(v=["x"], p=[3]))
        with pytest.raises(SinkError, match="topic out has no partition 3, only 0 to 2"):
            await writer.flush()
    found = {record.value: record.partition for record in await consumed(broker, partitions=3)}
    assert found == {b"fixed": 2, b"one": 1, b"zero": 0}


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_many_batches_with_every_codec(broker: Broker, compression: Any) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC, value="v", compression=compression)) as writer:
        writer.add(rows_of(v=[f"{number:0100}" for number in range(20_000)]))
        await flushed(writer)
    values = [int(record.value or b"") for record in await consumed(broker)]
    assert values == list(range(20_000))


async def test_a_message_above_our_limit_is_poisoned_and_the_others_are_delivered(
    broker: Broker,
) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC, value="v", max_message_bytes=500)) as writer:
        writer.add(rows_of(v=["a", "b"]))
        writer.add(rows_of(first=2, v=["c", "x" * 1000, "d"]))
        (poisoned,) = (await flushed(writer)).poisoned
    assert poisoned.rows.offsets is not None
    assert poisoned.rows.offsets.tolist() == [3]
    assert poisoned.rows.table.to_pylist() == [{"v": "x" * 1000}]
    assert poisoned.reason == "the message is too large for topic out"
    assert [record.value for record in await consumed(broker)] == [b"a", b"b", b"c", b"d"]


async def test_a_message_above_the_topics_limit_is_found_among_the_others(broker: Broker) -> None:
    await create(broker, max_message_bytes="2000")
    values = ["x" * 3000 if number == 33 else f"{number:050}" for number in range(100)]
    async with opened(broker, KafkaWriter(TOPIC, value="v")) as writer:
        writer.add(rows_of(v=values))
        (poisoned,) = (await flushed(writer)).poisoned
    assert poisoned.rows.offsets is not None
    assert poisoned.rows.offsets.tolist() == [33]
    delivered = [int(record.value or b"") for record in await consumed(broker)]
    assert delivered == [number for number in range(100) if number != 33]


async def test_a_limit_that_is_lowered_later_is_found_out_by_sending(broker: Broker) -> None:
    await create(broker)
    values = [f"{number:050}" for number in range(100)]
    values[10] = values[70] = "x" * 3000
    async with opened(broker, KafkaWriter(TOPIC, value="v")) as writer:
        await delete(broker)
        await create(broker, max_message_bytes="2000")
        writer.add(rows_of(v=values))
        poisoned = (await flushed(writer)).poisoned
    (refused,) = poisoned
    assert refused.rows.offsets is not None
    assert refused.rows.offsets.tolist() == [10, 70]
    delivered = [int(record.value or b"") for record in await consumed(broker)]
    assert delivered == [number for number in range(100) if number not in (10, 70)]


async def test_while_the_broker_is_away_a_flush_is_tried_again_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "broker", port=0)
    async with Broker(settings) as first:
        port = int(first.bootstrap_servers.rpartition(":")[2])
        await create(first)
        writer = KafkaWriter(TOPIC, value="v", attempt_timeout=0.3).spawn()
        await writer.open(context(first.bootstrap_servers))
        writer.add(rows_of(v=["before"]))
        await flushed(writer)
        writer.reset()
    try:
        writer.add(rows_of(v=["during", "too"]))
        for _ in range(2):
            result = await writer.flush()
            assert isinstance(result, Retry)
            assert "topic out: no acknowledgement from the brokers in 0.3 s" in result.reason
        again = BrokerSettings(data_dir=tmp_path / "broker", port=port)
        async with Broker(again) as second:
            with anyio.fail_after(20):
                while isinstance(await writer.flush(), Retry):
                    pass
            values = [record.value for record in await consumed(second)]
            assert values == [b"before", b"during", b"too"]
            await writer.close()
    finally:
        await writer.close()


@pytest.mark.slow
async def test_a_writer_can_be_closed_while_the_broker_is_away_and_leaves_no_task(
    tmp_path: Path,
) -> None:
    before = asyncio.all_tasks()
    async with Broker(BrokerSettings(data_dir=tmp_path / "broker", port=0)) as broker:
        await create(broker)
        writer = KafkaWriter(TOPIC, value="v", attempt_timeout=0.2).spawn()
        await writer.open(context(broker.bootstrap_servers))
    writer.add(rows_of(v=["never"]))
    assert isinstance(await writer.flush(), Retry)
    with anyio.fail_after(9):
        await writer.close()
    await anyio.wait_all_tasks_blocked()
    assert asyncio.all_tasks() == before


async def test_a_topic_that_is_made_anew_under_the_producer_loses_nothing(broker: Broker) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC, value="v")) as writer:
        writer.add(rows_of(v=["old"]))
        await flushed(writer)
        writer.reset()
        await delete(broker)
        await create(broker)
        writer.add(rows_of(v=["new"]))
        with anyio.fail_after(20):
            while isinstance(await writer.flush(), Retry):
                pass
    assert [record.value for record in await consumed(broker)] == [b"new"]


async def test_a_topic_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "broker", port=0, auto_create_topics=False)
    async with Broker(settings) as broker:
        writer = KafkaWriter("absent", open_timeout=1.0)
        try:
            with pytest.raises(
                StrategyError, match=r"reduce-1: there is no topic absent at .*creat"
            ):
                await writer.open(context(broker.bootstrap_servers))
        finally:
            await writer.close()


async def test_a_column_that_is_not_there_is_named(broker: Broker) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC, key="k")) as writer:
        writer.add(rows_of(v=["a"]))
        with pytest.raises(StrategyError, match=r"no column 'k', only \['v'\]"):
            await writer.flush()


async def test_nothing_collected_sends_nothing(broker: Broker) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC)) as writer:
        assert await writer.flush() == Empty()
    assert await consumed(broker) == []


async def test_a_dead_letter_is_the_record_as_it_was_with_the_reason(broker: Broker) -> None:
    await create(broker)
    failed = {
        "key": b"UA",
        "value": b"\xff not json",
        "topic": "flights",
        "partition": 3,
        "offset": 41,
        "timestamp": 1_700_000_000_123_000,
        "timestampType": 0,
        "headers": [{"key": "trace", "value": b"t"}, {"key": "trace", "value": None}],
        "reason": "ValueError: no json",
        "stage": "map",
        "attempt": 1,
    }
    bare = failed | {"key": None, "value": None, "headers": None, "offset": 42}
    table = pa.Table.from_pylist([failed, bare], schema=FAILED_SCHEMA)
    async with opened(broker, DeadLetterWriter(TOPIC)) as writer:
        writer.add(rows_of(table, first=41))
        await flushed(writer)
    first, second = await consumed(broker)
    assert (first.key, first.value) == (b"UA", b"\xff not json")
    assert first.headers == (
        ("trace", b"t"),
        ("trace", None),
        ("kmr.topic", b"flights"),
        ("kmr.partition", b"3"),
        ("kmr.offset", b"41"),
        ("kmr.timestamp", b"1700000000123"),
        ("kmr.reason", b"ValueError: no json"),
        ("kmr.stage", b"map"),
        ("kmr.attempt", b"1"),
    )
    assert (second.key, second.value) == (None, None)
    assert dict(second.headers)["kmr.offset"] == b"42"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": 0}, "acks must be 'all' or 1, not 0: without acknowledgements"),
        ({"acks": 1, "idempotence": True}, "idempotence=True needs acks='all'"),
        ({"compression": "zip"}, "compression must be one of"),
        ({"max_message_bytes": 0}, "max_message_bytes must be above 0"),
        ({"attempt_timeout": 0}, "attempt_timeout and open_timeout must be above 0"),
        ({"topic": ""}, "topic is empty"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        KafkaWriter(**{"topic": TOPIC, **options})


def test_a_dead_letter_cannot_have_another_value() -> None:
    with pytest.raises(StrategyError, match="value is that of the failed record"):
        DeadLetterWriter(TOPIC, value="v")


def test_writers_can_travel_to_another_process() -> None:
    writer = pickle.loads(pickle.dumps(KafkaWriter(TOPIC, key="k", max_rows=5)))
    assert (writer.topic, writer.key, writer.max_rows) == (TOPIC, "k", 5)
    assert pickle.loads(pickle.dumps(DeadLetterWriter(TOPIC))).max_age == 1.0
