"""The registry's HTTP server: content types, users and access rules."""

from __future__ import annotations

import ssl
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from anyio import to_thread

from kmr import Registry
from kmr.broker import Broker, BrokerError, BrokerSettings
from kmr.broker.authorization.rules import Operation, Rule, write_rules
from kmr.broker.authorization.users import make_user, write_users
from kmr.values.registry.registry import RegisteredSchema

from .conftest import login

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.conftest import Certificates

    from .conftest import Rest

    Start = Callable[..., Awaitable[Broker]]
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
        answer = await rest.session.get(path, headers={"Accept": accept})
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
        assert found == (200, {"id": 1})
    status, _ = await rest.call("PUT", "/config", {}, **{"Content-Type": "text/html"})
    assert status == 415


async def test_without_a_port_nothing_is_served_and_no_topic_created(broker: Broker) -> None:
    assert broker.registry_url is None
    assert broker.topics.get("_schemas") is None


async def test_a_port_that_is_taken_is_named(served: Broker, tmp_path: Path) -> None:
    port = int((served.registry_url or "").rpartition(":")[2])
    other = Broker(BrokerSettings(data_dir=tmp_path / "other", port=0, registry_port=port))
    with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 is in use"):
        await other.__aenter__()


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
    broker = await start(registry_port=0, users_file=users)
    assert await open_rest(broker).refused("GET", "/subjects") == (401, 40101)
    for pair in (("alice", "bob's"), ("carol", "carol's")):
        wrong = open_rest(broker, headers=login(*pair))
        assert await wrong.refused("GET", "/subjects") == (401, 40101)
    answer = await open_rest(broker).session.get("/", headers={"Authorization": "Basic ?"})
    assert (answer.status, "Basic" in answer.headers["WWW-Authenticate"]) == (401, True)
    right = open_rest(broker, headers=login("alice", "alice's"))
    for _ in range(2):
        assert await right.get("/subjects") == []


async def test_with_a_certificate_the_port_is_encrypted_and_asks_for_that_of_clients(
    start: Start, open_rest: Open, certificates: Certificates
) -> None:
    broker = await start(
        registry_port=0,
        tls_certificate=certificates.certificate,
        tls_key=certificates.key,
        tls_client_ca=certificates.authority,
    )
    assert (broker.registry_url or "").startswith("https://")
    trusting = ssl.create_default_context(cafile=certificates.authority)
    stranger = open_rest(broker, connector=aiohttp.TCPConnector(ssl=trusting))
    with pytest.raises(aiohttp.ClientError):
        await stranger.get("/subjects")
    trusting.load_cert_chain(certificates.client_certificate, certificates.client_key)
    known = open_rest(broker, connector=aiohttp.TCPConnector(ssl=trusting))
    assert await known.get("/subjects") == []
    registry = Registry(
        str(broker.registry_url),
        ca_file=str(certificates.authority),
        certificate_file=str(certificates.client_certificate),
        key_file=str(certificates.client_key),
    )
    number = await to_thread.run_sync(registry.register, "s", RegisteredSchema('"int"'))
    assert await known.get(f"/schemas/ids/{number}") == {"schema": '"int"'}


async def test_a_changed_password_applies_to_the_next_request(
    start: Start, open_rest: Open, users: Path
) -> None:
    broker = await start(registry_port=0, users_file=users)
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
    broker = await start(registry_port=0, users_file=users, acl_file=rules)
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
        await start(registry_port=0)
