"""The consumer against a running broker, by both of its ways to fetch."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from aiokafka import AIOKafkaProducer

import framework.kafka
from broker import Broker, BrokerSettings
from framework.connection import ConnectionConfig, ConsumerConfig
from framework.consumer import CommitOffset
from framework.errors import (
    BrokerUnavailable,
    CommitFenced,
    ConsumerError,
    CorruptRecords,
    OffsetOutOfRange,
    SettingsError,
)
from framework.fallback import RecordFetcher
from framework.fetch import BatchFetcher
from framework.kafka import KafkaConsumer
from framework.offsets import Membership, commit_offsets
from framework.record import SCHEMA, Batch, TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    Produce = Callable[..., Awaitable[int]]
    CreateTopic = Callable[..., Awaitable[None]]
    Consume = Callable[..., AbstractAsyncContextManager["Member"]]

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


@pytest.fixture(autouse=True, params=["batches", "records"])
def fetcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    if request.param == "batches":
        return BatchFetcher
    monkeypatch.setattr(framework.kafka, "fetcher_mismatch", lambda _: "something")
    return RecordFetcher


@pytest.fixture
def only_batches(fetcher: type) -> None:
    if fetcher is not BatchFetcher:
        pytest.skip("a promise of the fast way only")


@dataclass
class Member:
    """A consumer, its listener, and what it was told."""

    consumer: KafkaConsumer
    told: list[tuple[str, set[TopicPartition]]] = field(default_factory=list)
    partitions: frozenset[TopicPartition] = frozenset()
    on_revoked: Callable[[], Awaitable[None]] | None = None
    on_assigned: Callable[[], Awaitable[None]] | None = None
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("revoked", set(partitions)))
        if self.on_revoked is not None:
            await self.on_revoked()

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append(("assigned", set(partitions)))
        self.partitions = partitions
        if self.on_assigned is not None:
            await self.on_assigned()
        self._changed.set()
        self._changed = anyio.Event()

    async def until_assigned(self, condition: Callable[[frozenset[TopicPartition]], bool]) -> None:
        while not condition(self.partitions):
            await self._changed.wait()

    async def read(self, count: int) -> list[Batch]:
        """Poll until there are `count` records, and check that the batches follow each other."""
        batches: list[Batch] = []
        while sum(map(len, batches)) < count:
            batches += await self.consumer.poll()
        ends: dict[TopicPartition, int] = {}
        for batch in batches:
            assert batch.records.schema == SCHEMA
            assert ends.get(batch.topic_partition, batch.first) == batch.first
            ends[batch.topic_partition] = batch.last + 1
        assert sum(map(len, batches)) == count
        return batches


@pytest.fixture
async def consume(broker: Broker, fetcher: type) -> AsyncIterator[Consume]:
    @asynccontextmanager
    async def start(**options: Any) -> AsyncIterator[Member]:
        config = {"group": "g", "topics": ("t",), "bootstrap_servers": broker.bootstrap_servers}
        member = Member(KafkaConsumer(ConsumerConfig(**(config | options))))
        member.on_revoked = options.get("on_revoked")
        await member.consumer.start(member)
        assert isinstance(member.consumer._fetcher, fetcher)
        try:
            yield member
        finally:
            await member.consumer.stop()

    with anyio.fail_after(60):
        yield start


def segment_with(directory: Path, content: bytes) -> Path:
    (found,) = (path for path in directory.rglob("*.log") if content in path.read_bytes())
    return found


def values(batches: Iterable[Batch]) -> list[bytes | None]:
    return [value for batch in batches for value in batch.records["value"].to_pylist()]


def numbers(*bounds: int) -> list[bytes | None]:
    return [b"%d" % n for n in range(*bounds)]


async def test_records_arrive_complete_and_in_order_with_every_codec(
    consume: Consume, produce: Produce
) -> None:
    for n, codec in enumerate((None, "gzip", "snappy", "lz4", "zstd")):
        await produce(
            "t",
            numbers(n * 100, n * 100 + 100),
            compression=codec,
            key=codec and codec.encode(),
            headers=[("n", b"%d" % n)],
            timestamp=1000 + n,
        )
    async with consume() as member:
        batches = await member.read(500)
    assert values(batches) == numbers(500)
    last = batches[-1].records.slice(len(batches[-1]) - 1).to_pylist()[0]
    assert last["key"] == b"zstd"
    assert last["headers"] == [{"key": "n", "value": b"4"}]
    assert last["timestamp"].timestamp() == 1.004
    assert (last["topic"], last["partition"], last["offset"]) == ("t", 0, 499)
    assert batches[-1].max_timestamp_ms == 1004


async def test_a_poll_that_is_cancelled_loses_nothing(consume: Consume, produce: Produce) -> None:
    async with consume(fetch_max_wait=0.01) as member:
        await member.until_assigned(bool)
        got: list[Batch] = []
        for n in range(50):
            await produce("t", [b"%d" % n])
            # Cancelled at whichever step it has reached by now.
            poll = asyncio.ensure_future(member.consumer.poll())
            for _ in range(n):
                await anyio.lowlevel.checkpoint()
            poll.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got += await poll
        got += await member.read(50 - sum(map(len, got)))
    assert values(got) == numbers(50)


async def test_reading_goes_on_where_the_group_has_committed(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(10))
    async with consume() as member:
        await member.read(10)
        await member.consumer.commit({T0: CommitOffset(4, '{"last": 6}')})
        assert await member.consumer.committed([T0, T1]) == {
            T0: CommitOffset(4, '{"last": 6}'),
            T1: None,
        }
    async with consume() as member:
        batches = await member.read(6)
        assert batches[0].first == 4
        assert await member.consumer.committed([T0]) == {T0: CommitOffset(4, '{"last": 6}')}


async def test_a_paused_partition_is_left_out_and_does_not_hold_back_the_others(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    async with consume() as member:
        await member.until_assigned(bool)
        member.consumer.pause([T0, TopicPartition("t", 99)])
        await produce("t", numbers(0, 3), 0)
        await produce("t", numbers(3, 6), 1)
        assert values(await member.read(3)) == numbers(3, 6)
        await produce("t", numbers(6, 9), 1)
        assert values(await member.read(3)) == numbers(6, 9)
        member.consumer.resume([T0, T1, TopicPartition("t", 99)])
        assert values(await member.read(3)) == numbers(0, 3)


async def test_resuming_wakes_a_poll_that_waits(consume: Consume, produce: Produce) -> None:
    await produce("t", numbers(3))
    async with consume() as member:
        await member.until_assigned(bool)
        member.consumer.pause([T0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.read, 3)
            await anyio.wait_all_tasks_blocked()
            member.consumer.resume([T0])


@pytest.mark.usefixtures("only_batches")
async def test_what_was_fetched_for_a_paused_partition_is_not_fetched_again(
    consume: Consume, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produce("t", numbers(3))
    async with consume() as member:
        fetched: list[int] = []
        arrived = anyio.Event()
        decoder = member.consumer._fetcher._decoder  # type: ignore[union-attr]
        decode = decoder.batch

        def counted(topic: str, partition: int, data: bytes, first: int, aborted: Any) -> Any:
            if data:
                fetched.append(first)
                arrived.set()
            return decode(topic, partition, data, first, aborted)

        monkeypatch.setattr(decoder, "batch", counted)
        await arrived.wait()
        await anyio.lowlevel.checkpoint()
        member.consumer.pause([T0])
        member.consumer.resume([T0])
        member.consumer.pause([T0])
        with anyio.move_on_after(0.3):
            assert not await member.consumer.poll()
        member.consumer.resume([T0])
        assert values(await member.read(3)) == numbers(3)
        assert fetched == [0]


async def test_a_seek_drops_what_was_fetched_and_reads_from_there(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(10))
    async with consume() as member:
        await member.read(10)
        member.consumer.seek(T0, 7)
        batches = await member.read(3)
        assert (batches[0].first, values(batches)) == (7, numbers(7, 10))
        member.consumer.seek(T0, 2)
        member.consumer.seek(T0, 0)
        assert (await member.read(10))[0].first == 0
        with pytest.raises(ConsumerError, match="cannot seek t-1: it is not assigned"):
            member.consumer.seek(T1, 0)


async def test_an_assigned_listener_decides_where_reading_begins(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(10))
    async with consume() as member:

        async def seek() -> None:
            member.consumer.seek(T0, 6)

        member.on_assigned = seek
        batches = await member.read(4)
        assert values(batches) == numbers(6, 10)
        assert batches[0].first == 6


async def test_nothing_is_returned_before_the_listener_has_agreed(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(3))
    async with consume() as member:
        entered, agreed = anyio.Event(), anyio.Event()

        async def wait() -> None:
            entered.set()
            await agreed.wait()

        member.on_assigned = wait
        await entered.wait()
        with anyio.move_on_after(0.5):
            assert not await member.consumer.poll()
        agreed.set()
        assert values(await member.read(3)) == numbers(3)


@pytest.mark.parametrize("event", ["on_revoked", "on_assigned"])
async def test_an_error_of_the_listener_comes_out_of_poll(consume: Consume, event: str) -> None:
    async def fail() -> None:
        raise LookupError("no such state")

    async with consume() as member:
        setattr(member, event, fail)
        with pytest.raises(LookupError, match="no such state"):
            await member.consumer.poll()


async def test_members_share_the_partitions_and_keep_most_of_theirs(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    await create_topic("t", 6)
    everything = {TopicPartition("t", n) for n in range(6)}
    async with consume(heartbeat_interval=0.1) as one:
        await one.until_assigned(lambda p: len(p) == 6)
        first_generation = one.consumer.generation
        async with consume(heartbeat_interval=0.1) as two:
            await one.until_assigned(lambda p: len(p) == 3)
            await two.until_assigned(bool)
            assert one.partitions | two.partitions == everything
            assert one.told == [
                ("revoked", set()),
                ("assigned", everything),
                ("revoked", everything),
                ("assigned", set(one.partitions)),
            ]
            assert one.consumer.generation == two.consumer.generation > first_generation
            assert one.consumer.member_id != two.consumer.member_id != ""
            before = one.partitions
            async with consume(heartbeat_interval=0.1) as three:
                await one.until_assigned(lambda p: len(p) == 2)
                await two.until_assigned(lambda p: len(p) == 2)
                await three.until_assigned(bool)
                assert one.partitions < before
        # Both have left, and said so: no need to wait for the session timeout.
        await one.until_assigned(lambda p: len(p) == 6)
        await produce("t", numbers(3), 5)
        await one.read(3)


async def test_commits_of_another_generation_are_refused(
    consume: Consume, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    async with consume(heartbeat_interval=0.1) as one:
        with pytest.raises(CommitFenced, match="t-0 is not assigned to us"):
            await one.consumer.commit({T0: CommitOffset(1)})
        await one.until_assigned(lambda p: len(p) == 2)
        old = one.consumer._membership

        async def commit() -> None:
            await one.consumer.commit({T0: CommitOffset(5), T1: CommitOffset(6)})

        one.on_revoked = commit  # at the very last moment: still accepted
        async with consume(heartbeat_interval=0.1) as two:
            await one.until_assigned(lambda p: len(p) == 1)
            await two.until_assigned(bool)
            (lost,) = two.partitions
            with pytest.raises(CommitFenced, match=f"{lost} is not assigned to us any more"):
                await one.consumer.commit({lost: CommitOffset(9)})
            coordinator = one.consumer._consumer._coordinator
            for membership, message in (
                (old, "the group has moved on"),
                (old._replace(member_id="somebody"), "the group has moved on"),
                (Membership(), "not a member now"),
            ):
                with pytest.raises(CommitFenced, match=message):
                    await commit_offsets(coordinator, membership, {lost: CommitOffset(9)}, 5)
            assert await two.consumer.committed([T0, T1]) == {
                T0: CommitOffset(5),
                T1: CommitOffset(6),
            }


async def test_a_commit_that_nobody_answers_gives_up_in_time(
    consume: Consume, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        settings = BrokerSettings(data_dir=tmp_path / "other", port=0)
        async with Broker(settings) as other:
            options = {"bootstrap_servers": other.bootstrap_servers, "commit_timeout": 0.5}
            member = await stack.enter_async_context(consume(**options))
            await member.until_assigned(lambda p: p == {T0})
        with pytest.raises(ConsumerError, match=r"group g: commit not acknowledged in 0\.5 s: .+"):
            await member.consumer.commit({T0: CommitOffset(1)})


async def test_reading_and_committing_survive_a_restart_of_the_broker(
    consume: Consume, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        settings = BrokerSettings(data_dir=tmp_path / "other", port=0)
        async with Broker(settings) as other:
            servers = other.bootstrap_servers
            await send(servers, numbers(5))
            member = await stack.enter_async_context(consume(bootstrap_servers=servers))
            assert values(await member.read(5)) == numbers(5)
            await member.consumer.commit({T0: CommitOffset(5)})
        again = BrokerSettings(data_dir=tmp_path / "other", port=int(servers.partition(":")[2]))
        async with Broker(again):
            await send(servers, numbers(5, 9))
            assert values(await member.read(4)) == numbers(5, 9)
            while True:
                with contextlib.suppress(CommitFenced):  # until it has joined again
                    await member.consumer.commit({T0: CommitOffset(9)})
                    break
                await anyio.sleep(0.05)
            assert await member.consumer.committed([T0]) == {T0: CommitOffset(9)}
            await member.consumer.stop()


async def send(servers: str, records: Iterable[bytes | None]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for record in records:
            await producer.send("t", record)


async def test_the_ends_of_a_log_are_known_after_a_fetch(
    consume: Consume, produce: Produce, fetcher: type
) -> None:
    await produce("t", numbers(5))
    async with consume() as member:
        assert member.consumer.end_offset(T0) is None
        assert member.consumer.start_offset(T0) is None
        await member.read(5)
        assert member.consumer.end_offset(T0) == 5
        assert member.consumer.start_offset(T0) == (0 if fetcher is BatchFetcher else None)
        assert member.consumer.end_offset(T1) is None


async def test_a_new_group_may_want_only_new_records(consume: Consume, produce: Produce) -> None:
    await produce("t", numbers(5))
    async with consume(auto_offset_reset="latest", fetch_max_wait=0.05) as member:
        await member.until_assigned(bool)
        while member.consumer.end_offset(T0) is None:  # the position is settled by the first fetch
            with anyio.move_on_after(0.05):
                assert not await member.consumer.poll()
        await produce("t", numbers(5, 8))
        assert values(await member.read(3)) == numbers(5, 8)


async def test_without_a_reset_policy_a_missing_offset_is_an_error_that_names_it(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(5))
    async with consume(auto_offset_reset="error") as member:
        with pytest.raises(
            OffsetOutOfRange,
            match=r't-0: group g has no committed offset; the log has offsets 0 to 5 .*"earliest"',
        ):
            await member.consumer.poll()
        member.consumer.seek(T0, 100)
        with pytest.raises(
            OffsetOutOfRange, match="t-0: offset 100 does not exist; the log has offsets 0 to 5"
        ):
            await member.read(1)
        member.consumer.seek(T0, 3)
        assert values(await member.read(2)) == numbers(3, 5)


async def test_with_a_reset_policy_an_offset_out_of_range_is_mended(
    consume: Consume, produce: Produce
) -> None:
    await produce("t", numbers(5))
    async with consume() as member:
        await member.read(5)
        member.consumer.seek(T0, 100)
        assert values(await member.consumer.poll()) == numbers(5)


@pytest.mark.usefixtures("only_batches")
async def test_damaged_records_are_an_error_that_says_where(
    consume: Consume, produce: Produce, tmp_path: Path
) -> None:
    await produce("t", numbers(5))
    await produce("t", [b"precious" * 20])
    segment = segment_with(tmp_path, b"precious")
    raw = segment.read_bytes()
    batch_at = raw.rindex((5).to_bytes(8, "big"), 0, raw.index(b"precious"))
    segment.write_bytes(raw.replace(b"preciousprecious", b"preciousPrecious", 1))
    async with consume() as member:
        (batch,) = await member.consumer.poll()
        with pytest.raises(CorruptRecords, match="t-0: the record batch at offset 5 is damaged"):
            _ = batch.records
        segment.write_bytes(raw[: batch_at + 57] + b"\xff" * 4 + raw[batch_at + 61 :])
        member.consumer.seek(T0, 0)
        assert values(await member.read(5)) == numbers(5)  # those before it are not lost
        for _ in range(2):
            with pytest.raises(CorruptRecords, match=r"offset 5 .* its record count is impossible"):
                await member.consumer.poll()
        segment.write_bytes(raw)
        assert values(await member.read(1)) == [b"precious" * 20]


async def test_topics_may_be_chosen_by_a_pattern(
    consume: Consume, produce: Produce, create_topic: CreateTopic
) -> None:
    for topic in ("eu.orders", "us.orders", "us.orders.old"):
        await create_topic(topic)
        await produce(topic, [topic.encode()])
    async with consume(topics=(), topic_pattern=r"[a-z]+\.orders") as member:
        assert set(values(await member.read(2))) == {b"eu.orders", b"us.orders"}


async def test_a_consumer_stops_at_once_and_only_once(consume: Consume) -> None:
    async with consume() as member:
        await member.until_assigned(bool)
        async with anyio.create_task_group() as tasks:

            async def poll() -> None:
                with pytest.raises(ConsumerError, match="the consumer is stopped"):
                    await member.consumer.poll()

            tasks.start_soon(poll)
            await anyio.wait_all_tasks_blocked()
            await member.consumer.stop()
            await member.consumer.stop()
        assert (member.consumer.generation, member.consumer.member_id) == (-1, "")
        with pytest.raises(ConsumerError, match="the consumer is stopped"):
            member.consumer.pause([T0])


async def test_stopping_in_the_middle_of_a_rebalance_does_not_wait_for_it(consume: Consume) -> None:
    async with consume(heartbeat_interval=0.1) as slow:
        await slow.until_assigned(bool)
        entered, done = anyio.Event(), anyio.Event()

        async def wait() -> None:
            entered.set()
            await done.wait()

        slow.on_revoked = wait
        async with consume(stop_timeout=0.5) as joining:
            await entered.wait()
            with anyio.fail_after(5):
                await joining.consumer.stop()
        done.set()
        await slow.until_assigned(lambda p: len(slow.told) >= 4 and p == {T0})


@pytest.mark.slow
async def test_heartbeats_go_on_while_a_listener_takes_longer_than_the_session(
    consume: Consume, create_topic: CreateTopic
) -> None:
    await create_topic("t", 2)
    timing = {"session_timeout": 6.0, "heartbeat_interval": 0.5, "rebalance_timeout": 30.0}
    async with consume(**timing) as one:
        await one.until_assigned(lambda p: len(p) == 2)
        member_id = one.consumer.member_id

        async def linger() -> None:
            await anyio.sleep(8)
            await one.consumer.commit({T0: CommitOffset(1)})

        one.on_revoked = linger
        async with consume(**timing) as two:
            await one.until_assigned(lambda p: len(p) == 1)
            await two.until_assigned(bool)
        assert one.consumer.member_id == member_id
        assert (await one.consumer.committed([T0]))[T0] == CommitOffset(1)


async def test_an_unknown_topic_is_named_where_the_broker_does_not_create_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.connecting._TOPIC_TIMEOUT", 0.3)
    settings = BrokerSettings(data_dir=tmp_path, port=0, auto_create_topics=False)
    async with Broker(settings) as broker:
        config = ConsumerConfig(
            bootstrap_servers=broker.bootstrap_servers, group="g", topics=("flihgts",)
        )
        with pytest.raises(ConsumerError, match=r"topic flihgts does not exist at 127\.0\.0\.1"):
            await KafkaConsumer(config).start(Member(KafkaConsumer(config)))


async def test_without_a_broker_the_error_says_which_address_failed_and_why() -> None:
    config = ConsumerConfig(bootstrap_servers="127.0.0.1:1", group="g", topics=("t",))
    consumer = KafkaConsumer(config)
    with pytest.raises(BrokerUnavailable, match=r"bootstrap_servers \(127\.0\.0\.1:1: .*refused"):
        await consumer.start(Member(consumer))
    with pytest.raises(ConsumerError, match="the consumer is stopped"):
        await consumer.poll()


async def test_a_consumer_that_was_not_started_says_so() -> None:
    consumer = KafkaConsumer(ConsumerConfig(group="g", topics=("t",)))
    with pytest.raises(ConsumerError, match="not started"):
        await consumer.poll()
    await consumer.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, "group is empty"),
        ({"topics": ()}, "either topics or topic_pattern"),
        ({"topic_pattern": "x"}, "either topics or topic_pattern"),
        ({"topics": (), "topic_pattern": "("}, "no regular expression"),
        ({"heartbeat_interval": 30.0}, "must be shorter than session_timeout"),
        ({"bootstrap_servers": " "}, "bootstrap_servers is empty"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "needs sasl_username"),
    ],
)
def test_impossible_settings_are_refused_when_they_are_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        ConsumerConfig(**({"group": "g", "topics": ("t",)} | options))


def test_a_certificate_that_cannot_be_read_is_named() -> None:
    config = ConnectionConfig(security_protocol="SSL", ssl_cafile="/nowhere/ca.pem")
    with pytest.raises(SettingsError, match=r"cannot load TLS files /nowhere/ca\.pem"):
        config.client_options()


def test_passwords_are_not_shown() -> None:
    config = ConnectionConfig(
        security_protocol="SASL_SSL", sasl_username="kmr", sasl_password="secret"
    )
    assert "secret" not in repr(config)
    assert config.client_options()["sasl_plain_password"] == "secret"
