"""The Kafka clients get what the worker's settings say."""

from __future__ import annotations

from framework.kafka.clients import connection_config, consumer_config
from framework.settings import FetchSettings, GroupSettings, SecuritySettings, Settings


def test_the_consumer_reads_what_the_settings_say() -> None:
    config = consumer_config(
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
