import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog
from anyio import from_thread
from kio.schema.errors import ErrorCode

from broker import Broker
from broker.compactor import compact
from broker.log.compaction import Compaction, Group, Rewritten
from broker.records import NewRecord, build_batch, parse_header, read_records
from broker.topics.partition import Partition

Connect = Callable[[Broker], Awaitable[Any]]
Start = Callable[..., Awaitable[Broker]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]
PRODUCE = 0
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "1", "min.cleanable.dirty.ratio": "0"}
NOW = 1_700_000_000_000


async def produce(client: Any, *pairs: tuple[bytes | None, bytes | None]) -> ErrorCode:
    batch = bytes(build_batch([NewRecord(*pair) for pair in pairs]))
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    response = await client.call(PRODUCE, 9, acks=1, topic_data=data)
    code: ErrorCode = response.responses[0].partition_responses[0].error_code
    return code


def keys(partition: Partition) -> dict[int, bytes | None]:
    """Offset to key, of all records."""
    log, found = partition.log, {}
    offset = log.log_start_offset
    while offset < log.next_offset:
        result = log.read(offset, 1, min_one=True)
        for record in read_records(result.data, parse_header(result.data)):
            found[record.offset] = record.key
        offset = result.next_offset
    return found


async def filled(broker: Broker, client: Any) -> Partition:
    """Four records of two keys; the last one is in the active segment."""
    topic = await broker.topics.create("t", 1, COMPACT)
    for key in (b"a", b"b", b"a", b"b"):
        assert await produce(client, (key, b"v")) is ErrorCode.none
    return topic.partitions[0]


async def test_a_topic_is_compacted_while_it_is_in_use(
    start: Start, connect: Connect, until: Until
) -> None:
    broker = await start(compaction_check_interval=0.01)
    client = await connect(broker)
    partition = await filled(broker, client)
    await until(lambda: set(keys(partition)) == {1, 2, 3})
    assert await produce(client, (b"a", b"new")) is ErrorCode.none
    await until(lambda: set(keys(partition)) == {2, 3, 4})
    assert partition.high_watermark == 5


async def test_a_topic_becomes_compacted_when_its_settings_say_so(
    start: Start, connect: Connect, until: Until
) -> None:
    broker = await start(compaction_check_interval=0.01)
    client = await connect(broker)
    topic = await broker.topics.create("t", 1, {**COMPACT, "cleanup.policy": "delete"})
    partition = topic.partitions[0]
    for _ in range(3):
        await produce(client, (b"a", b"v"))
    await broker.topics.configure("t", lambda _: COMPACT)
    await until(lambda: set(keys(partition)) == {1, 2})


async def test_a_record_without_a_key_is_refused(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    await filled(broker, client)
    assert await produce(client, (b"a", b""), (None, b"")) is ErrorCode.invalid_record


async def test_what_is_appended_during_a_pass_is_not_lost(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(broker)
    partition = await filled(broker, client)
    rewrite = Compaction.rewrite

    def slow(compaction: Compaction, group: Group) -> Rewritten | None:
        from_thread.run(produce, client, (b"a", b"meanwhile"))
        return rewrite(compaction, group)

    monkeypatch.setattr(Compaction, "rewrite", slow)
    assert await compact(partition, broker.topics, now_ms=NOW)
    # Three closed segments, three groups: a record is produced during each.
    assert set(keys(partition)) == {1, 2, 3, 4, 5, 6}
    monkeypatch.undo()
    assert await compact(partition, broker.topics, now_ms=NOW)
    assert set(keys(partition)) == {3, 5, 6}


async def test_a_topic_that_is_deleted_during_a_pass_leaves_nothing(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(broker)
    partition = await filled(broker, client)
    read_keys = Compaction.read_keys

    def slow(compaction: Compaction) -> None:
        from_thread.run(broker.topics.delete, "t")
        read_keys(compaction)

    monkeypatch.setattr(Compaction, "read_keys", slow)
    assert not await compact(partition, broker.topics, now_ms=NOW)
    assert not partition.log.directory.parent.exists()


async def test_a_disk_that_is_full_is_reported_once(
    start: Start, connect: Connect, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def fail(compaction: Compaction, group: Group) -> None:
        nonlocal tries
        tries += 1
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Compaction, "rewrite", fail)
    with structlog.testing.capture_logs() as logs:
        broker = await start(compaction_check_interval=0.001)
        client = await connect(broker)
        partition = await filled(broker, client)
        await until(lambda: tries > 2)
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert [entry["error"] for entry in errors] == ["[Errno 28] No space left on device"]
    assert set(keys(partition)) == {0, 1, 2, 3}


async def test_compaction_does_not_hold_up_the_end_of_the_broker(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(broker)
    partition = await filled(broker, client)
    topics = broker.topics
    read_keys = Compaction.read_keys

    def stopping(compaction: Compaction) -> None:
        topics.stopping = True
        read_keys(compaction)

    monkeypatch.setattr(Compaction, "read_keys", stopping)
    assert not await compact(partition, topics, now_ms=NOW)
    assert set(keys(partition)) == {0, 1, 2, 3}
