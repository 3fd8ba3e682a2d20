"""What can be wrong before the first record: settings, addresses, topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker import Broker, BrokerSettings
from framework.errors import BrokerUnavailable, ConsumerError, SettingsError
from framework.kafka.connection import ConnectionConfig, ConsumerConfig
from framework.kafka.consumer import KafkaConsumer

if TYPE_CHECKING:
    from pathlib import Path


class Silent:
    """A listener that agrees to everything."""

    async def revoked(self, partitions: Any) -> None: ...

    async def assigned(self, partitions: Any) -> None: ...


async def test_an_unknown_topic_is_named_where_the_broker_does_not_create_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.kafka.connecting._TOPIC_TIMEOUT", 0.3)
    settings = BrokerSettings(data_dir=tmp_path, port=0, auto_create_topics=False)
    async with Broker(settings) as broker:
        config = ConsumerConfig(
            bootstrap_servers=broker.bootstrap_servers, group="g", topics=("flihgts",)
        )
        with pytest.raises(ConsumerError, match=r"topic flihgts does not exist at 127\.0\.0\.1"):
            await KafkaConsumer(config).start(Silent())


async def test_without_a_broker_the_error_says_which_address_failed_and_why() -> None:
    config = ConsumerConfig(bootstrap_servers="127.0.0.1:1", group="g", topics=("t",))
    consumer = KafkaConsumer(config)
    with pytest.raises(BrokerUnavailable, match=r"bootstrap_servers \(127\.0\.0\.1:1: .*refused"):
        await consumer.start(Silent())
    with pytest.raises(ConsumerError, match="the consumer is stopped"):
        await consumer.poll()


async def test_a_consumer_that_was_not_started_says_so() -> None:
    consumer = KafkaConsumer(ConsumerConfig(group="g", topics=("t",)))
    with pytest.raises(ConsumerError, match="not started"):
        await consumer.poll()
    await consumer.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, "group is empty"),
        ({"topics": ()}, "either topics or topic_pattern"),
        ({"topic_pattern": "x"}, "either topics or topic_pattern"),
        ({"topics": (), "topic_pattern": "("}, "no regular expression"),
        ({"heartbeat_interval": 30.0}, "must be shorter than session_timeout"),
        ({"bootstrap_servers": " "}, "bootstrap_servers is empty"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "needs sasl_username"),
    ],
)
def test_impossible_settings_are_refused_when_they_are_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        ConsumerConfig(**({"group": "g", "topics": ("t",)} | options))


def test_a_certificate_that_cannot_be_read_is_named() -> None:
    config = ConnectionConfig(security_protocol="SSL", ssl_cafile="/nowhere/ca.pem")
    with pytest.raises(SettingsError, match=r"cannot load TLS files /nowhere/ca\.pem"):
        config.client_options()


def test_passwords_are_not_shown() -> None:
    config = ConnectionConfig(
        security_protocol="SASL_SSL", sasl_username="kmr", sasl_password="secret"
    )
    assert "secret" not in repr(config)
    assert config.client_options()["sasl_plain_password"] == "secret"
