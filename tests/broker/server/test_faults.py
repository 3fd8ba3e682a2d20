"""Injected faults: what a client of a broker sees of each, and which requests have it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import BrokerError, Fault
from kmr.broker.apis.access import refusal
from kmr.broker.apis.catalogue import SERVED
from kmr.broker.log.records import NewRecord, build_batch
from kmr.broker.protocol.messages import (
    default_message,
    error_codes,
    has_error_codes,
    request_type,
    response_type,
    write_message,
)
from kmr.broker.server.faults import read_faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kmr.broker import Broker
    from tests.broker.conftest import Start
    from tests.broker.raw_client import RawClient

    Connect = Callable[[Broker], Awaitable[RawClient]]

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, API_VERSIONS = 0, 1, 3, 10, 18


def written(broker: Broker) -> int:
    topic = broker.topics.get("orders")
    assert topic is not None
    return topic.partitions[0].log.next_offset


@pytest.fixture
async def broker(start: Start, connect: Connect) -> Broker:
    """A running broker with two topics."""
    broker = await start(shutdown_timeout=3600, shutdown_deadline=7200)
    client = await connect(broker)
    names = [{"name": "orders"}, {"name": "others"}]
    await client.call(METADATA, 9, topics=names, allow_auto_topic_creation=True)
    return broker


async def produce(client: RawClient, topic: str = "orders") -> ErrorCode:
    batch = bytes(build_batch([NewRecord(None, b"value", timestamp=0)]))
    partition = {"index": 0, "records": batch}
    data = [{"name": topic, "partition_data": [partition]}]
    answer = await client.call(PRODUCE, 9, acks=-1, topic_data=data)
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


async def fetch(client: RawClient, topic: str = "orders") -> Any:
    wanted = [{"topic": topic, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]
    return await client.call(FETCH, 12, max_bytes=1000, topics=wanted)


async def test_requests_fail_by_api_topic_and_count(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    assert await produce(client) is ErrorCode.none
    injected = broker.faults.add(
        Fault(api="Produce", topic="orders", after=1, times=2, error="NOT_ENOUGH_REPLICAS")
    )
    assert await produce(client, "others") is ErrorCode.none
    codes = [await produce(client) for _ in range(4)]
    assert codes == [
        ErrorCode.none,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas,
        ErrorCode.none,
    ]
    assert (injected.matched, injected.applied) == (4, 2)
    assert written(broker) == 3


async def test_a_failed_fetch_has_the_code_at_its_partitions(
    broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    await produce(client)
    injected = broker.faults.add(
        Fault(topic="orders", client_id="raw", error="KAFKA_STORAGE_ERROR")
    )
    broker.faults.add(Fault(client_id="another", disconnect=True))
    answer = await fetch(client)
    assert answer.error_code is ErrorCode.none
    assert answer.responses[0].partitions[0].error_code is ErrorCode.kafka_storage_error
    broker.faults.remove(injected)
    assert (await fetch(client)).responses[0].partitions[0].error_code is ErrorCode.none


async def test_a_delayed_request_is_handled_later(broker: Broker, connect: Connect) -> None:
    slow, fast = await connect(broker), await connect(broker)
    await produce(fast)
    broker.faults.add(Fault(api="Produce", times=1, delay=0.2))
    began = asyncio.get_running_loop().time()
    assert await produce(slow) is ErrorCode.none
    assert asyncio.get_running_loop().time() - began >= 0.2
    assert written(broker) == 2


@pytest.mark.parametrize(
    ("fault", "records"),
    [
        (Fault(api="Produce", disconnect=True), 1),
        (Fault(api="Produce", lose_response=True), 2),
    ],
)
async def test_a_connection_is_closed_before_or_after_its_request_is_handled(
    broker: Broker, connect: Connect, fault: Fault, records: int
) -> None:
    client = await connect(broker)
    await produce(client)
    broker.faults.add(fault)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await produce(client)
    assert written(broker) == records


async def test_a_request_that_is_never_answered_holds_its_connection_and_not_the_stop(
    broker: Broker, connect: Connect
) -> None:
    silent, other = await connect(broker), await connect(broker)
    injected = broker.faults.add(Fault(api="Produce", times=1, never_answer=True))
    waiting = asyncio.create_task(produce(silent))
    while not injected.applied:
        assert (await fetch(other)).error_code is ErrorCode.none
    assert await produce(other) is ErrorCode.none
    assert not waiting.done()
    await broker.__aexit__(None, None, None)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await waiting


async def test_a_response_without_a_place_for_the_code_closes_the_connection(
    broker: Broker, connect: Connect
) -> None:
    client = await connect(broker)
    broker.faults.add(Fault(api="Metadata", error="UNKNOWN_SERVER_ERROR"))
    await client.send(client.message(METADATA, 9, topics=None))
    assert await client.is_closed_by_broker()


@pytest.mark.parametrize("api", SERVED, ids=lambda api: f"{api.name}-{api.max_version}")
def test_a_response_of_every_version_can_be_made_of_an_error(api: Any) -> None:
    for version in range(api.min_version, api.max_version + 1):
        if (api.name, version) in {("Produce", 0), ("Produce", 1), ("Produce", 2)}:
            continue
        answer = response_type(api.key, version)
        request = default_message(request_type(api.key, version))
        response = refusal(answer, request, ErrorCode.kafka_storage_error)
        assert write_message(response)
        assert has_error_codes(answer), f"{api.name} {version}"
        assert set(error_codes(response)) <= {ErrorCode.kafka_storage_error}


def test_faults_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(
        '[[fault]]\napi = "Produce"\ntopic = "orders"\nafter = 10\ntimes = 3\n'
        'error = "NOT_LEADER_OR_FOLLOWER"\n'
        '[[fault]]\nclient_id = "slow"\ndelay = 0.5\n'
    )
    assert read_faults(path) == [
        Fault(api="Produce", topic="orders", after=10, times=3, error="NOT_LEADER_OR_FOLLOWER"),
        Fault(client_id="slow", delay=0.5),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[fault]]\napi = "Publish"\ndelay = 1',
            "api 'Publish' is unknown; use one of AddOffsets",
        ),
        ('[[fault]]\nerror = "OOPS"', "error 'OOPS' is no error code of Kafka"),
        ('[[fault]]\napi = "Fetch"', "a fault has a delay, or one of"),
        ('[[fault]]\nerror = "UNKNOWN_SERVER_ERROR"\ndisconnect = true', "a fault has a delay, or"),
        ("[[fault]]\ndelay = 1\ntimes = 0", "times"),
        ("[[fault]]\ndelay = nan", "delay must be a number of seconds from 0 on, not nan"),
        ("[[fault]]\ndelay = inf", "delay must be a number of seconds from 0 on, not inf"),
        ("[[fault]]\ndelay = -0.1", "delay must be a number of seconds from 0 on, not -0.1"),
        ("[[fault]]\ndelai = 1", "delai"),
        ("[fault", "faults.toml is invalid"),
    ],
)
async def test_a_wrong_file_of_faults_is_refused_at_the_start(
    start: Start, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(BrokerError, match=message):
        await start(faults_file=path)


async def test_a_missing_file_of_faults_is_refused_at_the_start(
    start: Start, tmp_path: Path
) -> None:
    with pytest.raises(BrokerError, match=r"cannot read the file of faults .*: No such file"):
        await start(faults_file=tmp_path / "none.toml")
