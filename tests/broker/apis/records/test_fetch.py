import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import Broker
from kmr.broker.log.disk_work import do_now
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import read_records, split_batches
from kmr.broker.log.results import LogCorrupt

Batch = Callable[..., bytes]
Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]

FETCH, PRODUCE, DELETE_RECORDS = 1, 0, 21
MIB = 2**20


def request(
    client: Any,
    *offsets: int,
    version: int = 11,
    wait: float = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 * MIB,
    partition_max_bytes: int = MIB,
    topic: str = "t",
    partitions: Sequence[dict[str, Any]] | None = None,
    **fields: Any,
) -> Any:
    """A fetch from partition n of topic `t` for the n-th offset."""
    wanted = partitions or [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes}
        for index, offset in enumerate(offsets)
    ]
    topics = [{"topic": topic, "partitions": list(wanted)}]
    return client.message(
        FETCH,
        version,
        max_wait=timedelta(seconds=wait),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=topics,
        **fields,
    )


def values(records: bytes) -> list[bytes | None]:
    """Values of all batches; fails unless there are whole batches only."""
    if not records:
        return []
    return [
        record.value
        for header in split_batches(bytearray(records))
        for record in read_records(records, header)
    ]


async def produce(client: Any, *batches: bytes, partition: int = 0, topic: str = "t") -> None:
    for data in batches:
        part = {"index": partition, "records": data}
        topics = [{"name": topic, "partition_data": [part]}]
        response = await client.call(PRODUCE, 8, acks=-1, topic_data=topics)
        assert response.responses[0].partition_responses[0].error_code is ErrorCode.none


def parts(response: Any) -> Any:
    return response.responses[0].partitions


@pytest.fixture
async def client(broker: Broker, connect: Connect) -> Any:
    await broker.topics.create("t", 3)
    return await connect(broker)


@pytest.mark.parametrize("version", range(4, 13))
async def test_records_are_fetched_in_every_version(
    client: Any, batch: Batch, version: int
) -> None:
    await produce(client, batch(b"a", b"b"), batch(b"c"))
    await produce(client, batch(b"d"), partition=1)
    response = await client.ask(request(client, 0, 0, 0, version=version))
    assert [values(each.records) for each in parts(response)] == [[b"a", b"b", b"c"], [b"d"], []]
    assert [each.high_watermark for each in parts(response)] == [3, 1, 0]
    assert [each.last_stable_offset for each in parts(response)] == [3, 1, 0]
    assert [each.aborted_transactions for each in parts(response)] == [None] * 3
    if version >= 5:
        assert [each.log_start_offset for each in parts(response)] == [0, 0, 0]
    if version >= 7:
        assert (response.error_code, response.session_id) == (ErrorCode.none, 0)


async def test_a_fetch_begins_with_the_batch_that_holds_the_offset(
    client: Any, batch: Batch
) -> None:
    await produce(client, batch(b"a", b"b"), batch(b"c", b"d"), batch(b"e"))
    response = await client.ask(request(client, 3))
    assert values(parts(response)[0].records) == [b"c", b"d", b"e"]


async def test_at_the_end_there_are_no_records_but_not_null(client: Any, batch: Batch) -> None:
    await produce(client, batch(b"a"))
    response = await client.ask(request(client, 1))
    assert parts(response)[0].records == b""
    assert parts(response)[0].error_code is ErrorCode.none


@pytest.mark.parametrize("offset", [-1, 0, 4, 2**62])
async def test_an_offset_outside_of_the_log_is_out_of_range(
    client: Any, broker: Broker, batch: Batch, offset: int
) -> None:
    await produce(client, batch(b"a"), batch(b"b"), batch(b"c"))
    do_now(broker.topics.partitions[0].log.truncation(1))
    response = await client.ask(request(client, offset, wait=600))
    assert parts(response)[0].error_code is ErrorCode.offset_out_of_range
    assert parts(response)[0].records == b""


async def test_the_first_batch_comes_whole_even_beyond_the_limits(
    client: Any, batch: Batch
) -> None:
    large = batch(b"x" * 500_000)
    await produce(client, large, batch(b"b"))
    await produce(client, batch(b"c"), partition=1)
    no_limits: list[dict[str, Any]] = [
        {"max_bytes": 1},
        {"partition_max_bytes": 1},
        {"partition_max_bytes": 0},
    ]
    for limits in no_limits:
        response = await client.ask(request(client, 0, 0, **limits))
        assert len(parts(response)[0].records) == len(large)
        assert parts(response)[1].records == b""


async def test_the_first_batch_may_be_larger_than_the_brokers_limit(
    start: Start, connect: Connect, batch: Batch
) -> None:
    broker = await start(fetch_max_bytes=10_000)
    await broker.topics.create("t")
    client = await connect(broker)
    await produce(client, batch(b"x" * 500_000), batch(b"y"))
    response = await client.ask(request(client, 0))
    assert values(parts(response)[0].records) == [b"x" * 500_000]


async def test_limits_hold_for_each_partition_and_for_all_together(
    client: Any, batch: Batch
) -> None:
    one = batch(b"x" * 1000)
    for partition in range(3):
        await produce(client, *[one] * 10, partition=partition)

    async def batches(**limits: Any) -> list[float]:
        response = await client.ask(request(client, 0, 0, 0, **limits))
        return [len(each.records) / len(one) for each in parts(response)]

    size = len(one)
    assert await batches() == [10, 10, 10]
    assert await batches(partition_max_bytes=3 * size) == [3, 3, 3]
    assert await batches(partition_max_bytes=3 * size + 50) == [3, 3, 3]
    assert await batches(max_bytes=12 * size) == [10, 2, 0]
    assert await batches(max_bytes=12 * size, partition_max_bytes=5 * size) == [5, 5, 2]


async def test_a_long_poll_ends_when_records_arrive(
    client: Any, broker: Broker, connect: Connect, batch: Batch, until: Until
) -> None:
    partition = broker.topics.partitions[1]
    poll = request(client, 0, 0, wait=600)
    correlation_id = await client.send(poll)
    await until(lambda: bool(partition.watches))
    await produce(await connect(broker), batch(b"news"), partition=1)
    response = await client.receive(poll, correlation_id)
    assert [values(each.records) for each in parts(response)] == [[], [b"news"]]
    assert not partition.watches


async def test_a_long_poll_ends_empty_when_its_time_is_up(client: Any, broker: Broker) -> None:
    response = await client.ask(request(client, 0, wait=0.02))
    assert parts(response)[0].records == b""
    assert not broker.topics.partitions[0].watches


async def test_a_long_poll_waits_for_min_bytes(
    client: Any, broker: Broker, connect: Connect, batch: Batch, until: Until
) -> None:
    other = await connect(broker)
    partition = broker.topics.partitions[0]
    one = batch(b"x" * 100)
    await produce(other, one)
    poll = request(client, 0, 0, wait=600, min_bytes=3 * len(one))
    correlation_id = await client.send(poll)
    await until(lambda: bool(partition.watches))
    await produce(other, one)
    await produce(other, one, partition=1)
    response = await client.receive(poll, correlation_id)
    assert [len(each.records) for each in parts(response)] == [2 * len(one), len(one)]


async def test_the_available_records_are_returned_after_max_wait(client: Any, batch: Batch) -> None:
    await produce(client, batch(b"a"))
    response = await client.ask(request(client, 0, wait=0.02, min_bytes=10_000))
    assert values(parts(response)[0].records) == [b"a"]


async def test_a_fetch_does_not_wait_for_more_than_its_limits_allow(
    client: Any, batch: Batch
) -> None:
    one = batch(b"x" * 100)
    await produce(client, *[one] * 3)
    limit = 2 * len(one) + 50
    response = await client.ask(
        request(client, 0, wait=600, min_bytes=limit, partition_max_bytes=limit)
    )
    assert len(parts(response)[0].records) == 2 * len(one)


async def test_a_fetch_without_a_minimum_does_not_wait(client: Any) -> None:
    response = await client.ask(request(client, 0, wait=600, min_bytes=0))
    assert parts(response)[0].records == b""


@pytest.mark.parametrize("topic", ["unknown", "t"])
async def test_missing_topics_and_partitions_are_reported_at_once(client: Any, topic: str) -> None:
    wanted = {"partition": 9, "fetch_offset": 0, "partition_max_bytes": 1000}
    response = await client.ask(request(client, topic=topic, partitions=[wanted], wait=600))
    assert parts(response)[0].error_code is ErrorCode.unknown_topic_or_partition


async def test_a_fetch_without_partitions_is_answered_at_once(client: Any) -> None:
    message = client.message(FETCH, 11, max_wait=timedelta(seconds=600), min_bytes=1, topics=[])
    assert (await client.ask(message)).responses == ()


async def test_an_unknown_leader_epoch_is_refused(client: Any) -> None:
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    for epoch, code in ((0, ErrorCode.none), (1, ErrorCode.unknown_leader_epoch)):
        partitions = [{**wanted, "current_leader_epoch": epoch}]
        response = await client.ask(request(client, partitions=partitions))
        assert parts(response)[0].error_code is code


async def test_committed_records_come_with_an_empty_list_of_aborted_transactions(
    client: Any, batch: Batch
) -> None:
    await produce(client, batch(b"a"))
    response = await client.ask(request(client, 0, isolation_level=1))
    assert parts(response)[0].aborted_transactions == ()
    assert values(parts(response)[0].records) == [b"a"]


async def test_nothing_is_read_beyond_the_high_watermark(
    client: Any, broker: Broker, batch: Batch
) -> None:
    await produce(client, batch(b"a"), batch(b"b", b"c"), batch(b"d"))
    partition = broker.topics.partitions[0]
    for high_watermark, expected in ((1, [b"a"]), (3, [b"a", b"b", b"c"])):
        partition.high_watermark = high_watermark
        response = await client.ask(request(client, 0))
        assert values(parts(response)[0].records) == expected
        assert parts(response)[0].high_watermark == high_watermark


async def test_with_sync_consumers_see_only_what_is_on_disk(
    start: Start, connect: Connect, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(fsync="always")
    await broker.topics.create("t")
    client, other = await connect(broker), await connect(broker)
    await produce(client, batch(b"a"))
    disk = asyncio.Event()
    loop = asyncio.get_running_loop()
    works = PartitionLog.fsync

    def wait_and_sync(log: PartitionLog) -> int:
        asyncio.run_coroutine_threadsafe(disk.wait(), loop).result()
        return works(log)

    monkeypatch.setattr(PartitionLog, "fsync", wait_and_sync)
    producing = asyncio.create_task(produce(client, batch(b"b")))
    while broker.topics.partitions[0].log.next_offset < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    response = await other.ask(request(other, 0))
    assert values(parts(response)[0].records) == [b"a"]
    polling = asyncio.create_task(other.ask(request(other, 1, wait=600)))
    disk.set()
    await producing
    assert values(parts(await polling)[0].records) == [b"b"]


async def test_damaged_records_are_a_storage_error_that_is_logged_once(
    client: Any,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await produce(client, batch(b"a"))
    await produce(client, batch(b"b"), partition=1)
    works = PartitionLog.read_into

    def fail_on_first(log: PartitionLog, *arguments: Any) -> Any:
        if log.directory.name == "0":
            raise LogCorrupt(log.directory, 0, "a bit flipped")
        return works(log, *arguments)

    monkeypatch.setattr(PartitionLog, "read_into", fail_on_first)
    for _ in "123":
        response = await client.ask(request(client, 0, 0))
        assert parts(response)[0].error_code is ErrorCode.kafka_storage_error
        assert values(parts(response)[1].records) == [b"b"]
    assert capsys.readouterr().out.count("a bit flipped") == 1


async def test_fetches_take_turns_when_response_memory_is_short(
    start: Start, connect: Connect, batch: Batch
) -> None:
    broker = await start(fetch_max_bytes=MIB, response_memory_bytes=MIB)
    await broker.topics.create("t")
    clients = [await connect(broker) for _ in range(20)]
    await produce(clients[0], batch(b"x" * 900_000))
    responses = await asyncio.gather(*(each.ask(request(each, 0)) for each in clients))
    assert {len(parts(each)[0].records) for each in responses} == {len(batch(b"x" * 900_000))}


async def test_a_recreated_topic_does_not_show_its_former_records(
    client: Any, broker: Broker, batch: Batch
) -> None:
    await produce(client, batch(b"old"))
    await broker.topics.delete("t")
    await broker.topics.create("t")
    await produce(client, batch(b"new"))
    response = await client.ask(request(client, 0))
    assert values(parts(response)[0].records) == [b"new"]


@pytest.mark.parametrize("version", [4, 11])
async def test_a_fetch_that_found_nothing_is_answered_anew_when_there_is_news(
    client: Any, broker: Broker, connect: Connect, batch: Batch, until: Until, version: int
) -> None:
    topic = await broker.topics.create("many", 12)
    poll = request(client, *[0] * 12, version=version, wait=0.01, topic="many")
    first = await client.ask(poll)
    assert [part.records for part in parts(first)] == [b""] * 12
    assert await client.ask(poll) == first
    assert await client.ask(poll) == first

    long = request(client, *[0] * 12, version=version, wait=600, topic="many")
    for news in (b"a", b"b"):  # the second time the partition's end is known already
        correlation_id = await client.send(long)
        if news == b"a":
            await until(lambda: bool(topic.partitions[7].watches))
        await produce(await connect(broker), batch(news), partition=7, topic="many")
        answer = parts(await client.receive(long, correlation_id))
        assert values(answer[7].records)[0] == b"a"

    assert values(parts(await client.ask(poll))[7].records) == [b"a", b"b"]
    ahead = request(client, *[0] * 7, 2, *[0] * 4, version=version, wait=0.01, topic="many")
    assert await client.ask(ahead) == await client.ask(ahead)
    below = [{"name": "many", "partitions": [{"partition_index": 7, "offset": 2}]}]
    await client.call(DELETE_RECORDS, 2, topics=below)
    if version == 11:
        assert parts(await client.ask(ahead))[7].log_start_offset == 2
    await broker.topics.delete("many")
    codes = {part.error_code for part in parts(await client.ask(ahead))}
    assert codes == {ErrorCode.unknown_topic_or_partition}
