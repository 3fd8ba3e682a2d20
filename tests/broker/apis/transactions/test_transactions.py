"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.authorization.rules import Operation, Rule, write_rules
from kmr.broker.log.producers import ProducerIdentity
from kmr.broker.storage.data_directory import ProducerIds
from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from pathlib import Path

Speak = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
Wire = Any  # the class is in conftest.py, which tests do not import

ADD_PARTITIONS_TO_TXN = 24
MINUTE = timedelta(minutes=1)
OK = ErrorCode.none


async def test_a_batch_for_a_partition_that_was_not_added_is_refused(wire: Wire) -> None:
    producer = await wire.begin()
    assert await wire.produce(producer, 0) is ErrorCode.invalid_txn_state
    await wire.add(producer, [1])
    assert await wire.produce(producer, 0, version=10) is ErrorCode.invalid_txn_state
    assert await wire.produce(producer, 0, version=11) is ErrorCode.transaction_abortable
    assert await wire.produce(producer, 0, partition=1) is OK
    stranger = ProducerIdentity(producer.producer_id + 1, 0)
    unmapped = ErrorCode.invalid_producer_id_mapping
    assert await wire.produce(stranger, 0, partition=1) is unmapped
    assert await wire.produce(producer, 1, partition=1, transactional_id="other") is unmapped
    nobody = ErrorCode.transactional_id_authorization_failed
    assert await wire.produce(producer, 1, partition=1, transactional_id=None) is nobody


async def test_a_batch_outside_the_transaction_of_its_producer_is_refused(wire: Wire) -> None:
    producer = await wire.begin()
    await wire.add(producer)
    await wire.produce(producer, 0)
    outside = await wire.produce(producer, 1, transactional=False)
    assert outside is ErrorCode.invalid_txn_state
    assert await wire.produce(producer, 1) is OK


async def test_no_record_can_be_added_to_a_transaction_that_ended(wire: Wire) -> None:
    producer = await wire.begin()
    await wire.add(producer)
    await wire.produce(producer, 0)
    await wire.end(producer, commit=True)
    assert await wire.produce(producer, 1) is ErrorCode.invalid_txn_state
    assert await wire.end(producer, commit=True) is OK, "asked again"
    assert await wire.end(producer, commit=False) is ErrorCode.invalid_txn_state


async def test_a_new_producer_fences_the_one_before_and_aborts_its_transaction(wire: Wire) -> None:
    zombie = await wire.begin()
    await wire.add(zombie)
    await wire.produce(zombie, 0)
    answer = await wire.init()
    assert answer.error_code is ErrorCode.concurrent_transactions, "until the other is aborted"
    producer = await wire.begin()
    assert producer == (zombie.producer_id, zombie.epoch + 2)

    assert await wire.produce(zombie, 1) is ErrorCode.invalid_producer_epoch
    assert (await wire.fetch(committed=True)).aborted == [(zombie.producer_id, 0)]
    for version in range(4):
        fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
        assert await wire.add(zombie, version=version) == {fenced}
        assert await wire.add_offsets(zombie, version=version) is fenced
        assert await wire.end(zombie, commit=True, version=version) is fenced
        offsets = await wire.commit_offsets(zombie, 1, version=version)
        assert offsets is ErrorCode.invalid_producer_epoch
    for version in (3, 4):
        answer = await wire.init(expected=zombie, version=version)
        assert answer.error_code is (
            ErrorCode.producer_fenced if version >= 4 else ErrorCode.invalid_producer_epoch
        )
    await wire.add(producer)
    assert await wire.produce(producer, 0) is OK


async def test_a_resumed_producer_gets_the_next_epoch_and_may_retry(wire: Wire) -> None:
    producer = await wire.begin()
    for _ in "12":
        answer = await wire.init(expected=producer)
        found = (answer.error_code, answer.producer_id, answer.producer_epoch)
        assert found == (OK, producer.producer_id, producer.epoch + 1)


@pytest.mark.parametrize("version", range(5))
async def test_a_transactional_id_and_its_timeout_are_checked(wire: Wire, version: int) -> None:
    async def refusal(transactional_id: str = "x", timeout: timedelta = MINUTE) -> ErrorCode:
        answer = await wire.init(transactional_id, version=version, timeout=timeout)
        return ErrorCode(answer.error_code)

    assert await refusal("") is ErrorCode.invalid_request
    assert await refusal(timeout=timedelta(0)) is ErrorCode.invalid_transaction_timeout
    too_long = timedelta(minutes=15, milliseconds=1)
    assert await refusal(timeout=too_long) is ErrorCode.invalid_transaction_timeout
    assert await refusal(timeout=timedelta(minutes=15)) is OK
    if version >= 3:
        half = await wire.init(expected=ProducerIdentity(5, -1), version=version)
        assert half.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added_all_or_none(wire: Wire, version: int) -> None:
    producer = await wire.begin()
    assert await wire.add(producer, [0, 9], version=version) == {
        ErrorCode.operation_not_attempted,
        ErrorCode.unknown_topic_or_partition,
    }
    assert await wire.produce(producer, 0) is ErrorCode.invalid_txn_state
    internal = await wire.add(producer, [0], topic="__consumer_offsets", version=version)
    assert internal == {ErrorCode.topic_authorization_failed}
    unknown = await wire.add(producer, [0], transactional_id="other", version=version)
    assert unknown == {ErrorCode.invalid_producer_id_mapping}
    nameless = await wire.add(producer, [0], transactional_id="", version=version)
    assert nameless == {ErrorCode.invalid_request}
    assert await wire.add(producer, [0, 2], version=version) == {OK}


@pytest.mark.parametrize("version", [4, 5])
async def test_a_broker_adds_and_verifies_the_partitions_of_several_transactions(
    wire: Wire, version: int
) -> None:
    producers = {name: await wire.begin(name) for name in ("x", "y")}

    async def ask(*, verify: bool, **partitions: list[int]) -> dict[str, list[ErrorCode]]:
        asked = [
            {
                "transactional_id": name,
                "producer_id": producers[name].producer_id,
                "producer_epoch": producers[name].epoch,
                "verify_only": verify,
                "topics": [{"name": "t", "partitions": indexes}],
            }
            for name, indexes in partitions.items()
        ]
        answer = await wire.client.call(ADD_PARTITIONS_TO_TXN, version, transactions=asked)
        assert answer.error_code is OK
        return {
            each.transactional_id: [
                found.partition_error_code
                for topic in each.topic_results
                for found in topic.results_by_partition
            ]
            for each in answer.results_by_transaction
        }

    unknown, skipped = ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted
    added = await ask(verify=False, x=[0, 1], y=[0, 9])
    assert added == {"x": [OK, OK], "y": [skipped, unknown]}
    foreign = ErrorCode.transaction_abortable
    assert await ask(verify=True, x=[1, 2], y=[0]) == {"x": [OK, foreign], "y": [foreign]}
    assert await wire.produce(producers["x"], 0) is OK
    assert await wire.produce(producers["x"], 0, partition=2) is ErrorCode.invalid_txn_state
    fenced = producers["x"] = producers["x"]._replace(epoch=7)
    refused = {"x": [ErrorCode.producer_fenced]}
    assert await ask(verify=True, x=[0]) == await ask(verify=False, x=[0]) == refused, fenced


async def test_only_a_broker_may_add_partitions_for_others(
    start: Start, speak: Speak, tmp_path: Path
) -> None:
    acls = tmp_path / "acls.json"
    write_rules(
        acls,
        [Rule(principal="User:ANONYMOUS", operations=(Operation.WRITE,), transactional_ids=("x",))],
    )
    wire = await speak(await start(acl_file=acls))
    answer = await wire.client.call(ADD_PARTITIONS_TO_TXN, 5, transactions=[])
    assert answer.error_code is ErrorCode.cluster_authorization_failed


@pytest.mark.parametrize("version", range(4))
async def test_offsets_apply_from_the_commit_of_their_transaction_on(
    wire: Wire, version: int
) -> None:
    producer = await wire.begin()
    assert await wire.commit_offsets(producer, 5) is ErrorCode.invalid_txn_state
    assert await wire.add_offsets(producer, version=version) is OK
    assert await wire.commit_offsets(producer, 5, version=version) is OK
    unknown = await wire.commit_offsets(producer, 5, version=version, topic="nope")
    assert unknown is ErrorCode.unknown_topic_or_partition
    for fetch_version in (7, 8):
        assert await wire.committed(version=fetch_version) == (OK, -1)
        unstable = await wire.committed(stable=True, version=fetch_version)
        assert unstable == (ErrorCode.unstable_offset_commit, -1)

    assert await wire.end(producer, commit=True, version=version) is OK
    for fetch_version in range(1, 9):
        assert await wire.committed(stable=True, version=fetch_version) == (OK, 5)

    await wire.add_offsets(producer)
    await wire.commit_offsets(producer, 9)
    assert await wire.end(producer, commit=False) is OK
    assert await wire.committed(stable=True) == (OK, 5)


async def test_offsets_of_a_member_that_left_its_group_are_refused(wire: Wire) -> None:
    producer = await wire.begin()
    await wire.add_offsets(producer)
    gone = await wire.commit_offsets(producer, 5, generation_id=1, member_id="gone")
    assert gone is ErrorCode.illegal_generation
    assert await wire.committed(stable=True) == (OK, -1)


@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_an_open_transaction_goes_on_after_a_restart(
    start: Start, speak: Speak, fsync: str
) -> None:
    first = await start(fsync=fsync)
    await first.topics.create("t")
    wire = await speak(first)
    producer = await wire.begin()
    await wire.add(producer)
    await wire.add_offsets(producer)
    await wire.produce(producer, 0)
    await wire.commit_offsets(producer, 5)
    await first.__aexit__(None, None, None)

    wire = await speak(await start(fsync=fsync))
    assert (await wire.fetch(committed=True)).batches == []
    assert await wire.committed(stable=True) == (ErrorCode.unstable_offset_commit, -1)
    assert await wire.produce(producer, 1) is OK
    assert await wire.end(producer, commit=True) is OK
    assert len((await wire.fetch(committed=True)).batches) == 3
    assert await wire.committed(stable=True) == (OK, 5)


async def test_transactions_of_a_deleted_topic_can_end(wire: Wire, broker: Broker) -> None:
    producer = await wire.begin()
    await broker.topics.create("u")
    await wire.add(producer)
    await wire.add(producer, topic="u")
    await wire.produce(producer, 0)
    await wire.produce(producer, 0, topic="u")
    await broker.topics.delete("u")
    assert await wire.end(producer, commit=True) is OK
    assert len((await wire.fetch(committed=True)).batches) == 2


async def test_a_topic_with_its_own_codec_and_clock_keeps_transactions_whole(
    wire: Wire, broker: Broker
) -> None:
    settings = {"compression.type": "gzip", "message.timestamp.type": "LogAppendTime"}
    await broker.topics.create("z", 1, settings)
    producer = await wire.begin()
    await wire.add(producer, topic="z")
    assert await wire.produce(producer, 0, topic="z") is OK
    partition = broker.topics.partition("z", 0)
    assert partition is not None
    assert partition.last_stable_offset == 0
    assert await wire.produce(producer, 0, topic="z") is OK, "sent again"
    assert await wire.end(producer, commit=False) is OK
    assert (partition.last_stable_offset, partition.high_watermark) == (2, 2)
    assert list(partition.log.producers.aborted) == [(producer.producer_id, 0, 1, 2)]


async def test_the_longest_timeout_is_a_setting(start: Start, speak: Speak) -> None:
    wire = await speak(await start(transaction_max_timeout=1.5))
    assert (await wire.init(timeout=timedelta(seconds=1.5))).error_code is OK
    longer = await wire.init(timeout=timedelta(seconds=1.501))
    assert longer.error_code is ErrorCode.invalid_transaction_timeout


Connect = Callable[[Broker], Awaitable[Any]]
INIT_PRODUCER_ID = 22


@pytest.mark.parametrize("version", range(5))
async def test_every_producer_gets_its_own_id(
    broker: Broker, connect: Connect, version: int
) -> None:
    client = await connect(broker)
    responses = [await client.call(INIT_PRODUCER_ID, version, transactional_id=None) for _ in "123"]
    assert {each.error_code for each in responses} == {ErrorCode.none}
    assert {each.producer_epoch for each in responses} == {0}
    assert len({each.producer_id for each in responses}) == 3


async def test_no_id_is_handed_out_when_it_cannot_be_reserved(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: ProducerIds) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(ProducerIds, "reserve", fail)
    client = await connect(broker)
    response = await client.call(INIT_PRODUCER_ID, 4, transactional_id=None)
    assert response.error_code is ErrorCode.kafka_storage_error


async def test_an_idempotent_producer_goes_on_after_a_restart_of_the_broker(
    start: Start,
) -> None:
    port = free_port()
    broker = await start(port=port)
    await broker.topics.create("t")
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True, retry_backoff_ms=10
    )
    await producer.start()
    offsets = [(await producer.send_and_wait("t", b"a", partition=0)).offset for _ in "123"]
    await broker.__aexit__(None, None, None)
    await start(port=port)
    offsets += [(await producer.send_and_wait("t", b"b", partition=0)).offset for _ in "123"]
    await producer.stop()
    assert offsets == list(range(6))
