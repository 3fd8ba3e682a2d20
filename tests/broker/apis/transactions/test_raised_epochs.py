"""Transaction version 2 (KIP-890): requests add what they write, and each end raises the producer's epoch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.apis.records import produce
from kmr.broker.authorization.rules import Operation, Rule, write_rules
from kmr.broker.coordinators.state_log import StateLog
from kmr.broker.log.results import LogFailed

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.broker.log.producers import ProducerIdentity

Speak = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
Wire = Any  # the class is in conftest.py, which tests do not import

API_VERSIONS = 18
OK = ErrorCode.none
NEWEST = 12
"""Produce with names of topics; 13 has their ids."""


def next_epoch(producer: ProducerIdentity) -> ProducerIdentity:
    return producer._replace(epoch=producer.epoch + 1)


async def test_the_feature_that_clients_look_for_is_offered(wire: Wire) -> None:
    answer = await wire.client.call(API_VERSIONS, 4)
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    supported = {each.name: each.max_version for each in answer.supported_features}
    assert finalized == supported == {"group.version": 1, "transaction.version": 2}


@pytest.mark.parametrize("few", [500, 1])
async def test_records_add_their_partition_and_the_end_raises_the_epoch(
    wire: Wire, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "_FEW_ELEMENTS", few)  # larger requests are written in turns
    first = await wire.begin()
    for sequence in (0, 1):
        assert await wire.produce(first, sequence, version=NEWEST) is OK
    assert (await wire.fetch(committed=True)).batches == []
    second = next_epoch(first)
    for _ in ("end", "again"):
        assert await wire.end_and_raise(first, commit=True) == (OK, second)
    assert len((await wire.fetch(committed=True)).batches) == 3

    late = await wire.produce(first, 2, version=NEWEST)
    assert late is ErrorCode.invalid_producer_epoch
    assert await wire.produce(second, 0, version=NEWEST) is OK
    old = await wire.end_and_raise(first, commit=True)
    assert old == (ErrorCode.producer_fenced, (-1, -1))
    assert await wire.end_and_raise(second, commit=False) == (OK, next_epoch(second))
    seen = await wire.fetch(committed=True)
    assert seen.aborted == [(first.producer_id, 3)]
    assert seen.last_stable_offset == seen.high_watermark == 5


async def test_older_requests_do_not_add_their_partition(wire: Wire) -> None:
    producer = await wire.begin()
    abortable = ErrorCode.transaction_abortable
    assert await wire.produce(producer, 0, version=11) is abortable
    assert await wire.commit_offsets(producer, 5, version=4) is abortable
    assert await wire.produce(producer, 0, version=NEWEST) is OK
    assert await wire.produce(producer, 1, version=11) is OK


async def test_committed_offsets_add_themselves(wire: Wire) -> None:
    producer = await wire.begin()
    assert await wire.commit_offsets(producer, 5, version=5) is OK
    assert await wire.committed(stable=True) == (ErrorCode.unstable_offset_commit, -1)
    code, after = await wire.end_and_raise(producer, commit=True)
    assert (code, after) == (OK, next_epoch(producer))
    assert await wire.committed(stable=True) == (OK, 5)
    late = await wire.commit_offsets(producer, 4, version=5)
    assert late is ErrorCode.invalid_producer_epoch
    assert await wire.commit_offsets(after, 9, version=5) is OK
    assert (await wire.end_and_raise(after, commit=False))[0] is OK
    assert await wire.committed(stable=True) == (OK, 5)


async def test_an_abort_without_records_raises_the_epoch(wire: Wire) -> None:
    producer = await wire.begin()
    nothing = await wire.end_and_raise(producer, commit=True)
    assert nothing == (ErrorCode.invalid_txn_state, (-1, -1))
    after = next_epoch(producer)
    for _ in ("abort", "again"):
        assert await wire.end_and_raise(producer, commit=False) == (OK, after)
    assert await wire.end_and_raise(after, commit=False) == (OK, next_epoch(after))


async def test_the_first_records_of_a_transaction_have_the_first_sequence(wire: Wire) -> None:
    producer = await wire.begin()
    missing = await wire.produce(producer, 3, version=NEWEST)
    assert missing is ErrorCode.out_of_order_sequence_number
    assert await wire.produce(producer, 0, version=NEWEST) is OK
    assert await wire.produce(producer, 0, version=NEWEST) is OK, "sent again"
    assert (await wire.fetch(committed=False)).high_watermark == 1


async def test_a_topic_that_the_client_may_not_write_to_is_not_added(
    start: Start, speak: Speak, tmp_path: Path
) -> None:
    acls = tmp_path / "acls.json"
    me: dict[str, Any] = {"principal": "User:ANONYMOUS"}
    write = Rule(**me, operations=(Operation.WRITE,), topics=("t",), transactional_ids=("x",))
    describe = Rule(**me, operations=(Operation.DESCRIBE,), topics=("*",))
    write_rules(acls, [write, describe])
    broker = await start(acl_file=acls)
    for topic in ("t", "secret"):
        await broker.topics.create(topic)
    wire = await speak(broker)
    producer = await wire.begin()
    refused = await wire.produce(producer, 0, version=NEWEST, topic="secret")
    assert refused is ErrorCode.topic_authorization_failed
    assert await wire.produce(producer, 0, version=NEWEST) is OK
    await wire.end_and_raise(producer, commit=True)
    ends = {each.topic: each.high_watermark for each in broker.topics.partitions}
    assert ends == {"t": 2, "secret": 0}, "the marker is where the records are"


@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_a_transaction_of_a_raised_epoch_goes_on_after_a_restart(
    start: Start, speak: Speak, fsync: str
) -> None:
    broker = await start(fsync=fsync)
    await broker.topics.create("t")
    wire = await speak(broker)
    first = await wire.begin()
    await wire.produce(first, 0, version=NEWEST)
    _, second = await wire.end_and_raise(first, commit=True)
    await wire.produce(second, 0, version=NEWEST)
    await wire.commit_offsets(second, 5, version=5)
    await broker.__aexit__(None, None, None)

    wire = await speak(await start(fsync=fsync))
    assert len((await wire.fetch(committed=True)).batches) == 2
    assert await wire.produce(second, 1, version=NEWEST) is OK
    third = next_epoch(second)
    assert await wire.end_and_raise(second, commit=True) == (OK, third)
    assert len((await wire.fetch(committed=True)).batches) == 5
    assert await wire.committed(stable=True) == (OK, 5)
    assert await wire.produce(first, 1, version=NEWEST) is ErrorCode.invalid_producer_epoch


async def test_nothing_is_written_to_a_partition_before_it_is_stored_as_part_of_the_transaction(
    wire: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await wire.begin()
    partition = broker.topics.partition("t", 0)
    assert partition is not None

    async def fail(*_: object) -> None:
        assert partition.log.next_offset == 0, "the records come after"
        raise LogFailed("the disk failed to sync")

    with monkeypatch.context() as patch:
        patch.setattr(StateLog, "until_durable", fail)
        assert await wire.produce(producer, 0, version=NEWEST) is ErrorCode.not_enough_replicas
        refused = await wire.commit_offsets(producer, 5, version=5)
        assert refused is ErrorCode.coordinator_not_available
    assert partition.log.next_offset == 0
    assert await wire.produce(producer, 0, version=NEWEST) is OK
    assert await wire.end_and_raise(producer, commit=True) == (OK, next_epoch(producer))
