"""SaslHandshake and SaslAuthenticate: who the client is (KIP-43, KIP-152)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest, SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse
from kio.static.primitive import i64Timedelta

from broker.api import Api, CloseConnection
from broker.apis import versions
from broker.security.sasl import MECHANISMS, AuthenticationFailed

if TYPE_CHECKING:
    from broker.api import RequestContext
    from broker.security.sasl import SaslExchange

__all__ = ["APIS", "AUTHENTICATE", "BEFORE_AUTHENTICATION", "answer_bare"]

_HANDSHAKE = 17
AUTHENTICATE: Final = 36

BEFORE_AUTHENTICATION: Final = frozenset({versions.KEY, _HANDSHAKE, AUTHENTICATE})
"""All that a client may ask for until it has authenticated."""

_FIRST_WITH_WRAPPED_TOKENS = 1
_NO_END = i64Timedelta.parse(timedelta(0))


def _handshake(context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    if context.sasl is None:
        return SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    bare = context.api_version < _FIRST_WITH_WRAPPED_TOKENS
    served = context.sasl.choose(request.mechanism, bare_tokens=bare)
    return SaslHandshakeResponse(
        error_code=ErrorCode.none if served else ErrorCode.unsupported_sasl_mechanism,
        mechanisms=MECHANISMS,
    )


async def _authenticate(
    context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    if context.sasl is None:
        return _refused(
            ErrorCode.illegal_sasl_state,
            "there is nothing to authenticate: it is done already, or this broker has no users",
        )
    try:
        answer = await context.sasl.respond(request.auth_bytes)
    except AuthenticationFailed as error:
        return _refused(ErrorCode.sasl_authentication_failed, str(error))
    return SaslAuthenticateResponse(
        error_code=ErrorCode.none,
        error_message=None,
        auth_bytes=answer,
        session_lifetime=_NO_END,
    )


def _refused(error: ErrorCode, message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=error, error_message=message, auth_bytes=b"", session_lifetime=_NO_END
    )


async def answer_bare(sasl: SaslExchange, message: memoryview) -> bytes:
    """After version 0 of the handshake there are no error codes: raises CloseConnection."""
    token = bytes(message)
    try:
        return await sasl.respond(token)
    except AuthenticationFailed as error:
        raise CloseConnection(str(error)) from None


APIS = (
    Api(_handshake, SaslHandshakeRequest, SaslHandshakeResponse, min_version=0),
    Api(_authenticate, SaslAuthenticateRequest, SaslAuthenticateResponse, min_version=0),
)
