"""From a worker's settings to those of its Kafka clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework.kafka.connection import ConnectionConfig, ConsumerConfig

if TYPE_CHECKING:
    from framework.settings import GroupSettings, Settings

__all__ = ["connection_config", "consumer_config"]


def connection_config(settings: Settings | GroupSettings) -> ConnectionConfig:
    """How to reach the brokers, for producers and admin clients. Raises SettingsError."""
    return ConnectionConfig(**_connection(settings))


def consumer_config(settings: Settings) -> ConsumerConfig:
    """What to read, and how, for the worker's consumer. Raises SettingsError."""
    return ConsumerConfig(
        group=settings.group,
        topics=settings.topics,
        group_instance_id=settings.group_instance_id,
        auto_offset_reset=settings.auto_offset_reset,
        on_out_of_range=settings.on_out_of_range,
        isolation_level=settings.isolation_level,
        max_partition_fetch_bytes=settings.fetch.max_partition_bytes,
        fetch_max_bytes=settings.fetch.max_bytes,
        fetch_max_wait=settings.fetch.max_wait,
        session_timeout=settings.session_timeout,
        heartbeat_interval=settings.heartbeat_interval,
        metadata_max_age=settings.metadata_max_age,
        rebalance_timeout=settings.rebalance_timeout,
        **_connection(settings),
    )


def _connection(settings: Settings | GroupSettings) -> dict[str, Any]:
    security = settings.security
    return {
        "bootstrap_servers": settings.bootstrap_servers,
        "client_id": settings.client_id,
        "security_protocol": security.protocol,
        "sasl_mechanism": security.sasl_mechanism,
        "sasl_username": security.sasl_user,
        "sasl_password": security.sasl_password,
        "ssl_cafile": security.ssl_cafile,
        "ssl_certfile": security.ssl_certfile,
        "ssl_keyfile": security.ssl_keyfile,
        "ssl_check_hostname": security.ssl_check_hostname,
    }
