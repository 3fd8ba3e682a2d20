"""kmr broker acl, and a broker with its file."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError

from kmr.broker import Broker, BrokerSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.cli.conftest import Offline


def test_rules_are_allowed_listed_and_revoked(offline: Offline) -> None:
    assert offline(
        "acl", "allow", "alice", "read", "write", "--topic", "orders*", "--group", "g"
    ) == (
        0,
        "User:alice: allowed\n",
        "",
    )
    offline("acl", "allow", "User:admin", "all", "--cluster", "--transactional-id", "*")
    offline("acl", "allow", "alice", "delete", "--topic", "orders-1")
    refused = ("alice", "all", "--topic", "orders-2", "--host", "10.0.0.1", "--host", "::1")
    assert offline("acl", "deny", *refused)[:2] == (0, "User:alice: denied\n")
    _, out, _ = offline("acl", "list")
    assert [line.split() for line in out.splitlines()] == [
        ["PRINCIPAL", "PERMISSION", "OPERATIONS", "RESOURCE", "NAME", "HOST"],
        ["User:alice", "allow", "read,write", "topic", "orders*", "*"],
        ["User:alice", "allow", "read,write", "group", "g", "*"],
        ["User:admin", "allow", "all", "transactional", "id", "*", "*"],
        ["User:admin", "allow", "all", "cluster", "*"],
        ["User:alice", "allow", "delete", "topic", "orders-1", "*"],
        ["User:alice", "deny", "all", "topic", "orders-2", "10.0.0.1,::1"],
    ]
    assert offline("acl", "revoke", *refused)[0] == 1  # nothing of the kind is allowed
    assert offline("acl", "revoke", "alice", "--denied")[0] == 2
    assert offline("acl", "revoke", *refused, "--denied")[0] == 0
    assert "deny" not in offline("acl", "list")[1]
    assert offline("acl", "revoke", "alice", "delete", "--topic", "orders-1")[0] == 0
    assert "delete" not in offline("acl", "list")[1]
    assert offline("acl", "revoke", "alice") == (0, "User:alice: 1 rules removed\n", "")
    assert "alice" not in offline("acl", "list")[1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["allow", "alice", "--topic", "t"], 2),
        (["allow", "alice", "read"], 2),
        (["revoke", "alice", "read", "--topic", "t"], 1),
        (["revoke", "alice", "--topic", "t"], 1),
        (["deny", "alice", "read"], 2),
        (["list"], 1),
    ],
)
def test_a_mistake_about_rules_is_one_line(
    offline: Offline, arguments: list[str], code: int
) -> None:
    ended, out, said = offline("acl", *arguments)
    assert (ended, out) == (code, "")
    assert re.fullmatch(r"kmr broker: .+\n", said)


def test_a_rule_is_stored_once(offline: Offline) -> None:
    rule = ("acl", "allow", "alice", "read", "--topic", "t")
    assert offline(*rule)[0] == 0
    assert offline(*rule)[0] == 1


async def test_a_broker_enforces_the_files_of_the_commands(
    offline: Offline, tmp_path: Path
) -> None:
    def prepare() -> None:
        offline("user", "add", "alice", stdin="wonderland\n")
        offline("acl", "allow", "alice", "write", "--topic", "mine")

    await asyncio.to_thread(prepare)
    settings = BrokerSettings(
        data_dir=tmp_path / "data",
        port=0,
        users_file=tmp_path / "users.json",
        acl_file=tmp_path / "acls.json",
    )
    async with Broker(settings) as broker:
        await broker.topics.create("mine")
        await broker.topics.create("other")
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="alice",
            sasl_plain_password="wonderland",
        ) as producer:
            await producer.send_and_wait("mine", b"value")
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait("other", b"value")
