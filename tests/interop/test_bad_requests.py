"""Requests of every API and version, sound and damaged: each is answered, or its connection closed."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from datetime import timedelta
from struct import pack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.api_versions.v0 import ApiVersionsRequest
from kio.schema.consumer_group_heartbeat.v1 import ConsumerGroupHeartbeatRequest
from kio.schema.index import api_key_map, schema_name_map
from kio.serial.errors import OutOfBoundValue

from kmr.broker.apis.catalogue import SERVED, advertised_versions
from kmr.broker.protocol.messages import default_message
from tests.examples import examples

from .clients.raw import Raw, body_of, framed, produce_request, response_in
from .clients.requests import damaged, requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import BrokerProcess, Serve

KIB, MIB = 2**10, 2**20
PRODUCE = 0


SCHEMAS = [
    pytest.param((api.key, version), id=f"{api.name}Request-{version}")
    for api in SERVED
    for version in range(api.min_version, api.max_version + 1)
    if version in schema_name_map[api_key_map[api.key]]
]
"""Each version of each API that is served, but Produce before version 3, which no schema knows."""


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> Any:
    """kio's class of a request."""
    return load_request_schema(*request.param)


@pytest.fixture(scope="module")
def broker(serve_module: Serve, tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    """A broker with short waits that allows few topics; it has loaded the library of patterns."""
    broker = serve_module(
        tmp_path_factory.mktemp("data"),
        group_min_session_timeout="20ms",
        group_max_session_timeout="100ms",
        max_partitions=50,
        request_max_bytes=4 * MIB,
        request_memory_bytes=16 * MIB,
        response_memory_bytes=16 * MIB,
    )
    with Raw(broker.port) as client:
        client.ask(
            default_message(
                ConsumerGroupHeartbeatRequest,
                group_id="patterns",
                member_id="member",
                rebalance_timeout=timedelta(minutes=1),
                subscribed_topic_regex=".*",
                topic_partitions=(),
            )
        )
    return broker


@pytest.fixture(autouse=True)
def _unharmed(broker: BrokerProcess) -> Iterator[None]:
    memory = broker.memory
    yield
    with Raw(broker.port) as client:
        client.lives()
    assert broker.errors == []
    assert broker.memory < memory + 32 * MIB


def a_few(count: int) -> settings:
    return settings(max_examples=examples(count))


def check_response(frame: bytes, request: Any) -> None:
    """Fails unless it is a response to this request, in its version."""
    with suppress(
        OutOfBoundValue
    ):  # kio writes -1 for a time that there is not, but cannot read it
        response_in(frame, request)


def test_the_broker_advertises_every_tested_api(broker: BrokerProcess) -> None:
    with Raw(broker.port) as client:
        answer = client.ask(ApiVersionsRequest())
    advertised = [(each.api_key, each.min_version, each.max_version) for each in answer.api_keys]
    assert sorted(advertised) == advertised_versions(SERVED)


@pytest.mark.parametrize("schema", SCHEMAS, indirect=True)
def test_any_request_is_answered_in_its_version(broker: BrokerProcess, schema: Any) -> None:
    @a_few(15)
    @given(requests(schema))
    def ask(request: Any) -> None:
        with Raw(broker.port) as client:
            client.send(framed(request))
            if schema.__api_key__ == PRODUCE and request.acks == 0:
                return
            frame = client.frame()
            assert frame is not None, "the broker closed the connection"
            check_response(frame, request)
            client.lives()

    ask()


@pytest.mark.parametrize("schema", SCHEMAS, indirect=True)
def test_a_damaged_request_is_answered_in_its_version_or_closes_the_connection(
    broker: BrokerProcess, schema: Any
) -> None:
    sound = requests(schema)

    @a_few(24)
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        request = data.draw(sound)
        body = data.draw(damaged(body_of(request)))
        with Raw(broker.port) as client:
            client.send(framed(request, body=body))
            frame = client.frame_soon()
            if frame is not None:
                check_response(frame, request)

    ask()


@pytest.mark.parametrize("api", advertised_versions(SERVED), ids=lambda api: f"api-{api.key}")
def test_a_request_of_random_bytes_is_answered_or_closes_the_connection(
    broker: BrokerProcess, api: Any
) -> None:
    versions = st.integers(api.min_version - 1, api.max_version + 1)

    @a_few(24)
    @given(versions, st.binary(max_size=100))
    def ask(version: int, body: bytes) -> None:
        frame = pack(">hhi", api.key, version, 7) + body
        with Raw(broker.port) as client:
            client.send(pack(">i", len(frame)) + frame)
            answer = client.frame_soon()
            assert answer is None or answer.startswith(pack(">i", 7))

    ask()


@a_few(100)
@given(data=st.binary(min_size=1, max_size=200))
def test_random_bytes_close_the_connection_or_wait_for_more(
    broker: BrokerProcess, data: bytes
) -> None:
    with Raw(broker.port) as client:
        client.send(data)
        assert client.frame_soon(0.001) is None


def test_requests_that_announce_more_than_they_send_take_no_memory_beyond_the_limit(
    broker: BrokerProcess,
) -> None:
    announced = pack(">ihhi", 4 * MIB, PRODUCE, 8, 1) + bytes(64 * KIB)
    with ExitStack() as connections:
        for _ in range(40):
            connections.enter_context(Raw(broker.port)).send(announced)
        with Raw(broker.port) as client:
            client.lives()
    with Raw(broker.port) as client:
        client.ask(produce_request("t", bytes(MIB)))  # which there is room for again


def test_connections_leave_nothing_behind(broker: BrokerProcess) -> None:
    request = framed(ApiVersionsRequest())
    with Raw(broker.port) as client:
        client.lives()
        open_files = broker.open_files
        _connect(broker, request, 2_000)  # pools and caches reach their size
        memory = broker.memory
        _connect(broker, request, 2_000)
        assert broker.open_files <= open_files
        assert broker.memory < memory + 2 * MIB


def _connect(broker: BrokerProcess, request: bytes, times: int) -> None:
    for number in range(times):
        with Raw(broker.port) as passing:
            passing.send(request[: number % (len(request) + 1)])
            passing.end()
            while passing.frame() is not None:
                pass
