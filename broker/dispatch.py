"""From the bytes of a request to its handler and back: which APIs are served, in which versions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import structlog
from kio.schema.errors import ErrorCode

from broker.api import (
    ANONYMOUS,
    AdvertisedVersions,
    Api,
    CloseConnection,
    RawApi,
    RawResponse,
    RequestContext,
)
from broker.apis import (
    acls,
    auth,
    client_quotas,
    cluster,
    configs,
    describe_transactions,
    epochs,
    fetch,
    groups,
    list_offsets,
    metadata,
    produce,
    producers,
    quorum,
    topics,
    transaction_markers,
    transactions,
    users,
    versions,
)
from broker.apis.guards import guarded
from broker.apis.throttling import throttled
from broker.unsupported import unsupported_feature
from broker.wire.cursor import MalformedRequest
from broker.wire.error_codes import error_codes
from broker.wire.header import read_request_header, skip_header_tags
from broker.wire.messages import (
    default_message,
    has_field,
    read_message,
    recast,
    request_type,
    response_type,
    write_message,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from broker.api import Services
    from broker.security.sasl import SaslExchange
    from broker.telemetry.requests import RequestMeter

__all__ = ["SERVED", "Answer", "Client", "Dispatcher", "advertised_versions"]

logger = structlog.get_logger(__name__)

AnyApi: TypeAlias = Api[Any, Any] | RawApi

SERVED: Sequence[AnyApi] = (
    *produce.APIS,
    *fetch.APIS,
    *list_offsets.APIS,
    *metadata.APIS,
    *groups.APIS,
    *versions.APIS,
    *topics.APIS,
    *producers.APIS,
    *transactions.APIS,
    *transaction_markers.APIS,
    *describe_transactions.APIS,
    *epochs.APIS,
    *configs.APIS,
    *cluster.APIS,
    *auth.APIS,
    *acls.APIS,
    *quorum.APIS,
    *users.APIS,
    *client_quotas.APIS,
)
"""Every API of this broker."""


def advertised_versions(apis: Sequence[AnyApi]) -> list[AdvertisedVersions]:
    """The versions of each API, which may be spread over several handlers."""
    ranges: dict[int, tuple[int, int]] = {}
    for api in apis:
        low, high = ranges.get(api.key, (api.min_version, api.max_version))
        ranges[api.key] = (min(low, api.min_version), max(high, api.max_version))
    return [AdvertisedVersions(key, *ranges[key]) for key in sorted(ranges)]


class Client:
    """Who sent the requests of a connection, and how it reaches this broker.

    `sasl` is its authentication, as long as that is not over; `mute` stops listening to it.
    """

    __slots__ = ("contexts", "host", "mute", "node_host", "node_port", "principal", "sasl")

    def __init__(
        self, host: str, node_host: str, node_port: int, *, mute: Callable[[float], None]
    ) -> None:
        self.host = host
        self.node_host = node_host
        self.node_port = node_port
        self.mute = mute
        self.principal = ANONYMOUS
        self.sasl: SaslExchange | None = None
        self.contexts: dict[tuple[int, int], RequestContext] = {}


class Answer(NamedTuple):
    """The answer to one request, or who will give it; `flexible` selects the response's header.

    A bare message of SASL has no correlation id. `meter` counts the requests of this API.
    """

    correlation_id: int | None
    flexible: bool
    response: RawResponse | Awaitable[RawResponse]
    meter: RequestMeter


@dataclass(frozen=True, slots=True)
class _Route:
    """One version of one API."""

    flexible_request: bool
    flexible_response: bool
    max_bytes: int
    handle: Callable[[RequestContext, memoryview], RawResponse | Awaitable[RawResponse]]
    meter: RequestMeter


class Dispatcher:
    """Hands requests to their handlers; one per broker."""

    def __init__(self, apis: Sequence[AnyApi], services: Services) -> None:
        self._apis = {
            (api.key, version): _secured(api, services)
            for api in apis
            for version in range(api.min_version, api.max_version + 1)
        }
        self._services = services
        self._routes: dict[tuple[int, int], _Route] = {}  # made at their first request

    def dispatch(self, frame: memoryview, client: Client) -> Answer:
        """Handle one request.

        Raises CloseConnection, with the reason, when the request cannot be answered.
        """
        try:
            return self._dispatch(frame, client)
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from None
        except CloseConnection:
            raise
        except Exception as error:
            logger.exception("request failed", client_host=client.host)
            raise CloseConnection("the request failed") from error

    def _dispatch(self, frame: memoryview, client: Client) -> Answer:
        if client.sasl is not None and client.sasl.bare_tokens:
            answer = auth.answer_bare(client.sasl, frame)
            meter = self._services.requests.of(auth.AUTHENTICATE)
            return Answer(None, flexible=False, response=answer, meter=meter)
        key, version, correlation_id, client_id, body = read_request_header(frame)
        if client.sasl is not None and key not in auth.BEFORE_AUTHENTICATION:
            raise CloseConnection(f"a request of API {key} came before the client authenticated")
        route = self._routes.get((key, version)) or self._make_route(key, version)
        if route is None:
            return self._unknown(key, version, correlation_id)
        if len(frame) > route.max_bytes:
            raise CloseConnection(
                f"a request of API {key} has {len(frame)} bytes, more than {route.max_bytes}"
            )
        if route.flexible_request:
            body = skip_header_tags(frame, body)
        context = client.contexts.get((key, version))
        if context is None or context.client_id != client_id:
            context = RequestContext(
                client_id=client_id,
                client_host=client.host,
                node_host=client.node_host,
                node_port=client.node_port,
                api_key=key,
                api_version=version,
                principal=client.principal,
                services=self._services,
                sasl=client.sasl,
                mute=client.mute,
            )
            client.contexts[key, version] = context
        response = route.handle(context, frame[body:])
        return Answer(correlation_id, route.flexible_response, response, route.meter)

    def _make_route(self, key: int, version: int) -> _Route | None:
        api = self._apis.get((key, version))
        if api is None:
            return None
        settings = self._services.settings
        if key == produce.KEY and version < produce.FIRST_SERVED_VERSION:
            flexible_request = flexible_response = False
        else:
            flexible_request = _header_version(request_type(key, version)) == 2
            flexible_response = _header_version(response_type(key, version)) == 1
        route = _Route(
            flexible_request=flexible_request,
            flexible_response=flexible_response,
            max_bytes=(
                settings.request_max_bytes
                if key == produce.KEY
                else settings.control_request_max_bytes
            ),
            handle=(
                partial(_handle_raw, api) if isinstance(api, RawApi) else partial(_handle, api)
            ),
            meter=self._services.requests.of(key),
        )
        self._routes[key, version] = route
        return route

    def _unknown(self, key: int, version: int, correlation_id: int) -> Answer:
        """An unknown version of ApiVersions is answered in version 0, all else not at all (KIP-511)."""
        if key != versions.KEY:
            feature = unsupported_feature(key)
            raise CloseConnection(
                f"API {key} version {version} is not served" + (f": {feature}" if feature else "")
            )
        response = recast(versions.unsupported_version(self._services), response_type(key, 0))
        meter = self._services.requests.of(key)
        meter.errors.update(error_codes(response))
        return Answer(correlation_id, flexible=False, response=write_message(response), meter=meter)


def _secured(api: AnyApi, services: Services) -> AnyApi:
    """The same API, for those who may use it, and as much as they may."""
    if services.authorizer is not None and isinstance(api, Api):
        api = guarded(api)
    if services.quotas is not None and isinstance(api, RawApi):
        api = throttled(api, services.quotas, services.metrics)
    return api


def _handle_raw(
    api: RawApi, context: RequestContext, body: memoryview
) -> RawResponse | Awaitable[RawResponse]:
    response = api.handler(context, body)
    return _guard(context, response) if iscoroutine(response) else response


async def _guard(context: RequestContext, response: Awaitable[RawResponse]) -> RawResponse:
    try:
        return await response
    except CloseConnection:
        raise
    except Exception as error:
        _report(context, error)
        raise CloseConnection("the request failed") from error


def _handle(
    api: Api[Any, Any], context: RequestContext, body: memoryview
) -> RawResponse | Awaitable[RawResponse]:
    request = recast(read_message(request_type(api.key, context.api_version), body), api.request)
    try:
        response = api.handler(context, request)
    except CloseConnection:
        raise
    except Exception as error:  # noqa: BLE001  the broker lives on
        return _internal_error(api, context, error)
    if iscoroutine(response):
        return _handle_later(api, context, response)
    return _encode(api, context, response)


async def _handle_later(
    api: Api[Any, Any], context: RequestContext, response: Awaitable[Any]
) -> RawResponse:
    try:
        return _encode(api, context, await response)
    except CloseConnection:
        raise
    except Exception as error:  # noqa: BLE001  the broker lives on
        return _internal_error(api, context, error)


def _encode(api: Api[Any, Any], context: RequestContext, response: Any) -> bytes:
    for code in error_codes(response):
        context.services.requests.of(api.key).errors[code] += 1
    return write_message(recast(response, response_type(api.key, context.api_version)))


def _internal_error(api: Api[Any, Any], context: RequestContext, error: Exception) -> bytes:
    """Report a bug: to the operator, and to the client if its response has a place for errors."""
    _report(context, error)
    if not has_field(api.response, "error_code"):
        raise CloseConnection("the request failed, and its response has no place for an error")
    return _encode(
        api, context, default_message(api.response, error_code=ErrorCode.unknown_server_error)
    )


def _report(context: RequestContext, error: Exception) -> None:
    logger.error(
        "request failed",
        exc_info=error,
        api_key=context.api_key,
        api_version=context.api_version,
        client_id=context.client_id,
        client_host=context.client_host,
    )


def _header_version(message_type: Any) -> int:
    return int(message_type.__header_schema__.__version__)
