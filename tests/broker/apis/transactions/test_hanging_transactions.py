"""Transactions are described, listed, and ended by an administrator."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from struct import pack
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker, BrokerSettings
from kmr.broker.authorization.rules import Operation, Rule, write_rules
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.producers import ProducerIdentity
from kmr.broker.log.results import LogFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.broker.apis.transactions.conftest import Wire

    Start = Callable[..., Awaitable[Broker]]
    Speak = Callable[[Broker], Awaitable[Wire]]

FIND_COORDINATOR, DESCRIBE_PRODUCERS, DESCRIBE, LIST = 10, 61, 65, 66
MINUTE = timedelta(minutes=1)
OK = ErrorCode.none


async def test_this_node_coordinates_every_transaction(wire: Wire, broker: Broker) -> None:
    answer = await wire.client.call(FIND_COORDINATOR, 3, key="x", key_type=1)
    assert (answer.error_code, answer.node_id) == (OK, 0)
    assert broker.bootstrap_servers == f"{answer.host}:{answer.port}"


async def test_open_transactions_are_described(wire: Wire) -> None:
    producer = await wire.begin()
    await wire.begin("idle")
    await wire.add(producer, [0, 1])
    await wire.produce(producer, 0)
    partitions = {"name": "t", "partition_indexes": [0, 9]}
    answer = await wire.client.call(DESCRIBE_PRODUCERS, 0, topics=[partitions])
    found, unknown = answer.topics[0].partitions
    (state,) = found.active_producers
    assert ProducerIdentity(state.producer_id, state.producer_epoch) == producer
    assert (state.last_sequence, state.current_txn_start_offset) == (0, 0)
    assert unknown.error_code is ErrorCode.unknown_topic_or_partition

    answer = await wire.client.call(DESCRIBE, 0, transactional_ids=["x", "nope"])
    ongoing, nothing = answer.transaction_states
    assert (ongoing.error_code, ongoing.transaction_state) == (OK, "Ongoing")
    assert ongoing.transaction_timeout == MINUTE
    assert [(topic.topic, topic.partitions) for topic in ongoing.topics] == [("t", (0, 1))]
    assert nothing.error_code is ErrorCode.transactional_id_not_found
    await wire.client.send(wire.client.message(DESCRIBE, 0, transactional_ids=["idle"]))
    frame = await wire.client.receive_frame()
    assert b"idle\x06Empty" + pack(">iq", 60_000, -1) in frame, "kio cannot read that time"

    async def listed(version: int, **filters: Any) -> dict[str, str]:
        answer = await wire.client.call(LIST, version, **filters)
        assert answer.error_code is OK
        return {each.transactional_id: each.transaction_state for each in answer.transaction_states}

    for version in (0, 1, 2):
        assert await listed(version) == {"x": "Ongoing", "idle": "Empty"}
        assert await listed(version, state_filters=["Ongoing"]) == {"x": "Ongoing"}
        mine = [producer.producer_id]
        assert await listed(version, producer_id_filters=mine) == {"x": "Ongoing"}
    assert await listed(1, duration_filter=3_600_000, state_filters=["Ongoing"]) == {}
    assert await listed(2, transactional_id_pattern="x|i.*") == {"x": "Ongoing", "idle": "Empty"}
    assert await listed(2, transactional_id_pattern="i") == {}, "the whole id"
    assert await listed(2, transactional_id_pattern="i.*", state_filters=["Ongoing"]) == {}
    assert set(await listed(2, transactional_id_pattern="")) == {"x", "idle"}
    answer = await wire.client.call(LIST, 2, transactional_id_pattern="(")
    assert answer.error_code is ErrorCode.invalid_regular_expression
    answer = await wire.client.call(LIST, 1, state_filters=["Odd"])
    assert (answer.unknown_state_filters, answer.transaction_states) == (("Odd",), ())


async def test_topics_that_a_client_may_not_describe_are_left_out(
    start: Start, speak: Speak, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    async with Broker(BrokerSettings(data_dir=data, port=0)) as free:
        wire = await speak(free)
        producer = await wire.begin()
        for topic in ("t", "hidden"):
            await free.topics.create(topic)
            assert await wire.add(producer, [0], topic=topic) == {OK}
        answer = await wire.client.call(DESCRIBE, 0, transactional_ids=["x"])
        assert {each.topic for each in answer.transaction_states[0].topics} == {"t", "hidden"}

    acls = tmp_path / "acls.json"
    describe = Rule(
        principal="User:ANONYMOUS",
        operations=(Operation.DESCRIBE,),
        topics=("t",),
        transactional_ids=("x",),
    )
    write_rules(acls, [describe])
    wire = await speak(await start(data_dir=data, acl_file=acls))
    answer = await wire.client.call(DESCRIBE, 0, transactional_ids=["x"])
    assert [each.topic for each in answer.transaction_states[0].topics] == ["t"]


WRITE_MARKERS, DESCRIBE_PRODUCERS = 27, 61


async def end(
    wire: Wire,
    producer: ProducerIdentity,
    *partitions: int,
    topic: str = "t",
    commit: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int | None = None,
) -> list[ErrorCode]:
    """The answers for the partitions."""
    marker: dict[str, Any] = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "transaction_result": commit,
        "coordinator_epoch": coordinator_epoch,
        "topics": [{"name": topic, "partition_indexes": list(partitions)}],
    }
    version = 1
    if transaction_version is not None:
        version, marker["transaction_version"] = 2, transaction_version
    answer = await wire.client.call(WRITE_MARKERS, version, markers=[marker])
    (marked,) = answer.markers
    assert marked.producer_id == producer.producer_id
    assert [each.partition_index for each in marked.topics[0].partitions] == list(partitions)
    return [ErrorCode(each.error_code) for each in marked.topics[0].partitions]


async def open_transaction(wire: Wire, *partitions: int) -> ProducerIdentity:
    producer = await wire.begin()
    assert await wire.add(producer, partitions) == {OK}
    for partition in partitions:
        assert await wire.produce(producer, 0, partition=partition) is OK
    return producer


async def test_an_aborted_transaction_no_longer_blocks_consumers(wire: Wire) -> None:
    producer = await open_transaction(wire, 0, 1)
    assert (await wire.fetch(committed=True)).batches == []
    assert await end(wire, producer, 0) == [OK]
    seen = await wire.fetch(committed=True)
    assert seen.aborted == [(producer.producer_id, 0)]
    assert seen.last_stable_offset == seen.high_watermark == 2
    assert await wire.end(producer, commit=True) is OK, "its coordinator knows it still"
    assert (await wire.fetch(committed=True)).last_stable_offset == 3


async def test_a_transaction_can_be_committed_too(wire: Wire) -> None:
    producer = await open_transaction(wire, 0)
    assert await end(wire, producer, 0, commit=True) == [OK]
    seen = await wire.fetch(committed=True)
    assert (seen.aborted, seen.last_stable_offset) == ([], 2)


async def test_a_long_poll_for_committed_records_ends(
    wire: Wire, speak: Callable[[Broker], Awaitable[Wire]], broker: Broker, until: Any
) -> None:
    producer = await open_transaction(wire, 0)
    partition = broker.topics.partition("t", 0)
    assert partition is not None
    consumer = await speak(broker)
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    polling = asyncio.create_task(
        consumer.client.call(
            1,
            11,
            max_wait=timedelta(minutes=1),
            min_bytes=1,
            max_bytes=10_000,
            isolation_level=1,
            topics=[{"topic": "t", "partitions": [wanted]}],
        )
    )
    await until(lambda: bool(partition.watches))
    assert await end(wire, producer, 0) == [OK]
    answer = await polling
    assert answer.responses[0].partitions[0].last_stable_offset == 2


async def test_a_marker_of_an_old_producer_or_of_an_old_coordinator_is_refused(wire: Wire) -> None:
    producer = await open_transaction(wire, 0)
    newer = producer._replace(epoch=producer.epoch + 1)
    assert await end(wire, newer, 0, coordinator_epoch=3) == [OK]
    assert await end(wire, producer, 0, coordinator_epoch=3) == [ErrorCode.invalid_producer_epoch]
    fenced = [ErrorCode.transaction_coordinator_fenced]
    assert await end(wire, newer, 0, coordinator_epoch=2) == fenced
    assert await end(wire, newer, 0, coordinator_epoch=3) == [OK], "again does no harm"
    described = await wire.client.call(
        DESCRIBE_PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0]}]
    )
    (state,) = described.topics[0].partitions[0].active_producers
    assert (state.producer_epoch, state.coordinator_epoch) == (newer.epoch, 3)
    assert state.current_txn_start_offset == -1


@pytest.mark.parametrize("topic", ["t", "__consumer_offsets"])
async def test_a_late_marker_does_not_end_a_later_transaction_if_ends_raise_the_epoch(
    wire: Wire, topic: str
) -> None:
    producer = await open_transaction(wire, 0)
    assert await wire.add_offsets(producer) is OK
    assert await wire.commit_offsets(producer, 7) is OK
    late = [ErrorCode.invalid_producer_epoch]
    assert await end(wire, producer, 0, topic=topic, transaction_version=2) == late
    assert (await wire.fetch(committed=True)).batches == []
    assert await wire.committed(stable=True) == (ErrorCode.unstable_offset_commit, -1)
    after = producer._replace(epoch=producer.epoch + 1)
    for _ in ("first", "again"):
        assert await end(wire, after, 0, topic=topic, transaction_version=2) == [OK]
    if topic == "t":
        assert (await wire.fetch(committed=True)).aborted == [(producer.producer_id, 0)]
    else:
        assert await wire.committed(stable=True) == (OK, -1)


async def test_the_coordinator_ends_its_transactions_after_a_marker_of_any_epoch(
    wire: Wire,
) -> None:
    producer = await open_transaction(wire, 0)
    assert await end(wire, producer, 1, coordinator_epoch=99) == [OK], "nothing is open there"
    assert await wire.produce(producer, 1) is OK
    assert await wire.end(producer, commit=True) is OK
    seen = await wire.fetch(committed=True)
    assert seen.last_stable_offset == seen.high_watermark == 3


async def test_each_partition_has_its_own_result(wire: Wire) -> None:
    producer = await open_transaction(wire, 0)
    unknown = ErrorCode.unknown_topic_or_partition
    assert await end(wire, producer, 7, 0) == [unknown, OK]
    assert await end(wire, producer, 0, topic="none") == [unknown]
    assert await end(wire, producer, 0, topic="__transaction_state") == [unknown]


async def test_offsets_of_a_hanging_transaction_are_settled(wire: Wire) -> None:
    producer = await wire.begin()
    assert await wire.add_offsets(producer) is OK
    assert await wire.commit_offsets(producer, 7) is OK
    assert await wire.committed() == (OK, -1)
    assert await end(wire, producer, 0, topic="__consumer_offsets", commit=True) == [OK]
    assert await wire.committed(stable=True) == (OK, 7)


async def test_a_transaction_ended_by_a_marker_stays_ended_after_a_restart(
    start: Callable[..., Awaitable[Broker]],
    speak: Callable[[Broker], Awaitable[Wire]],
) -> None:
    broker = await start()
    await broker.topics.create("t", 1)
    wire = await speak(broker)
    producer = await open_transaction(wire, 0)
    assert await end(wire, producer, 0, coordinator_epoch=5) == [OK]
    log = broker.topics.partition("t", 0)
    assert log is not None
    directory = log.log.directory
    log.log.close()
    reopened = PartitionLog.open(directory, log.log.config, clean=True)
    assert reopened.last_stable_offset == reopened.next_offset == 2
    (state,) = reopened.producers.describe()
    assert state.coordinator_epoch == 5
    reopened.close()


async def test_a_failing_disk_is_an_error_of_the_partition(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await open_transaction(wire, 0)

    def fail(_: PartitionLog) -> None:
        raise LogFailed("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "flush_pending", fail)
        assert await end(wire, producer, 0) == [ErrorCode.kafka_storage_error]
