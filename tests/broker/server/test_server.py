"""The listening socket: addresses, ports and the limit on connections."""

import asyncio
import os
import resource
import select
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.api_versions.v0 import ApiVersionsRequest
from structlog.testing import capture_logs

from kmr.broker import Broker, BrokerError, BrokerSettings
from kmr.broker.server.server import Admission, bind
from tests.broker.raw_client import RawClient

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]
Until = Callable[[Callable[[], bool]], Awaitable[None]]

METADATA, JOIN_GROUP, DESCRIBE_GROUPS = 3, 11, 15
THIRTY_SECONDS = timedelta(seconds=30)
ASK_VERSIONS = ApiVersionsRequest()


def test_a_port_is_bound_once() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)


def test_connections_are_limited_in_total_by_address_and_before_authentication() -> None:
    admission = Admission(
        BrokerSettings(
            data_dir=Path("unused"),
            max_connections=4,
            max_connections_per_address=2,
            max_unauthenticated_connections=2,
        )
    )
    assert admission.admit("a") is None
    assert admission.admit("b") is None
    assert admission.admit("c") == ("max_unauthenticated_connections", 2)
    admission.authenticated()
    admission.authenticated()
    assert admission.admit("a") is None
    assert admission.admit("a") == ("max_connections_per_address", 2)
    assert admission.admit("c") is None
    assert str(admission.admit("d")) == "there are more than max_connections (4)"
    assert (admission.admitted, admission.unauthenticated) == (4, 2)
    admission.closed("a", authenticated=False)
    assert admission.admit("d") is None
    admission.closed("a", authenticated=True)
    admission.authenticated()
    assert admission.admit("a") is None


async def test_connections_beyond_the_limit_are_refused(start: Start, connect: Connect) -> None:
    broker = await start(max_connections=2)
    first, second = await connect(broker), await connect(broker)
    await first.ask(ASK_VERSIONS)
    await second.ask(ASK_VERSIONS)
    third = await connect(broker)
    assert await third.is_closed_by_broker()
    await first.ask(ASK_VERSIONS)


async def test_both_listeners_accept_again_when_descriptors_are_free_again(
    start: Start, connect: Connect, until: Until
) -> None:
    two = ("ONE=plaintext://127.0.0.1:0", "OTHER=plaintext://127.0.0.1:0")
    broker = await start(port=9092, listeners=two)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    sockets = [socket.socket() for _ in broker.listeners]
    with capture_logs() as logs:
        resource.setrlimit(resource.RLIMIT_NOFILE, (sockets[-1].fileno() + 1, limits[1]))
        try:
            for each, address in zip(sockets, broker.listeners.values(), strict=True):
                each.setblocking(False)  # noqa: FBT003
                each.connect_ex(("127.0.0.1", int(address.rpartition(":")[2])))
            await until(lambda: bool(logs))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert logs[0]["event"] == "cannot accept connections for now"
    for each in sockets:
        client = RawClient(*await asyncio.open_connection(sock=each))
        async with asyncio.timeout(30):
            await client.ask(ASK_VERSIONS)
        await client.close()


async def test_a_listener_that_left_the_epoll_set_of_the_loop_is_put_back(
    broker: Broker, connect: Connect
) -> None:
    """As when a forked process, which shares the set, stops watching what it thinks are its own sockets."""
    loop: Any = asyncio.get_running_loop()
    (endpoint,) = cast("Any", broker)._server._endpoints
    with select.epoll.fromfd(os.dup(loop._selector.fileno())) as shared:
        shared.unregister(endpoint.socket)
    async with asyncio.timeout(30):
        await (await connect(broker)).ask(ASK_VERSIONS)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_ipv4_clients_of_an_ipv6_listener_have_plain_addresses(
    start: Start, connect: Connect
) -> None:
    broker = await start(host="::", insecure=True)
    port = broker.bootstrap_servers.rpartition(":")[2]
    client = await connect(cast("Broker", SimpleNamespace(bootstrap_servers=f"127.0.0.1:{port}")))
    (node,) = (await client.call(METADATA, 12, topics=[])).brokers
    assert (node.host, node.port) == ("127.0.0.1", int(port))
    await client.call(
        JOIN_GROUP,
        3,
        group_id="g",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
        session_timeout=THIRTY_SECONDS,
        rebalance_timeout=THIRTY_SECONDS,
    )
    (group,) = (await client.call(DESCRIBE_GROUPS, 5, groups=["g"])).groups
    assert [member.client_host for member in group.members] == ["/127.0.0.1"]
