"""AlterConfigs and IncrementalAlterConfigs: the settings of topics, changed while they are in use.

AlterConfigs (KIP-133) replaces all that a topic has of its own; IncrementalAlterConfigs (KIP-339)
changes single ones. The broker's own settings are those that it was started with.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from kio.schema.alter_configs.v2 import AlterConfigsRequest, AlterConfigsResponse
from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse as Replaced
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse as Changed,
)

from broker.api import Api
from broker.apis.common import NO_THROTTLE, STORAGE_FAILED, ResourceType, check_broker
from broker.errors import RequestError
from broker.topics.config_entry import ConfigType
from broker.topics.settings import TOPIC_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kio.schema.alter_configs.v2.request import AlterConfigsResource as Replacement
    from kio.schema.incremental_alter_configs.v1.request import AlterConfigsResource as Increment

    from broker.api import RequestContext

__all__ = ["APIS"]

logger = structlog.get_logger(__name__)


class _Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


Settings = dict[str, str]


class _Resource:
    """What is to be changed, with how its own settings change."""

    def __init__(self, resource: Any, change: Callable[[Mapping[str, str]], Settings]) -> None:
        """`resource`: of a request of either API."""
        self.key = (int(resource.resource_type), str(resource.resource_name))
        self.type, self.name = self.key
        self.change = change
        self._names: Sequence[str] = [each.name for each in resource.configs]
        given = [
            each
            for each in resource.configs
            if getattr(each, "config_operation", _Operation.SET) != _Operation.DELETE
        ]
        self._given: Sequence[str] = [each.name for each in given]
        self._nulls: Sequence[str] = [each.name for each in given if each.value is None]

    def check(self, context: RequestContext, times: int) -> None:
        """Raises RequestError for what no resource may be asked for."""
        twice = [name for name, count in Counter(self._names).items() if count > 1]
        if times > 1:
            raise _refused(f"{self.name!r} is in the request more than once")
        if twice:
            raise _refused(f"{', '.join(twice)}: in the request more than once")
        if self._nulls:
            raise _refused(f"{', '.join(self._nulls)}: a value is needed, not null")
        if self.type == ResourceType.BROKER:
            check_broker(context, self.name)
            if self._given:  # nothing was changed, so whatever is deleted is gone
                raise _refused(
                    f"{', '.join(self._given)}: the broker's settings cannot be changed while it runs;"
                    " start it with others, or set those of topics"
                )
        elif self.type != ResourceType.TOPIC:
            raise _refused(
                f"resource type {self.type} has no settings that can be changed here: topics (2) have"
            )


def _replacement(resource: Replacement, _: object) -> Settings:
    return {each.name: each.value for each in resource.configs if each.value is not None}


def _increment(
    context: RequestContext,
    resource: Increment,
    own: Mapping[str, str],
) -> Settings:
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
                raise _refused(f"{name}: there is no operation {operation}")
    return changed


def _edited_list(
    context: RequestContext, name: str, value: str, own: str | None, operation: int
) -> str:
    """The list with these elements more or less; it begins as the broker's default."""
    _need_setting(name)
    setting = TOPIC_SETTINGS[name]
    if setting.type != ConfigType.LIST:
        raise RequestError(
            ErrorCode.invalid_config,
            f"{name} is no list: it can be set, not added to or taken from",
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


def _need_setting(name: str) -> None:
    if name not in TOPIC_SETTINGS:
        raise RequestError(ErrorCode.invalid_config, f"unknown topic setting {name!r}")


async def _alter(
    context: RequestContext, resources: Sequence[_Resource], *, validate_only: bool
) -> list[tuple[ErrorCode, str | None]]:
    topics = context.services.topics
    times = Counter(each.key for each in resources)
    results: list[tuple[ErrorCode, str | None]] = []
    for resource in resources:
        try:
            resource.check(context, times[resource.key])
            if resource.type == ResourceType.TOPIC and validate_only:
                topic = topics.get(resource.name)
                own = topic.settings if topic else {}
                topics.check_settings(resource.name, resource.change(own))
            elif resource.type == ResourceType.TOPIC:
                await topics.configure(resource.name, resource.change)
        except RequestError as error:
            results.append((error.code, error.message))
        except OSError as error:
            logger.error("a topic could not be configured", topic=resource.name, error=str(error))
            results.append((ErrorCode.kafka_storage_error, STORAGE_FAILED))
        else:
            results.append((ErrorCode.none, None))
    return results


async def _alter_configs(
    context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    resources = [_Resource(each, partial(_replacement, each)) for each in request.resources]
    results = await _alter(context, resources, validate_only=request.validate_only)
    return AlterConfigsResponse(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            Replaced(
                error_code=code,
                error_message=message,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
            for each, (code, message) in zip(request.resources, results, strict=True)
        ),
    )


async def _incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    resources = [_Resource(each, partial(_increment, context, each)) for each in request.resources]
    results = await _alter(context, resources, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            Changed(
                error_code=code,
                error_message=message,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
            for each, (code, message) in zip(request.resources, results, strict=True)
        ),
    )


def _refused(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, message)


APIS = (
    Api(_alter_configs, AlterConfigsRequest, AlterConfigsResponse, min_version=0),
    Api(
        _incremental_alter_configs,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
        min_version=0,
    ),
)
