"""Produce requests that are equal to earlier ones but for their records, beside the same on new connections.

The broker remembers nothing of a connection that is new: there every request is read field by field.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from kmr.broker import Broker, BrokerSettings, Fault
from kmr.broker.authorization.rules import Denial, Operation, Rule, write_rules
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import NewRecord, build_batch
from kmr.broker.log.results import LogFailed
from kmr.broker.protocol.produce_frames import read_produce_request
from tests.broker.raw_client import RawClient
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pytest

    from tests.broker.conftest import Start

    Connect = Callable[[Broker], Awaitable[RawClient]]

PRODUCE = 0
NAMES = ("a", "bc")
PARTITIONS = 2
NOW = 1_700_000_000_000  # the broker's clock stands still
HOUR = 3_600_000


class Send(NamedTuple):
    """A request; `sequence`: of an idempotent producer, relative to what the partition expects."""

    topic: str
    partition: int
    version: int
    acks: int
    records: int
    sequence: int | None
    kind: Literal["good", "lz4", "early", "crc", "cut", "twice", "transactional", "empty"]


class Change(NamedTuple):
    """The topic is made anew, or gets these settings."""

    topic: str
    settings: dict[str, str] | None


targets = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from([0, 0, 1, PARTITIONS]),
    st.sampled_from([3, 5, 8, 9, 12, 13]),
    st.sampled_from([1, 1, -1, 2]),
)
records = st.tuples(
    st.sampled_from([1, 2, 40]),
    st.sampled_from([None, None, 0, 0, 0, -1, 5]),
    st.sampled_from(
        ["good", "good", "good", "lz4", "early", "crc", "cut", "twice", "transactional", "empty"]
    ),
)
settings_of_topics: st.SearchStrategy[dict[str, str] | None] = st.sampled_from(
    [
        None,
        {},
        {"max.message.bytes": "300"},
        {"message.timestamp.type": "LogAppendTime"},
        {"message.timestamp.before.max.ms": "1000"},
        {"cleanup.policy": "compact"},
        {"compression.type": "zstd"},
        {"segment.bytes": "1048576", "segment.ms": "1"},
    ]
)


@st.composite
def histories(draw: st.DrawFn) -> list[Send | Change]:
    """Most requests of a producer are for the same few partitions."""
    few = draw(st.lists(targets, min_size=1, max_size=2))
    history: list[Send | Change] = []
    for _ in range(draw(st.integers(2, 12))):
        target = draw(st.sampled_from(few))
        if draw(st.integers(0, 4)):
            history.append(Send(*target, *draw(records)))  # type: ignore[arg-type]
        else:
            history.append(Change(target[0], draw(settings_of_topics)))
    return history


class Side:
    """One broker, with what was sent to it."""

    def __init__(self, broker: Broker, *, reconnects: bool) -> None:
        self.broker = broker
        self._reconnects = reconnects
        self._client: RawClient | None = None
        self._sequences: dict[tuple[str, int], int] = {}

    async def connect(self) -> RawClient:
        if self._reconnects and self._client is not None:
            await self.close()
        if self._client is None:
            host, _, port = self.broker.bootstrap_servers.rpartition(":")
            self._client = RawClient(*await asyncio.open_connection(host, int(port)))
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def send(self, send: Send) -> Any:
        """Produce; return the response, the same on both sides but for the topic's id."""
        client = await self.connect()
        topic = self.broker.topics.get(send.topic)
        assert topic is not None
        part = {"index": send.partition, "records": self._records(send)}
        name = {"topic_id": topic.topic_id} if send.version >= 13 else {"name": send.topic}
        response = await client.call(
            PRODUCE,
            send.version,
            acks=send.acks,
            timeout=timedelta(seconds=30),
            transactional_id=None,
            topic_data=[{**name, "partition_data": [part]}],
        )
        [answered] = response.responses
        [result] = answered.partition_responses
        if result.error_code is ErrorCode.none and send.sequence is not None:
            at = self._expected(send) + send.sequence
            if send.sequence >= 0:
                self._sequences[send.topic, send.partition] = at + send.records
        return result

    def _expected(self, send: Send) -> int:
        return self._sequences.get((send.topic, send.partition), 0)

    def _records(self, send: Send) -> bytes | None:
        idempotent: dict[str, Any] = {}
        if send.sequence is not None:
            sequence = max(0, self._expected(send) + send.sequence * send.records)
            idempotent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        timestamp = NOW + 2 * HOUR if send.kind == "early" else NOW
        made = [NewRecord(None, b"value", timestamp=timestamp) for _ in range(send.records)]
        good = bytes(
            build_batch(
                made,
                **idempotent,
                transactional=send.kind == "transactional",
                codec="lz4" if send.kind == "lz4" else "none",
            )
        )
        return {
            "crc": good[:-1] + bytes([good[-1] ^ 1]),
            "cut": good[:-1],
            "twice": good * 2,
            "empty": None,
        }.get(send.kind, good)

    async def change(self, change: Change) -> None:
        changed = change.settings
        if changed is not None:
            await self.broker.topics.configure(change.topic, lambda _: changed)
            return
        await self.broker.topics.delete(change.topic)
        await self.broker.topics.create(change.topic, PARTITIONS)
        for partition in range(PARTITIONS):
            self._sequences.pop((change.topic, partition), None)

    def state(self) -> list[Any]:
        """What the broker has after all."""
        return [
            (
                partition.topic,
                partition.index,
                bytes(partition.log.read(0, 2**20, min_one=True).data),
                partition.log.next_offset,
                partition.high_watermark,
                partition.produced_bytes,
                [
                    {**each, "last_seen_ms": 0}
                    for each in msgspec.msgpack.decode(partition.log.producers.dump())[
                        "producers"
                    ].values()
                ],
            )
            for partition in sorted(self.broker.topics.partitions, key=lambda p: (p.topic, p.index))
        ]

    def errors(self) -> dict[tuple[str, ...], float]:
        """How often requests were refused."""
        return {
            tuple(sample.labels.values()): sample.value
            for metric in self.broker.metrics.registry.collect()
            for sample in metric.samples
            if "request_errors" in sample.name
        }


async def compare(history: Sequence[Send | Change]) -> None:
    async with AsyncExitStack() as stack:
        clock = SimpleNamespace(time=lambda: NOW / 1000)
        stack.enter_context(patch("kmr.broker.apis.records.produce.time", clock))
        sides = []
        for reconnects in (False, True):
            directory = Path(stack.enter_context(TemporaryDirectory()))
            broker = Broker(BrokerSettings(data_dir=directory, port=0))
            side = Side(await stack.enter_async_context(broker), reconnects=reconnects)
            stack.push_async_callback(side.close)
            for name in NAMES:
                await side.broker.topics.create(name, PARTITIONS)
            sides.append(side)
        for each in history:
            if isinstance(each, Change):
                for side in sides:
                    await side.change(each)
            else:
                repeated, read = [await side.send(each) for side in sides]
                assert repeated == read
        assert sides[0].state() == sides[1].state()
        assert sides[0].errors() == sides[1].errors()


@settings(max_examples=examples(90))
@given(histories())
def test_a_repeated_request_does_what_the_first_one_did(history: list[Send | Change]) -> None:
    asyncio.run(compare(history))


def _data(records: bytes, topic: str = "a") -> list[dict[str, Any]]:
    return [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]


async def _result(client: RawClient, records: bytes, acks: int = 1) -> Any:
    response = await client.call(PRODUCE, 9, acks=acks, topic_data=_data(records))
    return response.responses[0].partition_responses[0]


async def test_only_the_first_of_equal_requests_and_refused_ones_are_read(
    broker: Broker,
    connect: Connect,
    batch: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0

    def counting(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return read_produce_request(*arguments)

    monkeypatch.setattr("kmr.broker.apis.records.produce.read_produce_request", counting)
    await broker.topics.create("a")
    client = await connect(broker)
    for offset in range(3):
        assert (await _result(client, batch(b"1"))).base_offset == offset
    assert reads == 1
    corrupt = await _result(client, batch(b"1")[:-1] + b"?")
    assert corrupt.error_code is ErrorCode.corrupt_message
    assert reads == 2
    assert (await _result(client, batch(b"1"), acks=-1)).base_offset == 3
    assert reads == 3


async def test_a_repeated_request_is_answered_when_its_records_are_written_and_fails_with_them(
    broker: Broker,
    connect: Connect,
    batch: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: PartitionLog) -> None:
        raise LogFailed("no space left on device")

    await broker.topics.create("a")
    client = await connect(broker)
    assert (await _result(client, batch(b"1"))).base_offset == 0
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "flush_pending", fail)
        failed = await _result(client, batch(b"2"))
    assert failed.error_code is ErrorCode.kafka_storage_error
    assert failed.error_message == "no space left on device"
    assert broker.topics.partitions[0].high_watermark == 1


async def test_a_right_that_is_taken_away_ends_repeated_requests(
    start: Start,
    connect: Connect,
    batch: Callable[..., bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kmr.broker.authorization.rules._CHECK_INTERVAL", 0.0)
    acls = tmp_path / "acls.json"
    rule: dict[str, Any] = {
        "principal": "User:ANONYMOUS",
        "operations": (Operation.WRITE,),
        "topics": ("a",),
    }
    write_rules(acls, [Rule(**rule)])
    broker = await start(acl_file=acls)
    await broker.topics.create("a")
    client = await connect(broker)
    for offset in (0, 1):
        assert (await _result(client, batch(b"1"))).base_offset == offset
    write_rules(acls, [Rule(**rule), Denial(**rule)])
    refused = await _result(client, batch(b"1"))
    assert refused.error_code is ErrorCode.topic_authorization_failed


async def test_an_injected_fault_reaches_repeated_requests(
    broker: Broker, connect: Connect, batch: Callable[..., bytes]
) -> None:
    await broker.topics.create("a")
    client = await connect(broker)
    await _result(client, batch(b"1"))
    broker.faults.add(Fault(api="Produce", error="NOT_ENOUGH_REPLICAS", times=1))
    assert (await _result(client, batch(b"2"))).error_code is ErrorCode.not_enough_replicas
    assert (await _result(client, batch(b"3"))).base_offset == 1


async def test_a_producer_without_answers_is_not_answered_when_it_repeats_a_request(
    broker: Broker, connect: Connect, batch: Callable[..., bytes]
) -> None:
    await broker.topics.create("a")
    client = await connect(broker)
    for _ in range(3):
        await client.send(client.message(PRODUCE, 9, acks=0, topic_data=_data(batch(b"1"))))
    assert (await _result(client, batch(b"1"))).base_offset == 3


async def test_so_many_answers_at_most_wait_for_a_slow_disk(
    start: Start,
    connect: Connect,
    batch: Callable[..., bytes],
    until: Callable[[Callable[[], bool]], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = await start(fsync="always")
    await broker.topics.create("a")
    client = await connect(broker)
    await _result(client, batch(b"1"))
    is_fast = Event()
    works = PartitionLog.fsync

    def slow(log: PartitionLog) -> int:
        is_fast.wait(60)
        return works(log)

    def waiting() -> float:
        value = broker.metrics.registry.get_sample_value(
            "kmr_broker_requests_in_flight", {"api": "Produce"}
        )
        assert value is not None
        return value

    monkeypatch.setattr(PartitionLog, "fsync", slow)
    request = client.message(PRODUCE, 9, acks=1, topic_data=_data(batch(b"2")))
    await client.send_bytes(b"".join(client.frame(request, number) for number in range(500)))
    await until(lambda: waiting() == 64)
    await asyncio.sleep(0.1)
    assert waiting() == 64
    is_fast.set()
    for number in range(500):
        answer = await client.receive(request, number)
        assert answer.responses[0].partition_responses[0].base_offset == number + 1
