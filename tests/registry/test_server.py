"""The registry's HTTP server: content types, users and access rules."""

from __future__ import annotations

import ssl
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from anyio import to_thread

from kmr import Registry
from kmr.broker import Broker, BrokerError
from kmr.broker.authorization.rules import Operation, Rule, write_rules
from kmr.broker.authorization.users import make_user, write_users
from kmr.broker.cli.registry import registry_beside
from kmr.errors import KmrError
from kmr.registry.server import SchemaRegistry
from kmr.values.registry.registry import RegisteredSchema

from .conftest import Served, login

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.conftest import Certificates

    from .conftest import Rest

    Start = Callable[..., Awaitable[Served]]
    Open = Callable[..., Rest]

V1 = "application/vnd.schemaregistry.v1+json"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (V1, V1),
        ("*/*", V1),
        ("application/json", "application/json"),
        (f"{V1}; q=1, application/json; q=0.5", V1),
    ],
)
async def test_answers_have_the_content_type_that_the_client_accepts(
    rest: Rest, accept: str, expected: str
) -> None:
    for path in ("/subjects", "/subjects/s/versions"):
        async with rest.session.get(path, headers={"Accept": accept}) as answer:
            assert answer.headers["Content-Type"] == expected


async def test_a_request_of_another_content_type_is_refused(rest: Rest) -> None:
    for content_type in (
        V1,
        "application/vnd.schemaregistry+json",
        "application/json; charset=utf-8",
    ):
        found = await rest.call(
            "POST", "/subjects/s/versions", {"schema": '"int"'}, **{"Content-Type": content_type}
        )
        assert (found[0], found[1]["id"]) == (200, 1)
    status, _ = await rest.call("PUT", "/config", {}, **{"Content-Type": "text/html"})
    assert status == 415


async def test_a_port_that_is_taken_is_named(served: Served) -> None:
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(BrokerError, match=f"cannot listen on 127.0.0.1, port {port}"):
        async with registry_beside(served.broker, port):
            pass


async def test_a_registry_serves_any_kafka_cluster(broker: Broker, open_rest: Open) -> None:
    async with SchemaRegistry(broker.bootstrap_servers) as registry:
        rest = open_rest(Served(broker, registry))
        assert await rest.register("s", '"int"') == 1
    with pytest.raises(KmrError, match="_schemas of the schema registry cannot be opened"):
        await SchemaRegistry("127.0.0.1:1", request_timeout_ms=100).__aenter__()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """A file with the users alice and bob."""
    path = tmp_path / "users.json"
    users = {name: make_user(f"{name}'s", iterations=4096) for name in ("alice", "bob")}
    write_users(path, users)
    return path


async def test_a_broker_with_users_asks_for_them(
    start: Start, open_rest: Open, users: Path
) -> None:
    broker = await start(users_file=users)
    assert await open_rest(broker).refused("GET", "/subjects") == (401, 40101)
    for pair in (("alice", "bob's"), ("carol", "carol's")):
        wrong = open_rest(broker, headers=login(*pair))
        assert await wrong.refused("GET", "/subjects") == (401, 40101)
    nonsense = {"Authorization": "Basic ?"}
    async with open_rest(broker).session.get("/", headers=nonsense) as answer:
        assert (answer.status, "Basic" in answer.headers["WWW-Authenticate"]) == (401, True)
    right = open_rest(broker, headers=login("alice", "alice's"))
    for _ in range(2):
        assert await right.get("/subjects") == []


async def test_with_a_certificate_the_port_is_encrypted_and_asks_for_that_of_clients(
    start: Start, open_rest: Open, certificates: Certificates
) -> None:
    broker = await start(
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
        tls_client_ca=certificates.authority,
    )
    assert broker.url.startswith("https://")
    trusting = ssl.create_default_context(cafile=certificates.authority)
    stranger = open_rest(broker, connector=aiohttp.TCPConnector(ssl=trusting))
    with pytest.raises(aiohttp.ClientError):
        await stranger.get("/subjects")
    trusting.load_cert_chain(certificates.client_certificate, certificates.client_key)
    known = open_rest(broker, connector=aiohttp.TCPConnector(ssl=trusting))
    assert await known.get("/subjects") == []
    registry = Registry(
        broker.url,
        ca_file=str(certificates.authority),
        certificate_file=str(certificates.client_certificate),
        key_file=str(certificates.client_key),
    )
    number = await to_thread.run_sync(registry.register, "s", RegisteredSchema('"int"'))
    assert await known.get(f"/schemas/ids/{number}") == {"schema": '"int"'}


async def test_a_changed_password_applies_to_the_next_request(
    start: Start, open_rest: Open, users: Path
) -> None:
    broker = await start(users_file=users)
    alice = open_rest(broker, headers=login("alice", "alice's"))
    assert await alice.get("/subjects") == []
    write_users(users, {"alice": make_user("other", iterations=4096)})
    assert await alice.refused("GET", "/subjects") == (401, 40101)


async def test_access_rules_of_the_topic_apply(
    start: Start, open_rest: Open, users: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "acls.json"
    may: dict[str, Any] = {"topics": ("_schemas",)}
    write_rules(
        rules,
        [
            Rule(principal="User:alice", operations=(Operation.READ, Operation.WRITE), **may),
            Rule(principal="User:bob", operations=(Operation.READ,), **may),
        ],
    )
    broker = await start(users_file=users, acl_file=rules)
    alice = open_rest(broker, headers=login("alice", "alice's"))
    bob = open_rest(broker, headers=login("bob", "bob's"))
    await alice.register("s", '"int"')
    assert await bob.get("/subjects") == ["s"]
    body = {"schema": '"int"'}
    assert (await bob.call("POST", "/subjects/s", body))[0] == 200
    assert await bob.refused("POST", "/subjects/t/versions", body) == (403, 40301)
    assert await bob.refused("DELETE", "/subjects/s") == (403, 40301)


async def test_a_library_that_is_missing_is_named_with_the_command(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "avro", None)
    with pytest.raises(BrokerError, match="The schema registry needs avro: pip install"):
        await start()
