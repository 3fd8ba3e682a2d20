"""Compacted topics: clients read across removed records."""

from __future__ import annotations

from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread

from kmr.broker.log.compaction import CompactionState
from kmr.broker.operations.maintenance import compact

from .clients.base import At, Client, Message
from .clients.via_aiokafka import Aiokafka

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.broker.topics.topic import Topic
    from kmr.testing import StartBroker

    from .conftest import Serve

COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1",
    "min.cleanable.dirty.ratio": "0",
}
FAR_FUTURE_MS = 2**50
KILLS = 3


async def compacted(start_broker: StartBroker, *messages: Message) -> tuple[str, Topic]:
    """A topic with these messages, each sent on its own, compacted but for the last one."""
    broker = await start_broker()
    topic = await broker.topics.create("t", 1, COMPACT)
    async with Aiokafka().producer(broker.bootstrap_servers) as producer:
        for message in messages:
            await producer.send("t", [message])
    await compact(topic.partitions[0], broker.topics, now_ms=FAR_FUTURE_MS)
    return broker.bootstrap_servers, topic


async def test_a_client_reads_the_latest_record_of_each_key(
    start_broker: StartBroker, client: Client
) -> None:
    messages = [Message(b"%d" % n, b"k%d" % (n % 3)) for n in range(12)]
    servers, _ = await compacted(start_broker, *messages)
    async with client.reader(servers, "t") as reader:
        records = await reader.read(4)
    # 8 has the same key as 11, which is in the active segment and was not looked at.
    assert [record.offset for record in records] == [8, 9, 10, 11]
    assert [record.message.value for record in records] == [b"8", b"9", b"10", b"11"]


@pytest.mark.parametrize("offset", [0, 3, 28])
async def test_a_client_goes_on_from_an_offset_whose_record_is_gone(
    start_broker: StartBroker, client: Client, offset: int
) -> None:
    # After ten responses without any record librdkafka takes the next one for too large.
    messages = [Message(b"%d" % n, b"k") for n in range(30)]
    servers, topic = await compacted(start_broker, *messages)
    async with client.reader(servers, "t", offset) as reader:
        (first, *_) = await reader.read(1)
        assert first.offset == max(offset, 28)
    assert topic.partitions[0].log.log_start_offset == 0


async def test_a_client_that_waits_behind_a_gap_gets_what_comes_next(
    start_broker: StartBroker, client: Client
) -> None:
    messages = [Message(b"%d" % n, b"k") for n in range(5)]
    servers, topic = await compacted(start_broker, *messages)
    log = topic.partitions[0].log
    log.roll()
    async with Aiokafka().producer(servers) as producer, client.reader(servers, "t") as reader:
        (first, second) = await reader.read(2)
        assert (first.offset, second.offset) == (3, 4)
        await producer.send("t", [Message(b"new", b"k")])
        (last, *_) = await reader.read(1)
        assert last.offset == 5


async def test_a_time_in_a_gap_is_that_of_the_next_record(
    start_broker: StartBroker, client: Client
) -> None:
    messages = [Message(b"%d" % n, b"k") for n in range(4)]
    servers, _ = await compacted(start_broker, *messages)
    async with client.reader(servers, "t", At(1)) as reader:
        (first, *_) = await reader.read(1)
    assert first.offset == 2


async def compacted_beyond(log: Path, offset: int) -> int:
    """Wait until a broker process has compacted more of a log; up to where it has."""
    with anyio.fail_after(60):
        while (clean_to := CompactionState.load(log).clean_to) <= offset:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return clean_to


@pytest.mark.slow
async def test_a_kill_at_any_moment_of_compaction_loses_no_key(
    serve: Serve, tmp_path: Path
) -> None:
    """The broker compacts all the time, and is killed while it does."""
    data = tmp_path / "data"
    broker = await to_thread.run_sync(partial(serve, data, compaction_check_interval=0.02))
    port, servers = broker.port, broker.servers
    client = Aiokafka()
    async with client.admin(servers) as admin:
        settings = {**COMPACT, "internal.segment.bytes": "2000", "delete.retention.ms": "1"}
        await admin.create_topic("t", 1, settings)
    latest: dict[bytes, bytes | None] = {}
    numbers = count()
    clean_to = 0
    for _ in range(KILLS):
        async with client.producer(servers) as producer:
            for _ in range(20):
                values = {b"k%d" % (n % 7): b"%d" % n for n in islice(numbers, 10)}
                gone = b"k%d" % (next(numbers) % 7)
                messages = [Message(value, key) for key, value in values.items()]
                await producer.send("t", [*messages, Message(None, gone)])
                latest.update({**values, gone: None})
        await to_thread.run_sync(broker.kill)
        broker = await to_thread.run_sync(
            partial(serve, data, port=port, compaction_check_interval=0.02)
        )
        clean_to = await compacted_beyond(data / "topics" / "t" / "0", clean_to)
    async with client.producer(servers) as producer:
        await producer.send("t", [Message(b"", b"end")])
    found: dict[bytes | None, bytes | None] = {}
    offsets = []
    async with client.reader(servers, "t") as reader:
        while b"end" not in found:
            for record in await reader.read(1):
                offsets.append(record.offset)
                found[record.message.key] = record.message.value
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == KILLS * 20 * 8, "every record took one offset"
    assert len(offsets) < offsets[-1] - clean_to / 2, "it was compacted"
    kept = {key: value for key, value in found.items() if value is not None and key != b"end"}
    assert kept == {key: value for key, value in latest.items() if value is not None}
