"""No request of one client keeps another's answer, or the stop of the broker.

A hostile client and honest ones send in the same turn of the event loop, so that their records are written,
synced and acknowledged together. The hostile requests are of every API and version, with names that do not
fit into a response, absurd numbers, and flipped bits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from functools import cache
from types import NoneType
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial.errors import SerialError
from structlog.testing import capture_logs

from kmr.broker import Broker, BrokerSettings
from kmr.broker.apis.catalogue import SERVED
from kmr.broker.apis.records import produce
from kmr.broker.log.results import LogFailed
from kmr.broker.protocol.messages import entity_in
from kmr.broker.protocol.produce_frames import write_produce_response
from tests.examples import examples

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Batch = Callable[..., bytes]

PRODUCE = 0
NOT_PRINTABLE = "\x01" * 32_000
"""A name that an error message quotes with four characters for each of its own."""


def produce_request(client: Any, version: int, topics: list[str], records: bytes) -> Any:
    data = [{"name": each, "partition_data": [{"index": 0, "records": records}]} for each in topics]
    return client.message(PRODUCE, version, acks=-1, topic_data=data)


@pytest.mark.parametrize("fsync", ["os", "always"])
@pytest.mark.parametrize("version", [8, 11])
async def test_an_error_about_a_long_name_keeps_no_other_producer_waiting(
    start: Start, connect: Connect, batch: Batch, fsync: str, version: int
) -> None:
    broker = await start(fsync=fsync)
    await broker.topics.create("t")
    hostile, *others = [await connect(broker) for _ in range(6)]
    bad = produce_request(hostile, version, ["t", NOT_PRINTABLE], batch(b"bad"))
    good = produce_request(hostile, version, ["t"], batch(b"good"))
    hostile.writer.write(hostile.frame(bad, 1))
    for each in others:
        each.writer.write(each.frame(good, 1))
    async with asyncio.timeout(60):
        answers = [await each.receive(good, 1) for each in others]
        refused = await hostile.receive(bad, 1)
    offsets = [each.responses[0].partition_responses[0].base_offset for each in answers]
    assert offsets == [1, 2, 3, 4, 5]
    results = [each.partition_responses[0] for each in refused.responses]
    assert [each.error_code for each in results] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert len(results[1].error_message) <= 500


@pytest.mark.parametrize("disk_fails", [False, True])
async def test_a_response_that_cannot_be_encoded_closes_its_own_connection_only(
    broker: Broker,
    connect: Connect,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
    disk_fails: bool,
) -> None:
    (partition,) = (await broker.topics.create("t")).partitions

    def fail_to_write() -> None:
        raise LogFailed("no space")

    def write(topics: Any, version: int) -> bytearray:
        if version == 8:
            raise ZeroDivisionError("a bug")
        return write_produce_response(topics, version)

    monkeypatch.setattr(produce, "write_produce_response", write)
    if disk_fails:
        monkeypatch.setattr(partition.log, "flush_pending", fail_to_write)
    hostile, honest = [await connect(broker) for _ in range(2)]
    bad = produce_request(hostile, 8, ["t"], batch(b"bad"))
    good = produce_request(honest, 9, ["t"], batch(b"good"))
    hostile.writer.write(hostile.frame(bad, 1) * 2)
    honest.writer.write(honest.frame(good, 1))
    async with asyncio.timeout(60):
        answer = await honest.receive(good, 1)
        assert await hostile.is_closed_by_broker()
    code = answer.responses[0].partition_responses[0].error_code
    assert code is (ErrorCode.kafka_storage_error if disk_fails else ErrorCode.none)


# -- any request -----------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["t", "u", "group", "", "\x01" * 8_000, NOT_PRINTABLE, "\U0010ffff" * 8_000, "long" * 10_000]
)
SMALL = st.integers(-3, 6)


def number(bits: int) -> st.SearchStrategy[int]:
    return SMALL | st.sampled_from([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1])


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "bytes": st.binary(max_size=50),
    "records": st.binary(max_size=100),
    "string": NAMES,
    "uuid": st.sampled_from([UUID(int=0), UUID(int=7)]),
    "timedelta_i32": SMALL.map(lambda each: timedelta(milliseconds=each)),
    "timedelta_i64": SMALL.map(lambda each: timedelta(milliseconds=each)),
    **{f"int{bits}": number(bits) for bits in (8, 16, 32, 64)},
}


@cache
def entities(entity_type: Any) -> st.SearchStrategy[Any]:
    """Any entity of a type of kio."""
    values = {}
    for field in fields(entity_type):
        entity = entity_in(field.type)
        value = VALUES[field.metadata["kafka_type"]] if entity is None else entities(entity)
        options = get_args(field.type)
        if Ellipsis in options or any(Ellipsis in get_args(each) for each in options):
            value = st.lists(value, max_size=3).map(tuple)
        if NoneType in options:
            value = st.none() | value
        values[field.name] = value
    return st.builds(entity_type, **values)


REQUESTS = [
    (each.key, version)
    for each in SERVED
    for version in range(each.min_version, each.max_version + 1)
    if (each.key, version) >= (PRODUCE, produce.FIRST_SERVED_VERSION)
]
DAMAGE = st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 255)), max_size=2)
HOSTILE = st.sampled_from(REQUESTS).flatmap(
    lambda each: st.tuples(entities(load_request_schema(*each)), st.just([]) | DAMAGE)
)
SETTINGS = st.fixed_dictionaries(
    {
        "fsync": st.sampled_from(["os", "always"]),
    }
)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(requests=st.lists(HOSTILE, min_size=5, max_size=20), options=SETTINGS)
async def test_no_request_of_a_client_keeps_the_answer_of_another_one(
    requests: list[tuple[Any, list[tuple[int, int]]]],
    options: dict[str, Any],
    connect: Connect,
    batch: Batch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The broker logs no error for any of them."""
    broker_settings = BrokerSettings(
        data_dir=tmp_path_factory.mktemp("broker"),
        port=0,
        shutdown_timeout=3600,  # longer than the test may take
        shutdown_deadline=7200,
        **options,
    )
    with capture_logs() as logs:
        async with asyncio.timeout(60), Broker(broker_settings) as broker:
            for topic in ("t", "mine"):
                await broker.topics.create(topic)
            honest = await connect(broker)
            good = produce_request(honest, 8, ["mine"], batch(b"good"))
            both = produce_request(honest, 8, ["mine", NOT_PRINTABLE], batch(b"bad"))
            for request, damage in requests:
                client = await connect(broker)
                with suppress(SerialError):  # a name is too long for this version
                    frame = bytearray(client.frame(request, 1))
                    for where, what in damage:
                        frame[4 + where % (len(frame) - 4)] ^= what
                    client.writer.write(client.frame(both, 0) + bytes(frame))
            for count in range(3):
                honest.writer.write(honest.frame(good, count))
                answer = await honest.receive(good, count)
                assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
    assert [each for each in logs if each["log_level"] == "error"] == []
