"""Hand the bytes of a request to the handler of its API and version, and return those of the response.

A request of an older version is converted to the handler's version, and the response back to the client's.
Access rules are applied here, when the broker has any."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from inspect import iscoroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from ..apis.access import authorized
from ..apis.api import SMALL_BYTES, Api, CloseConnection, Reply, RequestContext
from ..apis.catalogue import unsupported_feature
from ..apis.cluster import handshake
from ..apis.records import produce
from ..authorization.rules import ANONYMOUS
from ..protocol.cursor import MalformedRequest
from ..protocol.headers import (
    CLIENT_ID_AT,
    CORRELATION_ID_AT,
    LENGTH,
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

    from ..apis.api import AnyApi, Services
    from ..apis.meters import RequestMeter
    from ..authorization.sasl import SaslExchange
    from ..listeners import Listener


logger = structlog.get_logger(__name__)

_MOST_HEADERS = 32  # of one client: it uses a version of each API
_MOST_HEADER_BYTES = 512  # longer ones, by their client id or tags, are read each time


class Client:
    """The client of a connection, with the listener and the address by which it reaches this broker.

    `sasl` is its authentication, until that is complete; `session` the complete one, if it has to be renewed
    after a time. `close` closes its connection and logs a reason.
    `headers` has the last header of each API and version that it used, by the bytes of the two; `repeater`
    takes its repeated Produce requests.
    """

    __slots__ = (
        *("close", "headers", "host", "listener", "node_host", "node_port", "principal"),
        *("repeater", "sasl", "session"),
    )

    def __init__(self, listener: Listener, host: str, *, close: Callable[[str], None]) -> None:
        self.listener = listener
        self.host = host
        self.node_host = ""
        self.node_port = 0
        self.close = close
        self.principal = ANONYMOUS
        self.sasl: SaslExchange | None = None
        self.session: SaslExchange | None = None
        self.headers: dict[bytes, _Header] = {}
        self.repeater: produce.Repeater | None = None


@dataclass(frozen=True, slots=True)
class _Route:
    """One version of one API."""

    flexible_request: bool
    flexible_response: bool
    max_bytes: int
    handle: Callable[[RequestContext, memoryview], Reply]
    meter: RequestMeter


class _Header(NamedTuple):
    """What a header means; the next one differs in its correlation id only, with most clients.

    The message begins at `body`.
    """

    body: int
    route: _Route
    context: RequestContext


class Dispatcher:
    """The routes from requests to handlers; one per broker."""

    def __init__(
        self, apis: Sequence[AnyApi], services: Services, faults: Faults | None = None
    ) -> None:
        has_rules = services.authorizer is not None
        self._apis = {
            (api.key, version): authorized(api) if has_rules and isinstance(api, Api) else api
            for api in apis
            for version in range(api.min_version, api.max_version + 1)
        }
        self._services = services
        self._faults = faults or Faults()
        self._routes: dict[tuple[int, int], _Route] = {}  # built at the first request

    @property
    def fetches_wait(self) -> bool:
        """Whether fetches wait for memory that other responses have."""
        return self._services.response_buffers.is_awaited

    def dispatch(
        self, data: memoryview, start: int, stop: int, end: int, client: Client, began: float
    ) -> tuple[Reply, int]:
        """Handle the request `data[start:stop]`, which begins with its length; return the reply, and `stop`.

        If it repeats an earlier one, the requests behind it, up to `end`, may be handled with it: then the
        place where the last of them ends is returned. Raise CloseConnection, with the reason, if there is no
        reply.
        """
        try:
            if client.repeater is not None and not self._faults.injected:
                taken = client.repeater.take(data, start, end)
                if taken is not None:
                    taken[0].began = began
                    return taken
            frame = data[start + LENGTH.size : stop]
            if client.sasl is not None and client.sasl.bare_tokens:
                return self._authenticate(frame, client.sasl, began), stop
            header = None
            if client.sasl is None:
                header = client.headers.get(bytes(frame[:CORRELATION_ID_AT]))
            if header is None or frame[CLIENT_ID_AT : header.body] != header.context.header:
                header = self._read_header(frame, client)
            body, route, context = header
            if len(frame) > route.max_bytes:
                raise CloseConnection(
                    f"a request of API {context.api_key} has {len(frame)} bytes, more than"
                    f" {route.max_bytes}"
                )
            if self._faults.injected:
                reply = self._faults.handle(context, frame[body:], route.handle)
            else:
                reply = route.handle(context, frame[body:])
            reply.correlation_id, reply.flexible = (
                read_correlation_id(frame),
                route.flexible_response,
            )
            reply.meter, reply.began = context.meter, began
            client.repeater = context.remembered.get(produce.REPEATER) or client.repeater
            return reply, stop
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from None
        except CloseConnection:
            raise
        except Exception as error:
            logger.exception("request failed", client_host=client.host)
            raise CloseConnection("the request failed") from error

    def _authenticate(self, message: memoryview, sasl: SaslExchange, began: float) -> Reply:
        """Answer a bare SASL message."""
        meter = self._services.requests.of(handshake.AUTHENTICATE)
        return Reply(later=handshake.answer_bare(sasl, bytes(message)), meter=meter, began=began)

    def _read_header(self, frame: memoryview, client: Client) -> _Header:
        """Read a header that differs from the last one."""
        read = read_request_header(frame)
        key, version = read.api_key, read.api_version
        if client.sasl is not None:
            again = client.session is not None
            if key not in (handshake.AGAIN if again else handshake.BEFORE_AUTHENTICATION):
                late = " again" if again else ""
                raise CloseConnection(
                    f"a request of API {key} came before the client authenticated{late}"
                )
        route = self._routes.get((key, version)) or self._make_route(key, version)
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
            meter=route.meter,
            header=bytes(frame[CLIENT_ID_AT:body]),
            sasl=client.sasl or client.session,
            close=client.close,
        )
        header = _Header(body, route, context)
        if len(context.header) <= _MOST_HEADER_BYTES:
            if len(client.headers) >= _MOST_HEADERS:
                client.headers.clear()
            client.headers[bytes(frame[:CORRELATION_ID_AT])] = header
        return header

    def _make_route(self, key: int, version: int) -> _Route:
        api = self._apis.get((key, version))
        if api is None:
            return self._unknown(key, version)
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
            handle=partial(_handle, api) if isinstance(api, Api) else api.handler,
            meter=self._services.requests.of(key),
        )
        self._routes[key, version] = route
        return route

    def _unknown(self, key: int, version: int) -> _Route:
        """Return the route of an unknown version of ApiVersions, answered in version 0 (KIP-511)."""
        if key != handshake.API_VERSIONS:
            feature = unsupported_feature(key)
            raise CloseConnection(
                f"API {key} version {version} is not served" + (f": {feature}" if feature else "")
            )
        return _Route(
            flexible_request=False,
            flexible_response=False,
            max_bytes=self._services.node.settings.control_request_max_bytes,
            handle=_answer_unknown_version,
            meter=self._services.requests.of(key),
        )


def _answer_unknown_version(context: RequestContext, _: memoryview) -> Reply:
    served = handshake.served_versions(context.services, ErrorCode.unsupported_version)
    response = recast(served, response_type(handshake.API_VERSIONS, 0))
    context.meter.errors.update(error_codes(response))
    return Reply(write_message(response))


def _handle(api: Api, context: RequestContext, body: memoryview) -> Reply:
    if len(body) > SMALL_BYTES:
        return Reply(later=_handle_large(api, context, bytes(body)))
    request = _read(api, context, body)
    try:
        response = api.handler(context, request)
    except (CloseConnection, MalformedRequest):
        raise
    except Exception as error:  # noqa: BLE001  a bug in one handler must not stop the broker
        return _internal_error(api, context, error)
    if iscoroutine(response):
        return Reply(later=_handle_later(api, context, response))
    return _encode(api, context, response)


def _read(api: Api, context: RequestContext, body: memoryview) -> Any:
    message_type = request_type(api.key, context.api_version)
    return recast(read_message(message_type, body, context.services.max_elements), api.request)


async def _handle_large(api: Api, context: RequestContext, body: bytes) -> Reply:
    """Handle a request with many elements: reading it takes long, and runs in another thread."""
    request = await context.services.compute(_read, api, context, memoryview(body))

    async def answer() -> Any:
        response = api.handler(context, request)
        return await response if iscoroutine(response) else response

    return await _handle_later(api, context, answer())


async def _handle_later(api: Api, context: RequestContext, response: Awaitable[Any]) -> Reply:
    began = monotonic()
    try:
        answer = await response
        if monotonic() - began < SLICE_SECONDS:
            return _encode(api, context, answer)
        # It is long, or the request waited: then another moment does not matter.
        compute = context.services.compute
        codes, encoded = await compute(_write, api, context.api_version, answer)
    except (CloseConnection, MalformedRequest):
        raise
    except Exception as error:  # noqa: BLE001  a bug in one handler must not stop the broker
        return _internal_error(api, context, error)
    context.meter.errors.update(codes)
    return Reply(encoded)


def _encode(api: Api, context: RequestContext, response: Any) -> Reply:
    codes, encoded = _write(api, context.api_version, response)
    context.meter.errors.update(codes)
    return Reply(encoded)


def _write(api: Api, version: int, response: Any) -> tuple[list[int], bytes]:
    """Return the response's error codes, and its bytes."""
    codes = list(error_codes(response))
    return codes, write_message(recast(response, response_type(api.key, version)))


def _internal_error(api: Api, context: RequestContext, error: Exception) -> Reply:
    """Log a bug, and tell the client if the response has a field for an error code."""
    logger.error(
        "request failed",
        exc_info=error,
        api_key=context.api_key,
        api_version=context.api_version,
        client_id=context.client_id,
        client_host=context.client_host,
    )
    if not has_field(api.response, "error_code"):
        raise CloseConnection("the request failed") from error
    return _encode(
        api, context, default_message(api.response, error_code=ErrorCode.unknown_server_error)
    )


def _header_version(message_type: Any) -> int:
    return int(message_type.__header_schema__.__version__)
