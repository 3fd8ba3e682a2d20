"""Clients that must authenticate again after a time, on the same connection (KIP-368)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from kmr.broker.authorization.users import make_user, write_users
from kmr.broker.log.records import NewRecord, build_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.broker.server.connection import Connection
    from tests.broker.raw_client import RawClient

    Start = Callable[..., Awaitable[Broker]]
    Connect = Callable[[Broker], Awaitable[RawClient]]

PRODUCE, METADATA, HANDSHAKE, VERSIONS, AUTHENTICATE = 0, 3, 17, 18, 36
ALICE, BOB = b"\0alice\0wonderland", b"\0bob\0builder"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.json"
    named = {"alice": "wonderland", "bob": "builder"}
    write_users(path, {name: make_user(each, iterations=4096) for name, each in named.items()})
    return path


async def authenticate(client: RawClient, token: bytes = ALICE, version: int = 2) -> Any:
    assert (await client.call(HANDSHAKE, 1, mechanism="PLAIN")).error_code is ErrorCode.none
    return await client.call(AUTHENTICATE, version, auth_bytes=token)


def only_connection(broker: Broker) -> Connection:
    assert broker._server is not None
    (connection,) = broker._server
    return connection


async def expired(broker: Broker, until: Any) -> None:
    """Wait until the client must authenticate again."""
    connection = only_connection(broker)
    await until(lambda: connection._client.sasl is not None)


async def test_a_session_has_an_end_only_if_it_is_set(
    start: Start, connect: Connect, users: Path
) -> None:
    broker = await start(users_file=users, authentication_lifetime=3600.5)
    answer = await authenticate(await connect(broker))
    assert answer.session_lifetime.total_seconds() == 3600.5
    old = await authenticate(await connect(broker), version=0)
    assert old.error_code is ErrorCode.none


async def test_a_step_in_between_says_nothing_of_the_end(
    start: Start, connect: Connect, users: Path
) -> None:
    client = await connect(await start(users_file=users, authentication_lifetime=60))
    await client.call(HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
    answer = await client.call(AUTHENTICATE, 2, auth_bytes=b"n,,n=alice,r=nonce")
    assert (answer.error_code, answer.session_lifetime.total_seconds()) == (ErrorCode.none, 0)


@pytest.mark.parametrize("late", [False, True])
async def test_a_client_authenticates_again_before_or_after_the_end(
    start: Start, connect: Connect, users: Path, late: bool
) -> None:
    broker = await start(users_file=users, authentication_lifetime=60)
    client = await connect(broker)
    await authenticate(client)
    for _ in range(3):
        if late:
            only_connection(broker)._expired()
        answer = await authenticate(client)
        assert answer.error_code is ErrorCode.none
        assert answer.session_lifetime.total_seconds() > 0
        assert (await client.call(METADATA, 12, topics=None)).brokers


@pytest.mark.parametrize("key", [METADATA, VERSIONS])
async def test_the_next_request_after_the_end_closes_the_connection(
    start: Start, connect: Connect, users: Path, until: Any, key: int
) -> None:
    broker = await start(users_file=users, authentication_lifetime=0.1)
    client = await connect(broker)
    await authenticate(client)
    await expired(broker, until)
    with capture_logs() as logs:
        await client.send(client.message(key, 1))
        assert await client.is_closed_by_broker()
    reason = f"a request of API {key} came before the client authenticated again"
    assert [each["reason"] for each in logs] == [reason]


async def test_repeated_produce_requests_end_with_the_session(
    start: Start, connect: Connect, users: Path
) -> None:
    """They are not read field by field, but they are asked."""
    broker = await start(users_file=users, authentication_lifetime=60)
    await broker.topics.create("orders", 1, {})
    client = await connect(broker)
    await authenticate(client)
    batch = bytes(build_batch([NewRecord(None, b"v", (), int(time.time() * 1000))]))
    part = {"index": 0, "records": batch}
    request = client.message(
        PRODUCE, 8, acks=-1, topic_data=[{"name": "orders", "partition_data": [part]}]
    )
    for offset in range(3):
        answer = await client.ask(request)
        assert answer.responses[0].partition_responses[0].base_offset == offset
    only_connection(broker)._expired()
    await client.send(request)
    assert await client.is_closed_by_broker()
    partition = broker.topics.partition("orders", 0)
    assert partition is not None
    assert partition.log.next_offset == 3


async def test_a_client_that_fails_to_authenticate_again_can_do_nothing_more(
    start: Start, connect: Connect, users: Path
) -> None:
    broker = await start(users_file=users, authentication_lifetime=60)
    for token in (BOB, b"\0alice\0wrong"):
        client = await connect(broker)
        await authenticate(client)
        answer = await authenticate(client, token)
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        await client.send(client.message(METADATA, 12, topics=None))
        assert await client.is_closed_by_broker()
    client = await connect(broker)
    await authenticate(client)
    answer = await client.call(HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
    assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
    assert await client.is_closed_by_broker()


async def test_a_client_that_begins_again_has_a_time_to_finish(
    start: Start, connect: Connect, users: Path
) -> None:
    broker = await start(users_file=users, authentication_lifetime=600, authentication_timeout=60)
    client = await connect(broker)
    await authenticate(client)
    await client.call(HANDSHAKE, 1, mechanism="PLAIN")
    only_connection(broker).check(time.monotonic() + 61)
    assert await client.is_closed_by_broker()
    assert broker._server is not None
    assert broker._server.admission.unauthenticated == 0


async def test_an_idle_connection_is_kept_after_the_end_of_its_session(
    start: Start, connect: Connect, users: Path, until: Any
) -> None:
    broker = await start(users_file=users, authentication_lifetime=0.05, authentication_timeout=60)
    client = await connect(broker)
    await authenticate(client)
    await expired(broker, until)
    only_connection(broker).check(time.monotonic() + 500)
    assert (await authenticate(client)).error_code is ErrorCode.none
