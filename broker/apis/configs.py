"""DescribeConfigs and ListConfigResources: settings of topics and of the broker.

Sources: KIP-133, KIP-226 (synonyms), KIP-569 (types and documentation), KIP-1142 (the list).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v1 import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kio.schema.list_config_resources.v1.response import ConfigResource
from kio.static.primitive import i8

from broker.api import Api
from broker.apis import alter_configs
from broker.apis.common import NO_THROTTLE, ResourceType, check_broker
from broker.broker_config import describe_broker_config
from broker.errors import RequestError
from broker.topics.config import describe_topic_config
from broker.topics.names import check_topic_name

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import DescribeConfigsResource

    from broker.api import RequestContext
    from broker.topics.config_entry import ConfigEntry

__all__ = ["APIS"]

_CLIENT_METRICS = 16
_RESOURCE_TYPES = {2, 4, 8, _CLIENT_METRICS, 32}
"""Kafka's; only topics and the broker have settings here."""


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
    entries: list[ConfigEntry] = []
    try:
        entries = _entries(context, resource)
    except RequestError as error:
        code, message = error.code, error.message
    keys = resource.configuration_keys
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(_shown(each, request) for each in entries if not keys or each.name in keys),
    )


def _entries(context: RequestContext, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    name = resource.resource_name
    if int(resource.resource_type) == ResourceType.TOPIC:
        topics = context.services.topics
        topic = topics.get(name)
        if topic is None:
            check_topic_name(name)
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return describe_topic_config(topic.settings, topics.defaults)
    if int(resource.resource_type) == ResourceType.BROKER:
        check_broker(context, name)
        settings = context.services.settings
        address = f"{settings.security_protocol}://{context.node_host}:{context.node_port}"
        return describe_broker_config(settings, address)
    raise RequestError(
        ErrorCode.invalid_request,
        f"resource type {resource.resource_type} has no settings here: ask for topics (2) or"
        " brokers (4)",
    )


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    """Only as much as was asked for."""
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=i8(entry.source),
        is_sensitive=False,
        synonyms=tuple(
            DescribeConfigsSynonym(name=each.name, value=each.value, source=i8(each.source))
            for each in synonyms
        ),
        config_type=i8(entry.type),
        documentation=entry.documentation if request.include_documentation else None,
    )


def _list_config_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """What has settings, of the types asked for, or all (KIP-1142)."""
    if not context.api_version:
        wanted = {_CLIENT_METRICS}
    else:
        wanted = {int(each) for each in request.resource_types} or _RESOURCE_TYPES
    found = [
        *((ResourceType.TOPIC, topic.name) for topic in context.services.topics),
        (ResourceType.BROKER, str(context.node_id)),
    ]
    known = wanted <= _RESOURCE_TYPES
    return ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if known else ErrorCode.unsupported_version,
        config_resources=tuple(
            ConfigResource(resource_name=name, resource_type=i8(kind))
            for kind, name in found
            if known and kind in wanted
        ),
    )


APIS = (
    Api(
        _list_config_resources,
        ListConfigResourcesRequest,
        ListConfigResourcesResponse,
        min_version=0,
    ),
    Api(_describe_configs, DescribeConfigsRequest, DescribeConfigsResponse, min_version=1),
    *alter_configs.APIS,
)
