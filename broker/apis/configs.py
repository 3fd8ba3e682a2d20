"""DescribeConfigs: the settings of topics and of the broker (KIP-133)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from broker.api import NODE_ID, Api
from broker.apis.common import NO_THROTTLE
from broker.errors import RequestError
from broker.topic_config import (
    TOPIC_SETTINGS,
    ConfigSource,
    ConfigType,
    setting_source,
    setting_value,
)

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import DescribeConfigsResource

    from broker.api import RequestContext
    from broker.settings import BrokerSettings

__all__ = ["APIS"]

_TOPIC = 2
_BROKER = 4


def _describe_configs(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(_describe(context, request, each) for each in request.resources),
    )


def _describe(
    context: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    code, message = ErrorCode.none, None
    configs: list[DescribeConfigsResourceResult] = []
    try:
        if resource.resource_type == _TOPIC:
            configs = _topic(context, resource.resource_name)
        elif resource.resource_type == _BROKER:
            configs = _broker(context, resource.resource_name)
        else:
            raise RequestError(
                ErrorCode.invalid_request,
                f"resource type {resource.resource_type} has no settings here: ask for topics (2)"
                " or brokers (4)",
            )
    except RequestError as error:
        code, message = error.code, error.message
    keys = resource.configuration_keys
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            _shown(config, request) for config in configs if not keys or config.name in keys
        ),
    )


def _shown(
    config: DescribeConfigsResourceResult, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    """Only as much as was asked for."""
    return replace(
        config,
        synonyms=config.synonyms if request.include_synonyms else (),
        documentation=config.documentation if request.include_documentation else None,
    )


def _topic(context: RequestContext, name: str) -> list[DescribeConfigsResourceResult]:
    topic = context.services.topics.get(name)
    if topic is None:
        raise RequestError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
    return [
        _config(
            setting.name,
            setting_value(setting, topic.config),
            setting.type,
            setting_source(setting, topic.settings),
            setting.documentation,
            read_only=bool(setting.fixed),
        )
        for setting in TOPIC_SETTINGS.values()
    ]


def _broker(context: RequestContext, name: str) -> list[DescribeConfigsResourceResult]:
    if name not in {str(NODE_ID), ""}:
        raise RequestError(
            ErrorCode.invalid_request, f"there is no broker {name!r}, only {NODE_ID}"
        )
    settings = context.services.settings
    defaults = _broker_values(type(settings)(data_dir=settings.data_dir))
    return [
        _config(
            name,
            value,
            kind,
            ConfigSource.DEFAULT if defaults[name] == (value, kind) else ConfigSource.BROKER,
            None,
            read_only=True,
        )
        for name, (value, kind) in _broker_values(settings).items()
    ]


def _broker_values(settings: BrokerSettings) -> dict[str, tuple[str, ConfigType]]:
    """The broker's settings by the names of Kafka's, as far as it has them."""

    def ms(seconds: float | None) -> tuple[str, ConfigType]:
        return str(-1 if seconds is None else round(seconds * 1000)), ConfigType.LONG

    def number(value: int | None) -> tuple[str, ConfigType]:
        return str(-1 if value is None else value), ConfigType.LONG

    auto_create = "true" if settings.auto_create_topics else "false"
    return {
        "auto.create.topics.enable": (auto_create, ConfigType.BOOLEAN),
        "broker.id": number(NODE_ID),
        "connections.max.idle.ms": ms(settings.connection_idle_seconds),
        "default.replication.factor": number(1),
        "fetch.max.bytes": number(settings.fetch_max_bytes),
        "group.initial.rebalance.delay.ms": ms(settings.group_initial_rebalance_delay),
        "group.max.session.timeout.ms": ms(settings.group_max_session_timeout),
        "group.max.size": number(settings.group_max_size),
        "group.min.session.timeout.ms": ms(settings.group_min_session_timeout),
        "log.dirs": (str(settings.data_dir), ConfigType.LIST),
        "log.index.interval.bytes": number(settings.index_interval_bytes),
        "log.retention.bytes": number(settings.retention_bytes),
        "log.retention.ms": ms(settings.retention_seconds),
        "log.roll.ms": ms(settings.segment_seconds),
        "log.segment.bytes": number(settings.segment_bytes),
        "max.connections": number(settings.max_connections),
        "message.max.bytes": number(settings.message_max_bytes),
        "num.partitions": number(settings.default_partitions),
        "offset.metadata.max.bytes": number(settings.offset_metadata_max_bytes),
        "socket.request.max.bytes": number(settings.request_max_bytes),
    }


def _config(
    name: str,
    value: str,
    kind: ConfigType,
    source: ConfigSource,
    documentation: str | None,
    *,
    read_only: bool,
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=read_only,
        config_source=i8(source),
        is_sensitive=False,
        synonyms=(DescribeConfigsSynonym(name=name, value=value, source=i8(source)),),
        config_type=i8(kind),
        documentation=documentation,
    )


APIS = (Api(_describe_configs, DescribeConfigsRequest, DescribeConfigsResponse, min_version=1),)
