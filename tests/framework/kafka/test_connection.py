"""From the settings to a connection, and what can be wrong before the first record."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kmr.broker import Broker, BrokerSettings
from kmr.broker.authorization.users import make_user, write_users
from kmr.errors import BrokerUnavailable, ConsumerError, SettingsError
from kmr.kafka import connection
from kmr.kafka.connection import ConnectionConfig, connection_config
from kmr.kafka.kafka_consumer import KafkaConsumer
from kmr.settings import FetchSettings, GroupSettings, SecuritySettings, Settings

from .members import Silent, consumer_config

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.settings import SecurityProtocol


@pytest.mark.parametrize("creates", [True, False], ids=["creates topics", "creates none"])
async def test_an_unknown_topic_is_named_with_similar_ones_and_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, creates: bool
) -> None:
    monkeypatch.setattr("kmr.kafka.connection._TOPIC_TIMEOUT", 0.3)
    settings = BrokerSettings(data_dir=tmp_path, port=0, auto_create_topics=creates)
    async with Broker(settings) as broker:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        await admin.create_topics([NewTopic("flights", 1, 1)])
        await admin.close()
        config = consumer_config(bootstrap_servers=broker.bootstrap_servers, topics=("flihgts",))
        expected = r"topic flihgts does not exist at 127\.0\.0\.1:\d+; there is flights$"
        for _ in range(2):
            with pytest.raises(ConsumerError, match=expected):
                await KafkaConsumer(config).start(Silent())
        with pytest.raises(ConsumerError, match=r"topic zebra does not exist .*; create it first$"):
            await KafkaConsumer(replace(config, topics=("zebra",))).start(Silent())
    assert "cluster metadata" not in caplog.text  # aiokafka's own words, at each attempt


async def test_without_a_broker_the_error_says_which_address_failed_and_why() -> None:
    config = consumer_config(bootstrap_servers="127.0.0.1:1")
    consumer = KafkaConsumer(config)
    with pytest.raises(BrokerUnavailable, match=r"bootstrap_servers \(127\.0\.0\.1:1: .*refused"):
        await consumer.start(Silent())
    with pytest.raises(ConsumerError, match="the consumer is stopped"):
        await consumer.poll()


REFUSED = [
    ("plain", "SSL", BrokerUnavailable, "may be without TLS; see security.protocol"),
    ("plain", "SASL_PLAINTEXT", ConsumerError, "takes no user and password, but security.protocol"),
    ("users", "PLAINTEXT", BrokerUnavailable, "a user and a password; see security.protocol"),
    ("users", "SASL_PLAINTEXT", ConsumerError, "wrong user or password"),
    ("tls", "PLAINTEXT", BrokerUnavailable, "may require TLS, or .*; see security.protocol"),
    ("tls", "SSL", ConsumerError, "certificate that is not accepted: .*; see security.ssl_cafile"),
]


@pytest.mark.parametrize(("broker", "protocol", "error", "said"), REFUSED)
async def test_a_client_of_another_protocol_is_told_what_to_change(
    tmp_path: Path,
    certificates: Any,
    broker: str,
    protocol: SecurityProtocol,
    error: type[ConsumerError],
    said: str,
) -> None:
    users = tmp_path / "users.json"
    write_users(users, {"ada": make_user("secret")})
    settings = BrokerSettings(
        data_dir=tmp_path / "data",
        port=0,
        users_file=users if broker == "users" else None,
        tls_certificate=certificates.certificate if broker == "tls" else None,
        tls_key=certificates.key if broker == "tls" else None,
    )
    async with Broker(settings) as served:
        config = consumer_config(
            bootstrap_servers=served.bootstrap_servers,
            security_protocol=protocol,
            sasl_username="ada",
            sasl_password="wrong",
        )
        with pytest.raises(error, match=said) as refusal:
            await KafkaConsumer(config).start(Silent())
    assert type(refusal.value) is error


async def test_a_consumer_that_was_not_started_says_so() -> None:
    consumer = KafkaConsumer(consumer_config())
    with pytest.raises(ConsumerError, match="not started"):
        await consumer.poll()
    await consumer.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap_servers": " "}, "bootstrap_servers must be host:port"),
        ({"bootstrap_servers": "kafka"}, "must be host:port, or several .* not 'kafka'"),
        ({"bootstrap_servers": "a:9092,kafka"}, "must be host:port"),
        ({"bootstrap_servers": "::1"}, "must be host:port"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "needs sasl_username"),
    ],
)
def test_impossible_settings_are_refused_when_they_are_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        consumer_config(**options)


@pytest.mark.parametrize("servers", ["a:1", " a:1, b.example.com:2 ", "[::1]:9092,10.0.0.1:9092"])
def test_every_address_has_its_port(servers: str) -> None:
    assert consumer_config(bootstrap_servers=servers).bootstrap_servers == servers


def test_an_address_without_a_port_is_refused_with_the_place_where_it_is_set() -> None:
    flags = {"topics": "t", "group": "g"}
    with pytest.raises(
        SettingsError,
        match=r"must be host:port, or several .* not 'kafka' \(from .* KMR_BOOTSTRAP_SERVERS\)",
    ):
        Settings.load(environ={"KMR_BOOTSTRAP_SERVERS": "kafka"}, flags=flags)


def test_a_certificate_that_cannot_be_read_is_named() -> None:
    config = ConnectionConfig(
        bootstrap_servers="h:1", security_protocol="SSL", ssl_cafile="/nowhere/ca.pem"
    )
    with pytest.raises(SettingsError, match=r"cannot load TLS files /nowhere/ca\.pem"):
        config.client_options()


def test_passwords_are_not_shown() -> None:
    config = ConnectionConfig(
        bootstrap_servers="h:1",
        security_protocol="SASL_SSL",
        sasl_username="kmr",
        sasl_password="secret",
    )
    assert "secret" not in repr(config)
    assert config.client_options()["sasl_plain_password"] == "secret"


def test_the_consumer_reads_what_the_settings_say() -> None:
    config = connection.consumer_config(
        Settings(
            topics=("a", "b"),
            group="g",
            bootstrap_servers="h:1",
            group_instance_id="pod-0",
            isolation_level="read_committed",
            auto_offset_reset="latest",
            session_timeout=40.0,
            fetch=FetchSettings(max_partition_bytes=5, max_bytes=7, max_wait=0.1),
            security=SecuritySettings(protocol="SASL_SSL", sasl_user="u", sasl_password="p"),
        )
    )
    assert (config.topics, config.group, config.bootstrap_servers) == (("a", "b"), "g", "h:1")
    assert (config.group_instance_id, config.isolation_level) == ("pod-0", "read_committed")
    assert (config.auto_offset_reset, config.session_timeout) == ("latest", 40.0)
    assert (config.max_partition_fetch_bytes, config.fetch_max_bytes) == (5, 7)
    assert config.fetch_max_wait == 0.1
    assert (config.sasl_username, config.sasl_password) == ("u", "p")


def test_the_check_of_the_hostname_can_be_switched_off() -> None:
    security = SecuritySettings(protocol="SSL", ssl_check_hostname=False)
    config = connection_config(GroupSettings(group="g", security=security))
    assert config.client_options()["ssl_context"].check_hostname is False
