"""Listeners: how they are written, and one broker with several of them."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from kmr.broker import BrokerError, BrokerSettings
from kmr.broker.authorization.users import make_user, write_users
from kmr.broker.listeners import Listener, read_listeners
from kmr.errors import SettingsError
from tests.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.broker.conftest import Start

METADATA, DESCRIBE_CONFIGS = 3, 32


def test_listeners_are_read_from_one_text_or_several() -> None:
    internal = Listener("INTERNAL", "PLAINTEXT", "127.0.0.1", 9092)
    external = Listener("EXTERNAL", "SASL_SSL", "::", 9093, "kafka.example.com", 443)
    texts = "internal=plaintext://127.0.0.1:9092", "EXTERNAL=sasl_ssl://[::]:9093"
    advertised = ["external=kafka.example.com:443"]
    assert read_listeners(texts, advertised) == [internal, external]
    assert read_listeners([", ".join(texts)], advertised) == [internal, external]
    assert read_listeners(["ssl://localhost:0"]) == [Listener("SSL", "SSL", "localhost", 0)]
    assert (external.bound, external.address) == ("[::]:9093", "kafka.example.com:443")


@pytest.mark.parametrize(
    ("listeners", "advertised", "message"),
    [
        (["localhost:9092"], [], "'localhost:9092' is no listener; use NAME=PROTOCOL://HOST:PORT"),
        (["A=plaintext://localhost"], [], "is no listener"),
        (["A=plaintext://localhost:70000"], [], "is no listener"),
        (
            ["A=http://localhost:1"],
            [],
            "protocol 'http' is unknown; use one of plaintext, ssl, sasl",
        ),
        (["A=ssl://a:1", "a=ssl://a:2"], [], "two listeners are named A"),
        (["A=ssl://a:1,B=ssl://a:1"], [], "A and B have the same address"),
        (["A=ssl://a:1"], ["B=b:1"], "no listener is named B, only A"),
        (["A=ssl://a:1"], ["b:1"], "'b:1' is no advertised address; use NAME=HOST:PORT"),
        (["A=ssl://a:1"], ["A=b:0"], "is no advertised address"),
    ],
)
def test_listeners_that_cannot_be_read_are_refused_with_the_reason(
    listeners: list[str], advertised: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_listeners(listeners, advertised)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"listeners": ("x",)}, "listeners: 'x' is no listener"),
        ({"listeners": ("ssl://localhost:1",)}, "listener SSL needs tls_certificate and tls_key"),
        ({"listeners": ("sasl_plaintext://localhost:1",)}, "needs users_file"),
        ({"listeners": ("plaintext://localhost:1",), "port": 0}, "listener.* and port exclude"),
        ({"advertised_listeners": ("A=b:1",)}, r"advertised_listeners \(--advertise\) needs"),
        (
            {"listeners": ("OUT=plaintext://0.0.0.0:1",)},
            "listeners 'OUT' lets other machines connect",
        ),
    ],
)
def test_listeners_that_do_not_fit_the_other_settings_are_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        BrokerSettings(data_dir=Path("data"), **given)


async def test_each_listener_has_its_own_security_and_clients_of_both_meet(
    start: Start, tmp_path: Path, certificates: Any
) -> None:
    users = tmp_path / "users.json"
    write_users(users, {"alice": make_user("wonderland", iterations=4096)})
    broker = await start(
        port=9092,
        listeners=("INTERNAL=plaintext://127.0.0.1:0", "EXTERNAL=sasl_ssl://localhost:0"),
        users_file=users,
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
    )
    await broker.topics.create("t")
    inside, outside = broker.listeners["INTERNAL"], broker.listeners["EXTERNAL"]
    assert broker.bootstrap_servers == inside != outside
    external = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "wonderland",
        "ssl_context": ssl.create_default_context(cafile=certificates.authority),
    }
    group = {"group_id": "g", "auto_offset_reset": "earliest"}
    async with (
        AIOKafkaProducer(bootstrap_servers=inside) as producer,
        AIOKafkaProducer(bootstrap_servers=outside, **external) as other,
    ):
        await producer.send_and_wait("t", b"inside")
        await other.send_and_wait("t", b"outside")
        for servers, options in ((inside, {}), (outside, external)):
            async with AIOKafkaConsumer(
                "t", bootstrap_servers=servers, **group, **options
            ) as consumer:
                read = [(await consumer.getone()).value for _ in range(2)]
                assert read == [b"inside", b"outside"]
                ports = {str(node.port) for node in consumer._client.cluster.brokers()}
                assert ports == {servers.rpartition(":")[2]}
                await consumer.seek_to_beginning()
                await consumer.commit()
    async with connected(outside) as client:
        await client.send(client.message(METADATA, 9, topics=[]))
        assert await client.is_closed_by_broker()


async def test_a_client_is_told_the_address_of_its_own_listener(start: Start) -> None:
    broker = await start(
        port=9092,
        listeners=("A=plaintext://127.0.0.1:0", "B=plaintext://127.0.0.1:0"),
        advertised_listeners=("A=kafka.example.com:443",),
    )
    assert broker.bootstrap_servers == "kafka.example.com:443"
    b = broker.listeners["B"]
    async with connected(b) as client:
        found = await settings_of_broker(client)
        assert await node(client) == b
    assert found["advertised.listeners"] == f"A://kafka.example.com:443,B://{b}"
    assert found["listener.security.protocol.map"] == "A:PLAINTEXT,B:PLAINTEXT"
    a = found["listeners"].removesuffix(f",B://{b}").removeprefix("A://")
    async with connected(a) as client:
        assert await node(client) == "kafka.example.com:443"
        assert (await settings_of_broker(client)) == found


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[RawClient]:
    host, _, port = address.rpartition(":")
    client = RawClient(*await asyncio.open_connection(host, int(port)))
    yield client
    await client.close()


async def node(client: RawClient) -> str:
    [found] = (await client.call(METADATA, 9, topics=[])).brokers
    return f"{found.host}:{found.port}"


async def settings_of_broker(client: RawClient) -> dict[str, str]:
    names = ["listeners", "advertised.listeners", "listener.security.protocol.map"]
    wanted = {"resource_type": 4, "resource_name": "0", "configuration_keys": names}
    [result] = (await client.call(DESCRIBE_CONFIGS, 4, resources=[wanted])).results
    return {each.name: each.value for each in result.configs}


async def test_an_address_that_is_in_use_is_named(start: Start) -> None:
    broker = await start()
    with pytest.raises(BrokerError, match="is in use by another program"):
        await start(
            data_dir=broker.settings.data_dir / "other",
            port=9092,
            listeners=("A=plaintext://127.0.0.1:0", f"B=plaintext://{broker.bootstrap_servers}"),
        )
