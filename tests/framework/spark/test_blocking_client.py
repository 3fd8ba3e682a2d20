"""The blocking client, against a real broker and without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.errors import ConsumerError
from kmr.kafka.consumer import CommitOffset
from kmr.record import TopicPartition
from kmr.service.threads import background_loop
from kmr.spark.blocking_client import BlockingClient, shared_client
from kmr.spark.source_settings import ClientConfig

if TYPE_CHECKING:
    from tests.framework.spark.conftest import Kafka


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
    client.commit("lag-tools", {second: CommitOffset(2)})
    assert kafka.committed("lag-tools", topic, 1) == 2


def test_a_client_and_its_loop_are_kept_for_the_process(kafka: Kafka) -> None:
    config = ClientConfig(bootstrap_servers=kafka.servers)
    assert shared_client(config) is shared_client(ClientConfig(bootstrap_servers=kafka.servers))
    assert background_loop() is background_loop()


def test_no_broker_is_an_error_with_its_address() -> None:
    with pytest.raises(ConsumerError, match=r"127\.0\.0\.1:1"):
        BlockingClient(ClientConfig(bootstrap_servers="127.0.0.1:1")).partitions()
