"""Administrators make users with their clients, who are let in at once, by what they were made for."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
import kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError as AioNoConnection
from confluent_kafka import admin as librdkafka_admin
from kafka import admin as kafka_admin

from kmr.broker.authorization.users import make_user, read_users, write_users

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.testing import StartBroker

ck_admin: Any = librdkafka_admin
"""Its types lack what it takes from others."""

TIMEOUT = 60.0
PLAIN, SHA_256, SHA_512 = MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "a pass=word, with ümlaut"


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """The file of users: an administrator."""
    path = tmp_path / "users.json"
    write_users(path, {"admin": make_user(PASSWORD, iterations=4096)})
    return path


@pytest.fixture
async def broker(start_broker: StartBroker, users: Path) -> Broker:
    return await start_broker(users_file=users)


def sasl(broker: Broker, mechanism: str, user: str = "admin") -> dict[str, Any]:
    """Arguments of aiokafka and kafka-python."""
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": PASSWORD,
    }


def librdkafka(broker: Broker) -> Any:
    return ck_admin.AdminClient(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": SHA_512,
            "sasl.username": "admin",
            "sasl.password": PASSWORD,
        }
    )


def mechanism(name: str) -> Any:
    return getattr(ck_admin.ScramMechanism, name.replace("-", "_"))


def upsertion(user: str, name: str, iterations: int = 4096) -> Any:
    info = ck_admin.ScramCredentialInfo(mechanism(name), iterations)
    return ck_admin.UserScramCredentialUpsertion(user, info, PASSWORD.encode())


def deletion(user: str, name: str) -> Any:
    return ck_admin.UserScramCredentialDeletion(user, mechanism(name))


async def by_librdkafka(broker: Broker, *alterations: Any) -> dict[str, int]:
    """The error code of each user."""

    def alter() -> dict[str, int]:
        codes = {}
        admin = librdkafka(broker)  # whose end would end what it was asked for
        for user, future in admin.alter_user_scram_credentials(list(alterations)).items():
            error = future.exception(TIMEOUT)
            codes[user] = 0 if error is None else int(error.args[0].code())
        return codes

    return await asyncio.to_thread(alter)


async def is_let_in(broker: Broker, mechanism: str, user: str) -> bool:
    async with asyncio.timeout(TIMEOUT):
        client = AIOKafkaProducer(**sasl(broker, mechanism, user))
        try:
            await client.start()
        except AioNoConnection:
            return False
        finally:
            await client.stop()
    return True


async def ways_in(broker: Broker, user: str = "alice") -> set[str]:
    """The mechanisms that a user can authenticate with."""
    return {each for each in MECHANISMS if await is_let_in(broker, each, user)}


async def test_a_user_is_let_in_by_plain_and_the_mechanisms_that_it_was_made_for(
    broker: Broker, users: Path
) -> None:
    assert await ways_in(broker) == set()
    assert await by_librdkafka(broker, upsertion("alice", SHA_256)) == {"alice": 0}
    assert await ways_in(broker) == {PLAIN, SHA_256}
    assert await by_librdkafka(broker, upsertion("alice", SHA_512)) == {"alice": 0}
    assert await ways_in(broker) == {PLAIN, SHA_256, SHA_512}
    assert await by_librdkafka(broker, deletion("alice", SHA_256)) == {"alice": 0}
    assert await ways_in(broker) == {PLAIN, SHA_512}
    assert await by_librdkafka(broker, deletion("alice", SHA_512)) == {"alice": 0}
    assert await ways_in(broker) == set()
    assert list(read_users(users)) == ["admin"]


async def test_a_user_of_the_command_line_can_lose_one_mechanism(broker: Broker) -> None:
    assert await ways_in(broker, "admin") == {PLAIN, SHA_256, SHA_512}
    assert await by_librdkafka(broker, deletion("admin", SHA_256)) == {"admin": 0}
    assert await ways_in(broker, "admin") == {PLAIN, SHA_512}


async def test_librdkafka_describes_users(broker: Broker) -> None:
    await by_librdkafka(broker, upsertion("alice", SHA_256, 8192), upsertion("bob", SHA_512))

    def describe() -> dict[str, Any]:
        admin = librdkafka(broker)
        named = admin.describe_user_scram_credentials(["alice", "nobody"])
        missing = named["nobody"].exception(TIMEOUT)
        assert missing.args[0].code() == ck.KafkaError.RESOURCE_NOT_FOUND
        assert "there is no user 'nobody'" in str(missing)
        everybody = admin.describe_user_scram_credentials().result(TIMEOUT)
        assert set(everybody) == {"admin", "alice", "bob"}
        found = {**everybody, "alice": named["alice"].result(TIMEOUT)}
        return {
            user: {(info.mechanism, info.iterations) for info in each.scram_credential_infos}
            for user, each in found.items()
        }

    assert await asyncio.to_thread(describe) == {
        "admin": {(mechanism(SHA_256), 4096), (mechanism(SHA_512), 4096)},
        "alice": {(mechanism(SHA_256), 8192)},
        "bob": {(mechanism(SHA_512), 4096)},
    }


async def test_librdkafka_describes_each_user(broker: Broker) -> None:
    codes = await by_librdkafka(
        broker,
        upsertion("alice", SHA_256),
        upsertion("alice", SHA_512),
        upsertion("bob", SHA_512, 16_385),
        deletion("carol", SHA_256),
        deletion("admin", SHA_256),
    )
    assert codes == {
        "alice": ck.KafkaError.DUPLICATE_RESOURCE,
        "bob": ck.KafkaError.UNACCEPTABLE_CREDENTIAL,
        "carol": ck.KafkaError.RESOURCE_NOT_FOUND,
        "admin": 0,
    }


async def test_kafka_python_makes_describes_and_deletes_a_user(broker: Broker) -> None:
    def with_admin(action: Callable[[Any], Any]) -> Any:
        with closing(kafka.KafkaAdminClient(**sasl(broker, SHA_256))) as admin:
            return action(admin)

    made = kafka_admin.UserScramCredentialUpsertion("alice", SHA_512, PASSWORD)
    gone = kafka_admin.UserScramCredentialDeletion("alice", SHA_512)

    def make(admin: Any) -> Any:
        assert admin.alter_user_scram_credentials([made]) == {"alice": None}
        return admin.describe_user_scram_credentials(["alice"])

    def delete(admin: Any) -> Any:
        assert admin.alter_user_scram_credentials([gone]) == {"alice": None}
        assert "no credential" in admin.alter_user_scram_credentials([gone])["alice"]
        return admin.describe_user_scram_credentials()

    described = await asyncio.to_thread(with_admin, make)
    infos = [{"mechanism": kafka_admin.ScramMechanism.SCRAM_SHA_512, "iterations": 4096}]
    assert described == {"alice": {"error": None, "credential_infos": infos}}
    assert await ways_in(broker) == {PLAIN, SHA_512}
    assert set(await asyncio.to_thread(with_admin, delete)) == {"admin"}
    assert await ways_in(broker) == set()
