"""The blocking client and its ranges, against a real broker and without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.errors import ConsumerError, OffsetOutOfRange
from kmr.record import Range, TopicPartition
from kmr.spark.source.blocking_client import BlockingClient, event_loop, shared_client
from kmr.spark.source.options import ClientConfig
from kmr.spark.source.reader import read_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kmr.record import Batch
    from tests.framework.spark.conftest import Kafka


@pytest.fixture
def client(kafka: Kafka) -> Iterator[BlockingClient]:
    made = BlockingClient(ClientConfig(bootstrap_servers=kafka.servers, fetch_max_wait=0.05))
    yield made
    made.close()


def read(client: BlockingClient, wanted: Range, *, fail: bool = True) -> list[Batch]:
    return list(read_range(client, wanted, fail_on_data_loss=fail, timeout=0.5))


def test_offsets_are_those_of_the_log_and_of_the_group(
    client: BlockingClient, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic, 2)
    kafka.produce_one(topic, b"a", partition=1, timestamp_ms=1000)
    kafka.produce_one(topic, b"b", partition=1, timestamp_ms=2000)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert client.partitions()[topic] == (0, 1)
    assert client.beginnings([first, second]) == {first: 0, second: 0}
    assert client.ends([first, second]) == {first: 0, second: 2}
    assert client.at_times({second: 1500, first: 0}) == {first: None, second: 1}
    client.commit("lag-tools", {second: 2})
    assert kafka.committed("lag-tools", topic, 1) == 2


def test_a_client_and_its_loop_are_kept_for_the_process(kafka: Kafka) -> None:
    config = ClientConfig(bootstrap_servers=kafka.servers)
    assert shared_client(config) is shared_client(ClientConfig(bootstrap_servers=kafka.servers))
    assert event_loop() is event_loop()


def test_no_broker_is_an_error_with_its_address() -> None:
    with pytest.raises(ConsumerError, match=r"127\.0\.0\.1:1"):
        BlockingClient(ClientConfig(bootstrap_servers="127.0.0.1:1")).partitions()


def test_a_range_is_read_exactly_however_batches_lie(
    client: BlockingClient, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic)
    kafka.produce(topic, [b"%d" % number for number in range(50)])
    batches = read(client, Range(topic, 0, 7, 41))
    assert batches[0].first == 7
    assert batches[-1].last == 41
    values = [value for batch in batches for value in batch.records["value"].to_pylist()]
    assert values == [b"%d" % number for number in range(7, 42)]


def test_deleted_records_of_a_range_are_an_error_or_are_passed(
    client: BlockingClient, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic)
    kafka.produce_to(topic, 0, [b"a", b"b", b"c"])
    kafka.delete_records(topic, 2)
    with pytest.raises(OffsetOutOfRange, match="offset 0 is gone; the broker has 2 to 2"):
        read(client, Range(topic, 0, 0, 2))
    (batch,) = read(client, Range(topic, 0, 0, 2), fail=False)
    assert batch.records["value"].to_pylist() == [b"c"]
    assert read(client, Range(topic, 0, 0, 1), fail=False) == []


def test_a_range_that_the_broker_does_not_deliver_ends_after_the_timeout(
    client: BlockingClient, kafka: Kafka, topic: str
) -> None:
    kafka.create(topic)
    kafka.produce_to(topic, 0, [b"a"])
    with pytest.raises(ConsumerError, match=r"nothing at offset 1 of .*\[0\.\.4\] in 0\.5 s"):
        read(client, Range(topic, 0, 0, 4))
    assert [batch.last for batch in read(client, Range(topic, 0, 0, 4), fail=False)] == [0]
