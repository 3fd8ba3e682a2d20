"""Hand the bytes of a request to the handler of its API and version, and return those of the response.

A request of an older version is converted to the handler's version, and the response back to the client's.
Access rules are applied here, when the broker has any."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from inspect import iscoroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog
from anyio import to_thread
from kio.schema.errors import ErrorCode

from ..apis.access import authorized
from ..apis.api import (
    SMALL_BYTES,
    Api,
    Borrowing,
    CloseConnection,
    Deferred,
    RawApi,
    RawResponse,
    RequestContext,
)
from ..apis.catalogue import unsupported_feature
from ..apis.cluster import handshake
from ..apis.records import produce
from ..authorization.rules import ANONYMOUS
from ..protocol.cursor import MalformedRequest
from ..protocol.headers import (
    CLIENT_ID_AT,
    CORRELATION_ID_AT,
    RequestHeader,
    read_correlation_id,
    read_request_header,
    skip_header_tags,
)
from ..protocol.messages import (
    default_message,
    error_codes,
    has_field,
    read_message,
    recast,
    request_type,
    response_type,
    write_message,
)
from ..turns import SLICE_SECONDS
from .faults import Faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..apis.api import AnyApi, AnyResponse, Services
    from ..apis.meters import RequestMeter
    from ..authorization.sasl import SaslExchange
    from ..listeners import Listener


logger = structlog.get_logger(__name__)

_MOST_HEADERS = 32  # of one client: it uses a version of each API
_MOST_HEADER_BYTES = 512  # longer ones, by their client id or tags, are read each time


class Client:
    """The client of a connection, with the listener and the address by which it reaches this broker.

    `sasl` is its authentication, until that is complete. `close` closes its connection and logs a reason.
    `headers` has the last header of each API and version that it used, by the bytes of the two.
    """

    __slots__ = (
        *("close", "headers", "host", "listener", "node_host", "node_port", "principal"),
        "sasl",
    )

    def __init__(
        self,
        listener: Listener,
        host: str,
        *,
        close: Callable[[str], None],
    ) -> None:
        self.listener = listener
        self.host = host
        self.node_host = ""
        self.node_port = 0
        self.close = close
        self.principal = ANONYMOUS
        self.sasl: SaslExchange | None = None
        self.headers: dict[bytes, _Header] = {}


class PendingResponse(msgspec.Struct):
    """The response to one request, or an awaitable of it; `flexible` selects the response's header.

    A bare SASL message has no correlation id. `meter` counts the requests of this API. `began`: when the
    request was received, in monotonic seconds.
    """

    correlation_id: int | None
    flexible: bool
    response: AnyResponse
    meter: RequestMeter
    began: float


@dataclass(frozen=True, slots=True)
class _Route:
    """One version of one API."""

    flexible_request: bool
    flexible_response: bool
    max_bytes: int
    handle: Callable[[RequestContext, memoryview], AnyResponse]
    meter: RequestMeter


class _Header(NamedTuple):
    """What a header means; the next one differs in its correlation id only, with most clients.

    `rest`: the bytes between the correlation id and the message, which begins at `body`.
    """

    rest: bytes
    body: int
    route: _Route
    context: RequestContext


class Dispatcher:
    """The routes from requests to handlers; one per broker."""

    def __init__(
        self, apis: Sequence[AnyApi], services: Services, faults: Faults | None = None
    ) -> None:
        self._apis = {
            (api.key, version): _restricted(api, services)
            for api in apis
            for version in range(api.min_version, api.max_version + 1)
        }
        self._services = services
        self._faults = faults or Faults()
        self._routes: dict[tuple[int, int], _Route] = {}  # built at the first request

    def dispatch(self, frame: memoryview, client: Client, began: float) -> PendingResponse:
        """Handle one request. Raise CloseConnection, with the reason, if it cannot be answered."""
        try:
            header = None
            if client.sasl is None:
                header = client.headers.get(bytes(frame[:CORRELATION_ID_AT]))
            if header is None or frame[CLIENT_ID_AT : header.body] != header.rest:
                read = self._read_header(frame, client, began)
                if isinstance(read, PendingResponse):
                    return read
                header = read
            _, body, route, context = header
            if len(frame) > route.max_bytes:
                raise CloseConnection(
                    f"a request of API {context.api_key} has {len(frame)} bytes, more than"
                    f" {route.max_bytes}"
                )
            if self._faults.injected:
                response = self._faults.handle(context, frame[body:], route.handle)
            else:
                response = route.handle(context, frame[body:])
            correlation_id = read_correlation_id(frame)
            return PendingResponse(
                correlation_id, route.flexible_response, response, route.meter, began
            )
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from None
        except CloseConnection:
            raise
        except Exception as error:
            logger.exception("request failed", client_host=client.host)
            raise CloseConnection("the request failed") from error

    def _read_header(
        self, frame: memoryview, client: Client, began: float
    ) -> _Header | PendingResponse:
        """Read a header that differs from the last one; return the answer instead if no handler gives it."""
        if client.sasl is not None and client.sasl.bare_tokens:
            response = handshake.answer_bare(client.sasl, frame)
            meter = self._services.requests.of(handshake.AUTHENTICATE)
            return PendingResponse(
                None, flexible=False, response=response, meter=meter, began=began
            )
        read = read_request_header(frame)
        key, version = read.api_key, read.api_version
        if client.sasl is not None and key not in handshake.BEFORE_AUTHENTICATION:
            raise CloseConnection(f"a request of API {key} came before the client authenticated")
        route = self._routes.get((key, version)) or self._make_route(key, version)
        if route is None:
            return self._unknown(key, version, read.correlation_id, began)
        return self._remember(frame, client, read, route)

    def _remember(
        self, frame: memoryview, client: Client, read: RequestHeader, route: _Route
    ) -> _Header:
        """Remember what a header means."""
        body = skip_header_tags(frame, read.body) if route.flexible_request else read.body
        context = RequestContext(
            client_id=read.client_id,
            client_host=client.host,
            listener=client.listener,
            node_host=client.node_host,
            node_port=client.node_port,
            api_key=read.api_key,
            api_version=read.api_version,
            principal=client.principal,
            services=self._services,
            sasl=client.sasl,
            close=client.close,
        )
        header = _Header(bytes(frame[CLIENT_ID_AT:body]), body, route, context)
        if len(header.rest) <= _MOST_HEADER_BYTES:
            if len(client.headers) >= _MOST_HEADERS:
                client.headers.clear()
            client.headers[bytes(frame[:CORRELATION_ID_AT])] = header
        return header

    def _make_route(self, key: int, version: int) -> _Route | None:
        api = self._apis.get((key, version))
        if api is None:
            return None
        settings = self._services.node.settings
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
            handle=_raw(api) if isinstance(api, RawApi) else partial(_handle, api),
            meter=self._services.requests.of(key),
        )
        self._routes[key, version] = route
        return route

    def _unknown(
        self, key: int, version: int, correlation_id: int, began: float
    ) -> PendingResponse:
        """Answer an unknown version of ApiVersions in version 0 (KIP-511), nothing else."""
        if key != handshake.API_VERSIONS:
            feature = unsupported_feature(key)
            raise CloseConnection(
                f"API {key} version {version} is not served" + (f": {feature}" if feature else "")
            )
        served = handshake.served_versions(self._services, ErrorCode.unsupported_version)
        response = recast(served, response_type(key, 0))
        meter = self._services.requests.of(key)
        meter.errors.update(error_codes(response))
        encoded = write_message(response)
        return PendingResponse(
            correlation_id, flexible=False, response=encoded, meter=meter, began=began
        )


def _restricted(api: AnyApi, services: Services) -> AnyApi:
    """Add authorization to an API."""
    if services.authorizer is not None and isinstance(api, Api):
        api = authorized(api)
    return api


def _raw(api: RawApi) -> Callable[[RequestContext, memoryview], AnyResponse]:
    """Return the handler of an API that reads and writes its messages itself."""
    handler = api.handler

    def handle(context: RequestContext, body: memoryview) -> AnyResponse:
        try:
            response = handler(context, body)
        except (CloseConnection, MalformedRequest):
            raise
        except Exception as error:  # noqa: BLE001  a bug in one handler must not stop the broker
            return _internal_error(api, context, error)
        if isinstance(response, Deferred):
            return response
        if isinstance(response, Borrowing):
            return Borrowing(_handle_later(api, context, response.response))
        if iscoroutine(response):
            return _handle_later(api, context, response)
        return response

    return handle


def _handle(api: Api, context: RequestContext, body: memoryview) -> AnyResponse:
    if len(body) > SMALL_BYTES:
        return _handle_large(api, context, bytes(body))
    request = _read(api, context, body)
    try:
        response = api.handler(context, request)
    except (CloseConnection, MalformedRequest):
        raise
    except Exception as error:  # noqa: BLE001  a bug in one handler must not stop the broker
        return _internal_error(api, context, error)
    if iscoroutine(response):
        return _handle_later(api, context, response)
    return _encode(api, context, response)


def _read(api: Api, context: RequestContext, body: memoryview) -> Any:
    message_type = request_type(api.key, context.api_version)
    return recast(read_message(message_type, body, context.services.max_elements), api.request)


async def _handle_large(api: Api, context: RequestContext, body: bytes) -> RawResponse:
    """Handle a request with many elements: reading it takes long, and runs in another thread."""
    limiter = context.services.computing
    try:
        request = await to_thread.run_sync(_read, api, context, memoryview(body), limiter=limiter)
    except MalformedRequest as error:
        raise CloseConnection(str(error)) from None

    async def answer() -> Any:
        response = api.handler(context, request)
        return await response if iscoroutine(response) else response

    return await _handle_later(api, context, answer())


async def _handle_later(
    api: AnyApi, context: RequestContext, response: Awaitable[Any]
) -> RawResponse:
    began = monotonic()
    try:
        answer = await response
        if isinstance(api, RawApi) or monotonic() - began < SLICE_SECONDS:
            return _encode(api, context, answer)
        # It is long, or the request waited: then another moment does not matter.
        codes, encoded = await to_thread.run_sync(
            _write, api, context.api_version, answer, limiter=context.services.computing
        )
        context.services.requests.of(api.key).errors.update(codes)
        return encoded
    except CloseConnection:
        raise
    except MalformedRequest as error:
        raise CloseConnection(str(error)) from None
    except Exception as error:  # noqa: BLE001  a bug in one handler must not stop the broker
        return _internal_error(api, context, error)


def _encode(api: AnyApi, context: RequestContext, response: Any) -> RawResponse:
    if isinstance(api, RawApi):
        raw: RawResponse = response
        return raw
    codes, encoded = _write(api, context.api_version, response)
    context.services.requests.of(api.key).errors.update(codes)
    return encoded


def _write(api: Api, version: int, response: Any) -> tuple[list[int], bytes]:
    """Return the response's error codes, and its bytes."""
    codes = list(error_codes(response))
    return codes, write_message(recast(response, response_type(api.key, version)))


def _internal_error(api: AnyApi, context: RequestContext, error: Exception) -> RawResponse:
    """Log a bug, and tell the client if the response has a field for an error code."""
    logger.error(
        "request failed",
        exc_info=error,
        api_key=context.api_key,
        api_version=context.api_version,
        client_id=context.client_id,
        client_host=context.client_host,
    )
    if isinstance(api, RawApi) or not has_field(api.response, "error_code"):
        raise CloseConnection("the request failed") from error
    return _encode(
        api, context, default_message(api.response, error_code=ErrorCode.unknown_server_error)
    )


def _header_version(message_type: Any) -> int:
    return int(message_type.__header_schema__.__version__)
