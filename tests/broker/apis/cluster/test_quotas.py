"""Quotas: rates with a clock to turn, Produce and Fetch over the wire, and DescribeClientQuotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.apis.cluster.quotas import MAX_THROTTLE, Rate

if TYPE_CHECKING:
    from collections.abc import Sequence

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kio.schema.errors import ErrorCode

from kmr.broker import Broker


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_client_may_use_the_bytes_of_one_second_at_once() -> None:
    rate = Rate(100, Clock())
    assert rate.use("a", 60) == 0
    assert rate.use("a", 40) == 0
    assert rate.use("a", 50) == pytest.approx(0.5)
    assert rate.wait("a") == pytest.approx(0.5)


def test_clients_do_not_use_the_quotas_of_others() -> None:
    rate = Rate(100, Clock())
    assert rate.use("a", 300) == pytest.approx(2)
    assert rate.use("b", 100) == 0


def test_a_client_that_waited_may_go_on() -> None:
    clock = Clock()
    rate = Rate(100, clock)
    rate.use("a", 300)
    clock.now += 2
    assert rate.wait("a") == 0
    assert rate.use("a", 10) == pytest.approx(0.1)


def test_bytes_unused_long_ago_do_not_count() -> None:
    clock = Clock()
    rate = Rate(100, clock)
    rate.use("a", 1)
    clock.now += 3600
    assert rate.use("a", 200) == pytest.approx(1)


def test_waits_are_bounded_and_the_rest_is_not_forgiven() -> None:
    clock = Clock()
    rate = Rate(1, clock)
    assert rate.use("a", 100) == MAX_THROTTLE
    clock.now += MAX_THROTTLE
    assert rate.wait("a") == MAX_THROTTLE


def test_endless_client_ids_do_not_fill_the_memory() -> None:
    clock = Clock()
    rate = Rate(1, clock)
    rate.use("debtor", 10**6)
    for number in range(25_000):
        rate.use(f"client {number}", 1)
    assert len(rate._even_at) <= 10_000
    assert rate.wait("debtor") == MAX_THROTTLE


@given(st.lists(st.tuples(st.integers(0, 500), st.floats(0, 3)), min_size=1))
def test_a_client_that_waits_never_exceeds_its_rate(
    steps: Sequence[tuple[int, float]],
) -> None:
    clock = Clock()
    rate = Rate(100, clock)
    begin, used = clock.now, 0
    for size, pause in steps:
        wait = rate.use("a", size)
        used += size
        clock.now += max(wait, pause)
        assert used <= 100 * (clock.now - begin + 1) + 1e-6


Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Batch = Callable[..., bytes]

PRODUCE, FETCH, VERSIONS = 0, 1, 18
KIB = 1024


def produce(client: Any, records: bytes, version: int = 11, acks: int = -1) -> Any:
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    wait = timedelta(seconds=30)
    return client.message(PRODUCE, version, acks=acks, timeout=wait, topic_data=topics)


def fetch(client: Any, version: int = 12, offset: int = 0) -> Any:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
    topics = [{"topic": "t", "partitions": [partition]}]
    return client.message(
        FETCH, version, max_wait=timedelta(0), min_bytes=0, max_bytes=2**20, topics=topics
    )


@pytest.fixture
async def slow(start: Start) -> Broker:
    """A broker that lets each client produce and fetch 100 KiB per second."""
    broker = await start(produce_quota_bytes=100 * KIB, fetch_quota_bytes=100 * KIB)
    await broker.topics.create("t")
    return broker


@pytest.mark.parametrize("version", [3, 8, 9, 11])
async def test_a_client_that_produced_too_much_waits_before_its_next_request(
    slow: Broker, connect: Connect, batch: Batch, version: int
) -> None:
    client, loop = await connect(slow), asyncio.get_running_loop()
    answer = await client.ask(produce(client, batch(b"x" * 50 * KIB), version))
    assert answer.throttle_time == timedelta(0)
    begin = loop.time()
    answer = await client.ask(produce(client, batch(b"x" * 100 * KIB), version))
    assert answer.responses[0].partition_responses[0].base_offset == 1  # kept
    assert timedelta(seconds=0.3) < answer.throttle_time < timedelta(seconds=0.6)
    other = await connect(slow)  # of the same client id: it may send other requests
    await other.call(VERSIONS, 0)
    await client.call(VERSIONS, 0)
    assert loop.time() - begin > answer.throttle_time.total_seconds() * 0.9


async def test_a_client_without_acknowledgements_waits_too(
    slow: Broker, connect: Connect, batch: Batch
) -> None:
    client, loop = await connect(slow), asyncio.get_running_loop()
    begin = loop.time()
    await client.send(produce(client, batch(b"x" * 200 * KIB), acks=0))
    await client.call(VERSIONS, 0)
    assert loop.time() - begin > 0.9


@pytest.mark.parametrize("version", [4, 11, 12])
async def test_a_client_that_fetched_too_much_gets_no_records_until_it_has_waited(
    slow: Broker, connect: Connect, batch: Batch, version: int
) -> None:
    partition = slow.topics.partition("t", 0)
    assert partition is not None
    client, loop = await connect(slow), asyncio.get_running_loop()
    producer = await connect(slow)
    await producer.ask(produce(producer, batch(b"x" * 200 * KIB)))
    begin = loop.time()
    answer = await client.ask(fetch(client, version))
    assert len(answer.responses[0].partitions[0].records) > 200 * KIB
    assert answer.throttle_time > timedelta(seconds=0.9)
    other = await connect(slow)
    empty = await other.ask(fetch(other, version))  # with the same client id
    assert empty.responses == ()
    assert empty.throttle_time > timedelta(0)
    again = await client.ask(fetch(client, version))
    assert loop.time() - begin > 0.9
    assert len(again.responses[0].partitions[0].records) > 200 * KIB


async def test_a_throttled_client_is_not_idle(start: Start, connect: Connect, batch: Batch) -> None:
    broker = await start(
        produce_quota_bytes=100 * KIB, connection_idle_seconds=0.1, request_timeout=0.1
    )
    await broker.topics.create("t")
    client = await connect(broker)
    answer = await client.ask(produce(client, batch(b"x" * 300 * KIB)))
    assert answer.throttle_time > timedelta(
        seconds=1.5
    )  # longer than two checks of idle connections
    assert (await client.call(VERSIONS, 0)).api_keys


async def test_a_broker_stops_without_waiting_for_throttled_clients(
    slow: Broker, connect: Connect, batch: Batch
) -> None:
    client = await connect(slow)
    answer = await client.ask(produce(client, batch(b"x" * 1000 * KIB)))
    assert answer.throttle_time > timedelta(seconds=8)
    begin = asyncio.get_running_loop().time()
    await slow.__aexit__(None, None, None)
    assert await client.is_closed_by_broker()
    assert asyncio.get_running_loop().time() - begin < answer.throttle_time.total_seconds()


async def test_quotas_hold_for_clients_that_ignore_the_throttle_time(slow: Broker) -> None:
    """aiokafka ignores the throttle time; the broker reads its requests later."""
    loop = asyncio.get_running_loop()
    values = [bytes([number]) * 40 * KIB for number in range(8)]
    begin = loop.time()
    async with AIOKafkaProducer(
        bootstrap_servers=slow.bootstrap_servers, client_id="a"
    ) as producer:
        for value in values:
            await producer.send_and_wait("t", value, partition=0)
    assert loop.time() - begin > (8 * 40 - 100 - 40) / 100 * 0.9
    begin = loop.time()
    async with AIOKafkaConsumer(
        "t",
        bootstrap_servers=slow.bootstrap_servers,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=50 * KIB,
    ) as consumer:
        assert [(await consumer.getone()).value for _ in values] == values
    assert loop.time() - begin > (8 * 40 - 100 - 80) / 100 * 0.9


DESCRIBE = 48
EXACT, DEFAULT, ANY = range(3)
USER, CLIENT_ID, IP = "user", "client-id", "ip"
BOTH = {USER, CLIENT_ID}


def component(kind: str, match_type: int, match: str | None = None) -> dict[str, object]:
    return {"entity_type": kind, "match_type": match_type, "match": match}


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, BOTH),
        ([], True, set()),
        ([component(USER, ANY)], True, {USER}),
        ([component(USER, DEFAULT)], False, {USER}),
        ([component(CLIENT_ID, DEFAULT)], True, {CLIENT_ID}),
        ([component(USER, EXACT, "alice")], False, set()),
        ([component(USER, ANY), component(CLIENT_ID, ANY)], False, set()),
        ([component(IP, ANY)], False, set()),
    ],
)
async def test_the_one_quota_is_that_of_users_and_client_ids_by_default(
    start: Start,
    connect: Connect,
    version: int,
    components: list[Any],
    strict: bool,
    found: set[str],
) -> None:
    client = await connect(await start(produce_quota_bytes=1000, fetch_quota_bytes=2000))
    answer = await client.call(DESCRIBE, version, components=components, strict=strict)
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    rates = {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}
    described = {}
    for entry in answer.entries:
        (entity,) = entry.entity
        assert entity.entity_name is None
        described[entity.entity_type] = {each.key: each.value for each in entry.values}
    assert described == dict.fromkeys(found, rates)


async def test_without_quotas_the_description_is_empty(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    answer = await client.call(DESCRIBE, 1, components=[], strict=False)
    assert (answer.error_code, answer.entries) == (ErrorCode.none, ())


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([component("", ANY)], ErrorCode.invalid_request),
        ([component("topic", ANY)], ErrorCode.unsupported_version),
        ([component(USER, 3)], ErrorCode.invalid_request),
        ([component(USER, EXACT)], ErrorCode.invalid_request),
        ([component(USER, ANY, "alice")], ErrorCode.invalid_request),
        ([component(USER, DEFAULT, "alice")], ErrorCode.invalid_request),
        ([component(USER, ANY), component(USER, DEFAULT)], ErrorCode.invalid_request),
        ([component(USER, ANY), component(IP, ANY)], ErrorCode.invalid_request),
    ],
)
async def test_an_invalid_filter_is_refused(
    broker: Broker, connect: Connect, components: list[Any], code: ErrorCode
) -> None:
    client = await connect(broker)
    answer = await client.call(DESCRIBE, 1, components=components, strict=False)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message
