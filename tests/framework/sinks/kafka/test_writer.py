"""KafkaWriter, against the broker of this process."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from aiokafka.partitioner import DefaultPartitioner
from anyio.to_thread import run_sync

from kmr import Avro, Registry
from kmr.broker import Broker, BrokerSettings
from kmr.errors import StrategyError
from kmr.reducers.reducer import Retry
from kmr.sinks.kafka.writer import KafkaWriter

from ...flushes import Flushed, outcome
from .topics import TOPIC, consumed, context, create, flushed, opened, rows_of

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_row_is_a_message_with_the_row_as_json(broker: Broker) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC)) as writer:
        writer.add(rows_of(carrier=["UA", None], delay=[5, 7]))
        writer.add(rows_of(first=2, carrier=["DL"], delay=[1]))
        assert await flushed(writer) == Flushed()
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


async def test_a_format_with_a_registry_registers_the_schema_and_encodes_the_rows(
    broker: Broker,
    registry_url: str,
) -> None:
    await create(broker)
    registry = registry_url
    writer = KafkaWriter(TOPIC, key="k", value=Avro(registry=registry))
    async with opened(broker, writer) as writer:
        writer.add(rows_of(k=["a", "b"], n=[1, None]))
        assert await flushed(writer) == Flushed()
    values = pa.array([each.value for each in await consumed(broker)], pa.binary())
    decoded = await run_sync(Avro(registry=registry, subject=f"{TOPIC}-value").decode, values)
    assert decoded.failures == {}
    assert decoded.columns.to_pylist() == [{"k": "a", "n": 1}, {"k": "b", "n": None}]


async def test_a_registry_that_does_not_answer_is_asked_again(broker: Broker) -> None:
    await create(broker)
    value = Avro(registry=Registry("http://127.0.0.1:9", retries=0))
    async with opened(broker, KafkaWriter(TOPIC, value=value)) as writer:
        writer.add(rows_of(n=[1]))
        result = await outcome(writer)
    assert isinstance(result, Retry)
    assert "registry http://127.0.0.1:9: no answer" in str(result.reason)


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


async def test_without_keys_the_flushes_of_all_copies_spread_over_the_partitions(
    broker: Broker,
) -> None:
    await create(broker, partitions=2)
    original = KafkaWriter(TOPIC)
    async with opened(broker, original) as one, opened(broker, original) as two:
        for number in range(40):
            writer = (one, two)[number % 2]
            writer.add(rows_of(n=[number, number]))
            await flushed(writer)
            writer.reset()
    partition_of: dict[bytes | None, set[int]] = {}
    for record in await consumed(broker, partitions=2):
        partition_of.setdefault(record.value, set()).add(record.partition)
    assert len(partition_of) == 40
    assert {len(each) for each in partition_of.values()} == {1}
    assert set().union(*partition_of.values()) == {0, 1}


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
        result = await flushed(writer)
        assert [each.reason for each in result.refusals] == [
            "topic out has no partition 3, only 0 to 2"
        ]
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


async def test_a_missing_topic_is_refused_at_start(tmp_path: Path) -> None:
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


async def test_a_missing_column_is_named(broker: Broker) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC, key="k")) as writer:
        writer.add(rows_of(v=["a"]))
        with pytest.raises(StrategyError, match=r"no column 'k', only \['v'\]"):
            await outcome(writer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": 0}, "acks must be 'all' or 1, not 0"),
        ({"acks": 1, "idempotence": True}, "idempotence=True needs acks='all'"),
        ({"compression": "zip"}, "compression must be"),
        ({"max_message_bytes": 0}, "max_message_bytes must be above 0"),
        ({"attempt_timeout": 0}, "attempt_timeout must be above 0, not 0"),
        ({"topic": ""}, "'' cannot be the name of a topic"),
        ({"topic": "dead letters"}, "'dead letters' cannot be the name of a topic: 1 to 249"),
        ({"delivery": "sometimes"}, "delivery must be 'at-least-once' or 'exactly-once'"),
        ({"delivery": "exactly-once", "acks": 1}, "needs acks='all' and idempotence"),
        ({"delivery": "exactly-once", "idempotence": False}, "needs acks='all' and idempotence"),
        ({"delivery": "exactly-once", "bootstrap_servers": "b:9092"}, "remove bootstrap_servers"),
        ({"transaction_timeout": 0}, "transaction_timeout must be above 0"),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        KafkaWriter(**{"topic": TOPIC, **options})


def test_writers_can_be_pickled() -> None:
    writer = pickle.loads(pickle.dumps(KafkaWriter(TOPIC, key="k", max_rows=5)))
    assert (writer.topic, writer.key, writer.max_rows) == (TOPIC, "k", 5)


async def test_changes_are_keyed_records_and_tombstones(broker: Broker) -> None:
    await create(broker)
    writer = KafkaWriter(TOPIC, key="id", changes=True)
    before = [None, None, {"id": 1}, {"id": 2}, None, None]
    async with opened(broker, writer) as writer:
        writer.add(
            rows_of(
                id=[1, 2, 3, 2, None, None],
                name=["a", "b", "c", None, "x", None],
                op=["c", "c", "u", "d", "u", "t"],
                before=pa.array(before, pa.struct([("id", pa.int64())])),
            )
        )
        result = await flushed(writer)
    assert isinstance(result, Flushed)
    assert [(each.rows.offsets.tolist(), each.reason) for each in result.refusals] == [  # type: ignore[union-attr]
        (
            [4, 5],
            (
                "column id: null, though it is of the key",
                "KafkaWriter: the table was truncated, and a log of changes cannot say so",
            ),
        )
    ]
    assert [(record.key, record.value) for record in await consumed(broker)] == [
        (b"1", b'{"id":1,"name":"a"}'),
        (b"2", b'{"id":2,"name":"b"}'),
        (b"1", None),
        (b"3", b'{"id":3,"name":"c"}'),
        (b"2", None),
    ]


async def test_a_key_of_several_columns_is_sent_as_a_json_object(broker: Broker) -> None:
    await create(broker)
    async with opened(broker, KafkaWriter(TOPIC, key=["a", "b"], changes=True)) as writer:
        writer.add(rows_of(a=[1, 1], b=["x", "x"], n=[5, None], op=["c", "d"]))
        assert await flushed(writer) == Flushed()
    assert [(record.key, record.value) for record in await consumed(broker)] == [
        (b'{"a":1,"b":"x"}', b'{"a":1,"b":"x","n":5}'),
        (b'{"a":1,"b":"x"}', None),
    ]
    with pytest.raises(StrategyError, match="needs changes=True"):
        KafkaWriter(TOPIC, key=["a", "b"])
    with pytest.raises(StrategyError, match="'json' or a format"):
        KafkaWriter(TOPIC, key="a", value="v", changes=True)
