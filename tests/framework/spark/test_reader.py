"""Reading the range of a task, against a real broker and without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kmr.errors import ConsumerError, OffsetOutOfRange
from kmr.record import Range
from kmr.spark.reader import read_range

if TYPE_CHECKING:
    from kmr.record import Batch
    from kmr.spark.blocking_client import BlockingClient
    from tests.framework.spark.conftest import Kafka


def read(client: BlockingClient, wanted: Range, *, fail: bool = True) -> list[Batch]:
    return list(read_range(client, wanted, fail_on_data_loss=fail, timeout=0.5))


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
