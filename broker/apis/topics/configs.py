"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings.

Topics, the broker and groups of KIP-848 have settings.

DescribeConfigs 1 to 4: KIP-133, KIP-226 (synonyms), KIP-569 (types and documentation). AlterConfigs 0 to 2
(KIP-133) replaces all settings of a topic, IncrementalAlterConfigs 0 to 1 (KIP-339) changes single ones; both
take effect at once. ListConfigResources 0 to 1 (KIP-1142).

Differs from Kafka: client metrics have no settings, groups two; the broker's cannot change while it runs.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from kmr.config.schema import settings_of

from ...authorization.rules import Operation, Resource
from ...errors import RequestError
from ...topics.setting_values import ConfigType
from ...topics.topic import check_topic_name
from ...topics.topic_config import (
    TOPIC_SETTINGS,
    ConfigEntry,
    ConfigSource,
    Synonym,
    default_log_config,
    describe_topic_config,
)
from ...turns import in_turns
from .. import entities
from ..access import Access, Need
from ..api import NO_THROTTLE, ElementResult, api, attempt, check_listed_once, result_or_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ...settings import BrokerSettings
    from ..access import Call
    from ..api import RequestContext


class _ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    GROUP = 32


_CLIENT_METRICS: Final = 16
_KAFKAS_RESOURCE_TYPES: Final = {2, 4, 8, _CLIENT_METRICS, 32}


# -- DescribeConfigs and ListConfigResources -------------------------------------------------------


def _needs(operation: Operation, _: Call, resource: Any) -> Iterable[Need]:
    if resource.resource_type == _ResourceType.TOPIC:
        return [Need(operation, Resource.TOPIC, resource.resource_name)]
    if resource.resource_type == _ResourceType.GROUP:
        return [Need(operation, Resource.GROUP, resource.resource_name)]
    return [Need(operation, Resource.CLUSTER)]


@api(
    "DescribeConfigs",
    min_version=1,
    max_version=4,
    access=Access(each=("resources", partial(_needs, Operation.DESCRIBE_CONFIGS))),
)
async def _describe_configs(
    context: RequestContext, request: entities.DescribeConfigsRequest
) -> entities.DescribeConfigsResponse:
    results = [_describe(context, request, each) async for each in in_turns(request.resources)]
    return entities.DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


def _describe(
    context: RequestContext,
    request: entities.DescribeConfigsRequest,
    resource: entities.DescribeConfigsResource,
) -> entities.DescribeConfigsResult:
    found = result_or_refusal(_entries, context, resource)
    outcome, entries = (found, []) if isinstance(found, ElementResult) else (ElementResult(), found)
    keys = set(resource.configuration_keys or ())
    return entities.DescribeConfigsResult(
        error_code=outcome.code,
        error_message=outcome.message or "",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(_shown(each, request) for each in entries if not keys or each.name in keys),
    )


def _entries(
    context: RequestContext, resource: entities.DescribeConfigsResource
) -> list[ConfigEntry]:
    name = resource.resource_name
    if int(resource.resource_type) == _ResourceType.TOPIC:
        topics = context.services.topics
        topic = topics.get(name)
        if topic is None:
            check_topic_name(name)
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return describe_topic_config(topic.settings, topics.defaults)
    if int(resource.resource_type) == _ResourceType.BROKER:
        _check_broker(context, name)
        found = [*_listener_settings(context), *_broker_settings(context.services.node.settings)]
        return sorted(found, key=lambda entry: entry.name)
    if int(resource.resource_type) == _ResourceType.GROUP:
        if not name:
            _refuse("Group name must not be empty")
        return context.services.groups.own.describe(name)
    raise RequestError(
        ErrorCode.invalid_request,
        f"resource type {resource.resource_type} has no settings here: use topics (2), brokers (4)"
        " or groups (32)",
    )


def _check_broker(context: RequestContext, name: str) -> None:
    """Raise RequestError unless `name` is this node, or "", which means every node."""
    if name not in {str(context.node_id), ""}:
        _refuse(f"there is no broker {name!r}, only {context.node_id}")


def _shown(
    entry: ConfigEntry, request: entities.DescribeConfigsRequest
) -> entities.DescribeConfigsResourceResult:
    """Leave out synonyms and documentation unless the request includes them."""
    synonyms = entry.listed if request.include_synonyms else ()
    return entities.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=i8(entry.source),
        is_sensitive=False,
        synonyms=tuple(
            entities.DescribeConfigsSynonym(
                name=each.name, value=each.value, source=i8(each.source)
            )
            for each in synonyms
        ),
        config_type=i8(entry.type),
        documentation=entry.documentation if request.include_documentation else None,
    )


@api(
    "ListConfigResources",
    max_version=1,
    access=Access(whole=[(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)]),
)
async def _list_config_resources(
    context: RequestContext, request: entities.ListConfigResourcesRequest
) -> entities.ListConfigResourcesResponse:
    """List the resources of the types in the request, or of all types; version 0 has client metrics only."""
    if context.api_version:
        wanted = {int(each) for each in request.resource_types} or _KAFKAS_RESOURCE_TYPES
    else:
        wanted = {_CLIENT_METRICS}
    found = [
        *((_ResourceType.TOPIC, topic.name) for topic in context.services.topics),
        (_ResourceType.BROKER, str(context.node_id)),
        *((_ResourceType.GROUP, group_id) for group_id in context.services.groups.own),
    ]
    known = wanted <= _KAFKAS_RESOURCE_TYPES
    return entities.ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if known else ErrorCode.unsupported_version,
        config_resources=tuple(
            [
                entities.ConfigResource(resource_name=name, resource_type=i8(kind))
                async for kind, name in in_turns(found)
                if known and kind in wanted
            ]
        ),
    )


# -- the broker's settings, by Kafka's names --------------------------------------------------------

_BROKER_SETTINGS: Final[Mapping[ConfigType, Mapping[str, str]]] = {
    ConfigType.BOOLEAN: {"auto.create.topics.enable": "auto_create_topics"},
    ConfigType.INT: {
        "broker.id": "node_id",
        "fetch.max.bytes": "fetch_max_bytes",
        "group.consumer.heartbeat.interval.ms": "group_consumer_heartbeat_interval",
        "group.consumer.max.size": "group_consumer_max_size",
        "group.consumer.session.timeout.ms": "group_consumer_session_timeout",
        "group.initial.rebalance.delay.ms": "group_initial_rebalance_delay",
        "group.max.session.timeout.ms": "group_max_session_timeout",
        "group.max.size": "group_max_size",
        "group.min.session.timeout.ms": "group_min_session_timeout",
        "max.connections": "max_connections",
        "node.id": "node_id",
        "num.partitions": "default_partitions",
        "offset.metadata.max.bytes": "offset_metadata_max_bytes",
        "producer.id.expiration.ms": "producer_id_expiration_seconds",
        "socket.request.max.bytes": "request_max_bytes",
        "transaction.max.timeout.ms": "transaction_max_timeout",
        "transactional.id.expiration.ms": "transactional_id_expiration_seconds",
    },
    ConfigType.LIST: {"log.dirs": "data_dir"},
    ConfigType.LONG: {
        "connections.max.idle.ms": "connection_idle_seconds",
        "connections.max.reauth.ms": "authentication_lifetime",
        "log.cleaner.backoff.ms": "compaction_check_interval",
        "log.retention.check.interval.ms": "retention_check_interval",
        "offsets.retention.ms": "offsets_retention_seconds",
    },
}
"""By type and Kafka's name: the field of `BrokerSettings`, which has the documentation."""


def _listener_settings(context: RequestContext) -> Iterator[ConfigEntry]:
    """Return the settings that say where clients connect to; this client's listener as it was reached."""
    listeners = context.services.node.listeners
    here = f"[{context.node_host}]" if ":" in context.node_host else context.node_host
    reached = {context.listener.name: f"{here}:{context.node_port}"}
    bound = [f"{each.name}://{each.bound}" for each in listeners]
    advertised = [f"{each.name}://{reached.get(each.name, each.address)}" for each in listeners]
    protocols = [f"{each.name}:{each.protocol}" for each in listeners]
    for name, meaning, values in (
        ("listeners", "Where the broker listens.", bound),
        ("advertised.listeners", "Where clients connect to.", advertised),
        ("listener.security.protocol.map", "What clients of a listener speak.", protocols),
    ):
        kind = ConfigType.STRING if name.endswith("map") else ConfigType.LIST
        yield _entry(name, kind, meaning, ",".join(values))


def _broker_settings(settings: BrokerSettings) -> list[ConfigEntry]:
    """Return every other setting; none of them can be changed while the broker runs."""
    built_in = type(settings)(data_dir=settings.data_dir)
    documentation = {each.name: each.description for each in settings_of(type(settings))}
    entries = [
        _entry(name, kind, documentation[field], _value(settings, field), _value(built_in, field))
        for kind, named in _BROKER_SETTINGS.items()
        for name, field in named.items()
    ]
    entries += (
        _entry("default.replication.factor", ConfigType.INT, "There is one node.", "1", "1"),
        _entry("delete.topic.enable", ConfigType.BOOLEAN, "Topics can be deleted.", "true", "true"),
        _entry("min.insync.replicas", ConfigType.INT, "There is one replica.", "1", "1"),
        *_topic_defaults(settings, built_in),
    )
    return entries


def _value(settings: BrokerSettings, field: str) -> str:
    """Return a setting as Kafka writes it: seconds become milliseconds, None becomes -1."""
    value = getattr(settings, field)
    if value is None:
        return "-1"
    if isinstance(value, bool):
        return str(value).lower()
    return str(round(value * 1000) if isinstance(value, float) else value)


def _topic_defaults(settings: BrokerSettings, built_in: BrokerSettings) -> Iterator[ConfigEntry]:
    """Return the settings of topics without their own."""
    config, default = default_log_config(settings), default_log_config(built_in)
    for setting in TOPIC_SETTINGS.values():
        if setting.field:
            values = (str(getattr(each, setting.field)) for each in (config, default))
            yield _entry(setting.broker_name, setting.type, setting.documentation, *values)


def _entry(
    name: str, kind: ConfigType, documentation: str, value: str, default: str | None = None
) -> ConfigEntry:
    synonyms = [] if default is None else [Synonym(name, default, ConfigSource.DEFAULT)]
    if value != default:
        synonyms.insert(0, Synonym(name, value, ConfigSource.BROKER))
    return ConfigEntry(name, kind, documentation, tuple(synonyms), read_only=True)


# -- AlterConfigs and IncrementalAlterConfigs ------------------------------------------------------


class _Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_Settings = dict[str, str]


_ALTERS: Final = Access(each=("resources", partial(_needs, Operation.ALTER_CONFIGS)))


@api("AlterConfigs", max_version=2, access=_ALTERS)
async def _alter_configs(
    context: RequestContext, request: entities.AlterConfigsRequest
) -> entities.AlterConfigsResponse:
    return await _alter(context, request, _replacement)


@api("IncrementalAlterConfigs", max_version=1, access=_ALTERS)
async def _incremental_alter_configs(
    context: RequestContext, request: entities.IncrementalAlterConfigsRequest
) -> entities.AlterConfigsResponse:
    return await _alter(context, request, partial(_increment, context))


async def _alter(
    context: RequestContext,
    request: entities.AlterConfigsRequest | entities.IncrementalAlterConfigsRequest,
    change: Callable[[Any, Mapping[str, str]], _Settings],
) -> entities.AlterConfigsResponse:
    """Alter each resource: `change` returns its settings from the request's resource and its old settings."""
    topics = context.services.topics
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)

    async def alter(resource: Any) -> None:
        name = str(resource.resource_name)
        if times[resource.resource_type, resource.resource_name] > 1:
            _refuse(f"{name!r} is listed more than once; list it once")
        _check_alteration(context, resource)
        if resource.resource_type == _ResourceType.TOPIC and topics.get(name) is None:
            check_topic_name(name)
        if resource.resource_type == _ResourceType.BROKER:
            return  # every setting has its default, so deleting one changes nothing
        if resource.resource_type == _ResourceType.GROUP:
            groups = context.services.groups.own
            if request.validate_only:
                groups.check(change(resource, groups.own(name)))
            else:
                await groups.configure(name, partial(change, resource))
            return
        if request.validate_only:
            topic = topics.get(name)
            topics.check_settings(name, change(resource, topic.settings if topic else {}))
        else:
            await topics.configure(name, partial(change, resource))

    responses = []
    resources: tuple[Any, ...] = request.resources
    async for each in in_turns(resources):
        outcome = await attempt(
            alter(each), "a topic could not be configured", topic=each.resource_name
        )
        responses.append(
            entities.AlterConfigsResourceResponse(
                error_code=outcome.code,
                error_message=outcome.message,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
        )
    return entities.AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(responses))


def _check_alteration(context: RequestContext, resource: Any) -> None:
    """Raise RequestError for an invalid alteration, of a resource of either API."""
    given = [
        each
        for each in resource.configs
        if getattr(each, "config_operation", _Operation.SET) != _Operation.DELETE
    ]
    times = Counter(each.name for each in resource.configs)
    for name in times:
        check_listed_once(name, times)
    if nulls := [each.name for each in given if each.value is None]:
        _refuse(f"{', '.join(nulls)}: the value is null; give one")
    if resource.resource_type == _ResourceType.BROKER:
        _check_broker(context, resource.resource_name)
        if given:
            names = ", ".join(each.name for each in given)
            _refuse(
                f"{names}: the broker's settings cannot be changed while it runs; restart it with others,"
                " or change those of topics"
            )
    elif resource.resource_type == _ResourceType.TOPIC:
        if not resource.resource_name:
            _refuse("the topic name '' is empty")
    elif resource.resource_type == _ResourceType.GROUP:
        if not resource.resource_name:
            _refuse("Default group resources are not allowed.")
    else:
        _refuse(
            f"resource type {resource.resource_type} has no settings that can be changed here: use"
            " topics (2) or groups (32)"
        )


def _replacement(resource: Any, _: object) -> _Settings:
    return {each.name: each.value for each in resource.configs if each.value is not None}


def _increment(context: RequestContext, resource: Any, own: Mapping[str, str]) -> _Settings:
    changed = dict(own)
    for config in resource.configs:
        name, value = config.name, config.value or ""
        match config.config_operation:
            case _Operation.SET:
                changed[name] = value
            case _Operation.DELETE:
                changed.pop(name, None)
            case _Operation.APPEND | _Operation.SUBTRACT as operation:
                changed[name] = _edited_list(context, name, value, changed.get(name), operation)
            case operation:
                _refuse(f"{name}: unknown operation {operation}")
    return changed


def _edited_list(
    context: RequestContext, name: str, value: str, own: str | None, operation: int
) -> str:
    """Return the list with the elements added or removed; the broker's default if the topic has none."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None or setting.type != ConfigType.LIST:
        raise RequestError(
            ErrorCode.invalid_config,
            f"Can't {_Operation(operation).name} to key {name} because its type is not LIST.",
        )
    default = setting.unused or ""
    if setting.field:
        default = str(getattr(context.services.topics.defaults.brokers, setting.field))
    elements = _elements(default if own is None else own)
    given = _elements(value)
    if operation == _Operation.SUBTRACT:
        return ",".join(each for each in elements if each not in given)
    return ",".join([*elements, *(each for each in given if each not in elements)])


def _elements(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _refuse(message: str) -> NoReturn:
    raise RequestError(ErrorCode.invalid_request, message)


# -- access ----------------------------------------------------------------------------------------
