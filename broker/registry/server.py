"""The registry's HTTP server: who may call it, and how answers and errors are sent."""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import msgspec
import structlog
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kmr.service.http import HttpServer

from ..authorization.rules import ANONYMOUS, Operation, Question, Resource
from ..server.server import bind
from .endpoints import ANSWERS, Call, routes
from .error_codes import FORBIDDEN, UNAUTHORIZED, RegistryError
from .metrics import CountedAnswers, RegistryMeter
from .registry import Registry
from .schemas_topic import SCHEMAS_TOPIC, SchemasTopic
from .state import RegistryState

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

    from prometheus_client.registry import Collector
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ..apis.api import Services
    from ..authorization.rules import Authorizer
    from ..authorization.users import Users
    from .endpoints import Endpoint

__all__ = ["RegistryServer", "Security", "build_app", "serve_registry"]

logger = structlog.get_logger(__name__)

_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="schema registry"'}
_FAILURE_DELAY: Final = 0.1  # seconds; slows down guessing
_PASSWORD_CHECKS: Final = 2
_REMEMBERED: Final = 1_000
_JSON: Final = "application/json"


class Security(NamedTuple):
    """Who may call the registry: the broker's users by HTTP's basic authentication, and its access rules.

    Reading needs the operation read on the topic `_schemas`, writing needs write.
    """

    users: Users | None = None
    authorizer: Authorizer | None = None


class RegistryServer(HttpServer):
    """HTTP server of the registry. Raises BrokerError on entering, if it cannot bind the address."""

    def __init__(
        self, host: str, port: int, app: Starlette, tls: ssl.SSLContext | None, metrics: Collector
    ) -> None:
        """`port` 0 takes any free one; see `url`."""
        super().__init__(app, partial(bind, host, port), tls)
        self.metrics = metrics


async def serve_registry(
    host: str, port: int, services: Services, tls: ssl.SSLContext | None
) -> RegistryServer:
    """Read the topic `_schemas`, which is created if it is missing, and return a server to enter.

    Raises BrokerError if the topic cannot be used.
    """
    state = RegistryState()
    topic = SchemasTopic(services.topics, services.group_commit, state)
    await topic.open()
    meter = RegistryMeter(state)
    security = Security(services.users, services.authorizer)
    app = build_app(Registry(state, topic), security, meter)
    return RegistryServer(host, port, app, tls, meter)


def build_app(registry: Registry, security: Security, meter: RegistryMeter) -> Starlette:
    """Return the registry as an ASGI application."""
    gate = _Gate(security)

    def guarded(
        operation: Operation, endpoint: Endpoint
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            await gate.check(request, operation)
            return _answer(request, await endpoint(Call(request, registry)))

        return handle

    app = Starlette(
        routes=routes(partial(guarded, Operation.READ), partial(guarded, Operation.WRITE)),
        exception_handlers={
            RegistryError: _refuse,
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

    def __init__(self, security: Security) -> None:
        self._users, self._authorizer = security
        self._checks = anyio.CapacityLimiter(_PASSWORD_CHECKS)
        self._accepted: dict[tuple[str, object], bytes] = {}

    async def check(self, request: Request, operation: Operation) -> None:
        """Raise RegistryError if the request is not allowed."""
        principal = ANONYMOUS
        if self._users is not None:
            principal = await self._authenticated(
                self._users, request.headers.get("authorization", "")
            )
        if self._authorizer is None:
            return
        host = request.client.host if request.client else ""
        question = Question(principal, operation, Resource.TOPIC, SCHEMAS_TOPIC, host)
        if not self._authorizer.allows(question):
            raise RegistryError(
                FORBIDDEN, f"{principal} may not {operation} the topic {SCHEMAS_TOPIC}"
            )

    async def _authenticated(self, users: Users, authorization: str) -> str:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "basic":
            raise RegistryError(UNAUTHORIZED, "Unauthorized: send a user and a password")
        try:
            user, _, password = base64.b64decode(token, validate=True).decode().partition(":")
        except ValueError:
            raise RegistryError(UNAUTHORIZED, "Unauthorized: malformed credentials") from None
        # A check takes 10 ms of CPU: a password that was accepted is remembered until the user changes.
        entry = (user, users.by_name.get(user))
        digest = users.fingerprint(user, password)
        if self._accepted.get(entry) == digest:
            return f"User:{user}"
        matches = await to_thread.run_sync(
            users.check_password, user, password, limiter=self._checks
        )
        if not matches:
            await anyio.sleep(_FAILURE_DELAY)
            raise RegistryError(UNAUTHORIZED, "Unauthorized: wrong user or password")
        if len(self._accepted) >= _REMEMBERED:
            self._accepted.clear()
        self._accepted[entry] = digest
        return f"User:{user}"


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
    assert isinstance(error, RegistryError)  # noqa: S101  how it is registered
    headers = _CHALLENGE if error.code == UNAUTHORIZED else None
    return _error(request, error.status, error.code, error.message, headers)


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  how it is registered
    message = f"HTTP {error.status_code} {error.detail}"
    return _error(request, error.status_code, error.status_code, message, error.headers)


async def _fail(request: Request, error: Exception) -> Response:
    logger.error("a request to the schema registry failed", exc_info=error, path=request.url.path)
    return _error(request, 500, 500, "Internal Server Error")
