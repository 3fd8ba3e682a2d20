"""The registry's HTTP server: who may call it, and how answers and errors are sent."""

from __future__ import annotations

import base64
import socket
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kmr._extras import require_extra
from kmr.errors import KmrError
from kmr.service.http import HttpServer

from .endpoints import ANSWERS, Bodies, EndpointCall, routes
from .error_codes import FORBIDDEN, UNAUTHORIZED, RequestRefused
from .metrics import CountedAnswers, RegistryMeter
from .registry import RegistryStore
from .schemas_topic import SCHEMAS_TOPIC, SchemasTopic
from .state import RegistryState

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from types import TracebackType

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .endpoints import Endpoint, Handler

logger = structlog.get_logger(__name__)

_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="schema registry"'}
_FAILURE_DELAY: Final = 0.1  # seconds; slows down guessing
_UNREAD: Final = (408, 413, 429)
"""Answers that are sent before the request was received: nothing may follow it on its connection."""
_JSON: Final = "application/json"
ANONYMOUS: Final = ""
"""The user of a registry without users."""


class SchemaRegistryError(KmrError):
    """The schema registry cannot start; the message says what to do."""


class RegistryAccess(ABC):
    """Who may call the registry: users by HTTP's basic authentication, and what each may do."""

    has_users: bool
    """Whether a request must name a user."""

    @abstractmethod
    async def is_password(self, user: str, password: str) -> bool:
        """Whether this is the user's password."""

    @abstractmethod
    def allows(self, user: str, operation: str, host: str) -> bool:
        """Whether a user may `read` or `write` schemas, from a host; `ANONYMOUS` without users."""


class SchemaRegistry:
    """A schema registry over the topic `_schemas` of a Kafka cluster; serves while it is entered.

        async with SchemaRegistry("127.0.0.1:9092") as registry:
            print(registry.url)

    It runs in the event loop that enters it: call a blocking client of it in a thread. The topic is created
    if it is missing.

    Entering raises KmrError if the topic or the address cannot be used, or a library is missing.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        access: RegistryAccess | None = None,
        **client: Any,
    ) -> None:
        """Args:
        bootstrap_servers: `HOST:PORT` of brokers, separated by commas.
        host: address to serve HTTP on.
        port: 0 takes any free one; see `url`.
        tls: serve HTTPS.
        access: who may call; everyone without it.
        client: more arguments of aiokafka's clients, for encryption and authentication.
        """
        self._state = RegistryState()
        self._client = {
            "client_id": "kmr-registry",
            **client,
            "bootstrap_servers": bootstrap_servers,
        }
        self._listen = partial(_listen_on, host, port)
        self._tls = tls
        self._access = access
        self._stack = AsyncExitStack()
        self.metrics = RegistryMeter(self._state)
        """A collector for prometheus_client."""
        self.url = ""
        """The address, such as `http://127.0.0.1:8081`; with TLS `https`."""

    async def __aenter__(self) -> Self:
        require_extra("registry", "The schema registry")
        async with AsyncExitStack() as stack:
            topic = await stack.enter_async_context(SchemasTopic(self._state, **self._client))
            app = build_app(RegistryStore(self._state, topic), self._access, self.metrics)
            server = HttpServer(app, self._listen, self._tls)
            await stack.enter_async_context(server)
            self.url = server.url
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc, traceback)


def _listen_on(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise SchemaRegistryError(
            f"the schema registry cannot listen on {host}, port {port}: {error.strerror or error}; choose"
            " another port, or 0 for any free one"
        ) from error


def build_app(
    registry: RegistryStore, access: RegistryAccess | None, meter: RegistryMeter
) -> Starlette:
    """Return the registry as an ASGI application."""
    gate, bodies = _Gate(access), Bodies()

    def guarded(operation: str, endpoint: Endpoint) -> Handler:
        async def handle(request: Request) -> Response:
            await gate.check(request, operation)
            call = EndpointCall(request, registry, bodies)
            try:
                return _answer(request, await endpoint(call))
            finally:
                call.end()

        return handle

    app = Starlette(
        routes=routes(guarded),
        exception_handlers={
            RequestRefused: _refuse,
            HTTPException: _refuse_http,
            Exception: _fail,
        },
    )
    app.router.redirect_slashes = False
    app.add_middleware(_EncodedPaths)
    app.add_middleware(CountedAnswers, meter=meter)
    return app


class _Gate:
    """Checks the user of each request, and what the user may do."""

    def __init__(self, access: RegistryAccess | None) -> None:
        self._access = access

    async def check(self, request: Request, operation: str) -> None:
        """Raise RequestRefused if the request is not allowed."""
        access = self._access
        if access is None:
            return
        user = ANONYMOUS
        if access.has_users:
            user = await self._authenticated(access, request.headers.get("authorization", ""))
        if not access.allows(user, operation, request.client.host if request.client else ""):
            raise RequestRefused(
                FORBIDDEN,
                f"{user or 'an anonymous user'} may not {operation} the topic {SCHEMAS_TOPIC}",
            )

    async def _authenticated(self, access: RegistryAccess, authorization: str) -> str:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "basic":
            raise RequestRefused(UNAUTHORIZED, "Unauthorized: send a user and a password")
        try:
            user, _, password = base64.b64decode(token, validate=True).decode().partition(":")
        except ValueError:
            raise RequestRefused(UNAUTHORIZED, "Unauthorized: malformed credentials") from None
        if not await access.is_password(user, password):
            await anyio.sleep(_FAILURE_DELAY)
            raise RequestRefused(UNAUTHORIZED, "Unauthorized: wrong user or password")
        return user


class _EncodedPaths:
    """Routes by the path as it was sent: a `/` in a subject arrives as %2F and separates nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["raw_path"].decode("ascii", "replace").partition("?")[0]
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


def _answer(request: Request, answer: object, *, status: int = 200) -> Response:
    body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    return _response(request, body, status=status)


def _response(
    request: Request, body: bytes, *, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    accepted = request.headers.get("accept", "")
    plain = _JSON in accepted and "schemaregistry" not in accepted
    return Response(
        body, status_code=status, headers=headers, media_type=_JSON if plain else ANSWERS
    )


def _error(
    request: Request, status: int, code: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    body = msgspec.json.encode({"error_code": code, "message": message})
    return _response(request, body, status=status, headers=headers)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)  # noqa: S101  how it is registered
    headers = _CHALLENGE if error.code == UNAUTHORIZED else None
    if error.status in _UNREAD:
        headers = {"Connection": "close"}
    return _error(request, error.status, error.code, error.message, headers)


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  how it is registered
    message = f"HTTP {error.status_code} {error.detail}"
    return _error(request, error.status_code, error.status_code, message, error.headers)


async def _fail(request: Request, error: Exception) -> Response:
    logger.error("a request to the schema registry failed", exc_info=error, path=request.url.path)
    return _error(request, 500, 500, "Internal Server Error")
