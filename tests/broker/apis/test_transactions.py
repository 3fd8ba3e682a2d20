"""Transactions over a socket, in every version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from struct import pack
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker
from broker.producers import ProducerIdentity
from broker.records import NewRecord, build_batch, parse_header

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]

PRODUCE, FETCH, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 0, 1, 2, 8, 9, 10
INIT, ADD_PARTITIONS, ADD_OFFSETS, END, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
DESCRIBE_PRODUCERS, DESCRIBE, LIST = 61, 65, 66
MINUTE = timedelta(minutes=1)
OK = ErrorCode.none


class Fetched(NamedTuple):
    """What a consumer sees of a partition; `batches` are (base offset, producer id, is control)."""

    batches: list[tuple[int, int, bool]]
    aborted: list[tuple[int, int]] | None
    last_stable_offset: int
    high_watermark: int


class Wire:
    """A client that speaks of one transactional id; versions are the newest unless given."""

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
        """A producer; whoever had the id is fenced."""
        async with asyncio.timeout(30):
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
async def wire(broker: Broker, connect: Connect) -> Wire:
    return Wire(await connect(broker))


async def test_a_committed_transaction_is_read_by_everybody_and_its_marker_takes_an_offset(
    wire: Wire,
) -> None:
    producer = await wire.begin()
    assert await wire.add(producer, [0, 1]) == {OK}
    assert await wire.produce(producer, 0) is OK
    assert await wire.produce(producer, 1) is OK
    pid = producer.producer_id

    before = await wire.fetch(committed=True)
    assert before == Fetched([], [], last_stable_offset=0, high_watermark=2)
    assert await wire.latest(committed=True) == 0
    assert await wire.latest(committed=False) == 2
    assert (await wire.fetch(committed=False)).batches == [(0, pid, False), (1, pid, False)]

    assert await wire.end(producer, commit=True) is OK

    everything = [(0, pid, False), (1, pid, False), (2, pid, True)]
    assert await wire.fetch(committed=True) == Fetched(everything, [], 3, 3)
    assert await wire.fetch(committed=False) == Fetched(everything, None, 3, 3)
    assert await wire.latest(committed=True) == 3


@pytest.mark.parametrize("version", range(4, 13))
async def test_an_aborted_transaction_is_named_to_who_reads_committed_records(
    wire: Wire, version: int
) -> None:
    producer = await wire.begin()
    pid = producer.producer_id
    for number, commit in enumerate([True, False, True]):
        await wire.add(producer)
        assert await wire.produce(producer, number) is OK
        assert await wire.end(producer, commit=commit) is OK
    found = await wire.fetch(committed=True, version=version)
    assert found.aborted == [(pid, 2)]
    assert [offset for offset, _, control in found.batches if control] == [1, 3, 5]
    assert len(found.batches) == 6
    assert (await wire.fetch(4, committed=True, version=version)).aborted == []
    assert (await wire.fetch(3, committed=True, version=version)).aborted == [(pid, 2)]
    assert (await wire.fetch(committed=False, version=version)).aborted is None


@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.parametrize("max_bytes", [1, 100, 800, 1_500, 100_000])
async def test_however_little_a_consumer_asks_for_it_learns_of_all_that_was_aborted(
    wire: Wire, version: int, max_bytes: int
) -> None:
    names = [f"p{number}" for number in range(40)]
    producers = [await wire.begin(name) for name in names]
    for name, producer in zip(names, producers, strict=True):
        await wire.add(producer, transactional_id=name)
        assert await wire.produce(producer, 0, transactional_id=name) is OK
    for name, producer in zip(names, producers, strict=True):
        assert await wire.end(producer, commit=False, transactional_id=name) is OK
    at, batches = 0, []
    while at < 80:
        found = await wire.fetch(at, committed=True, version=version, max_bytes=max_bytes)
        assert found.batches, "a whole first batch comes whatever the limits are"
        assert found.aborted is not None
        first, last = found.batches[0][0], found.batches[-1][0]
        met = {(pid, at) for at, (pid, _) in enumerate(producers) if first - 40 <= at <= last}
        assert met <= set(found.aborted)
        batches += found.batches
        at = last + 1
    assert [offset for offset, _, _ in batches] == list(range(80))


async def test_committed_records_behind_an_open_transaction_wait_for_it(wire: Wire) -> None:
    first, second = await wire.begin("x"), await wire.begin("y")
    await wire.add(first)
    await wire.add(second, transactional_id="y")
    await wire.produce(first, 0)
    await wire.produce(second, 0, transactional_id="y")
    assert await wire.end(second, commit=True, transactional_id="y") is OK
    assert (await wire.fetch(committed=True)).batches == []
    assert await wire.end(first, commit=False) is OK
    found = await wire.fetch(committed=True)
    assert len(found.batches) == 4
    assert found.aborted == [(first.producer_id, 0)]


async def test_a_long_poll_for_committed_records_ends_with_the_marker(
    wire: Wire, broker: Broker, connect: Connect
) -> None:
    producer = await wire.begin()
    await wire.add(producer)
    await wire.produce(producer, 0)
    reader = await connect(broker)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
    request = reader.message(
        FETCH,
        11,
        max_wait=timedelta(minutes=5),
        min_bytes=100,  # more than a marker has
        max_bytes=2**20,
        isolation_level=1,
        topics=[{"topic": "t", "partitions": [partition]}],
    )
    correlation_id = await reader.send(request)
    assert await wire.end(producer, commit=True) is OK
    async with asyncio.timeout(60):
        answer = await reader.receive(request, correlation_id)
    assert answer.responses[0].partitions[0].last_stable_offset == 2


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


async def test_after_the_end_nothing_more_can_be_written_into_the_transaction(wire: Wire) -> None:
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


async def test_a_producer_that_goes_on_gets_the_next_epoch_and_may_ask_twice(wire: Wire) -> None:
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


@pytest.mark.parametrize("version", range(4))
async def test_offsets_count_from_the_commit_of_their_transaction_on(
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


async def test_this_node_coordinates_every_transaction(wire: Wire, broker: Broker) -> None:
    answer = await wire.client.call(FIND_COORDINATOR, 3, key="x", key_type=1)
    assert (answer.error_code, answer.node_id) == (OK, 0)
    assert broker.bootstrap_servers == f"{answer.host}:{answer.port}"


async def test_what_is_open_is_described(wire: Wire) -> None:
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

    for version in (0, 1):
        assert await listed(version) == {"x": "Ongoing", "idle": "Empty"}
        assert await listed(version, state_filters=["Ongoing"]) == {"x": "Ongoing"}
        mine = [producer.producer_id]
        assert await listed(version, producer_id_filters=mine) == {"x": "Ongoing"}
    assert await listed(1, duration_filter=3_600_000, state_filters=["Ongoing"]) == {}
    answer = await wire.client.call(LIST, 1, state_filters=["Odd"])
    assert (answer.unknown_state_filters, answer.transaction_states) == (("Odd",), ())


@pytest.mark.parametrize("fsync", ["interval", "always"])
async def test_an_open_transaction_goes_on_after_a_restart(
    start: Start, connect: Connect, fsync: str
) -> None:
    first = await start(fsync=fsync)
    await first.topics.create("t")
    wire = Wire(await connect(first))
    producer = await wire.begin()
    await wire.add(producer)
    await wire.add_offsets(producer)
    await wire.produce(producer, 0)
    await wire.commit_offsets(producer, 5)
    await first.__aexit__(None, None, None)

    wire = Wire(await connect(await start(fsync=fsync)))
    assert (await wire.fetch(committed=True)).batches == []
    assert await wire.committed(stable=True) == (ErrorCode.unstable_offset_commit, -1)
    assert await wire.produce(producer, 1) is OK
    assert await wire.end(producer, commit=True) is OK
    assert len((await wire.fetch(committed=True)).batches) == 3
    assert await wire.committed(stable=True) == (OK, 5)


async def test_a_topic_that_is_deleted_does_not_keep_its_transactions_from_ending(
    wire: Wire, broker: Broker
) -> None:
    producer = await wire.begin()
    await broker.topics.create("u")
    await wire.add(producer)
    await wire.add(producer, topic="u")
    await wire.produce(producer, 0)
    await wire.produce(producer, 0, topic="u")
    await broker.topics.delete("u")
    assert await wire.end(producer, commit=True) is OK
    assert len((await wire.fetch(committed=True)).batches) == 2
