"""ApiVersions 0 to 4, SaslHandshake 0 to 1, SaslAuthenticate 0 to 2: all that comes before authentication.

ApiVersions lists the APIs and versions that this broker serves (KIP-35, KIP-511); a request in an unknown
version is answered in version 0, with UNSUPPORTED_VERSION and the same list. SASL decides which user the
client is (KIP-43, KIP-152). After SaslHandshake 0 the client sends its SASL messages bare, without a request
header (`answer_bare`).

Features (KIP-584): `group.version` 1 says that groups of KIP-848 are served, `transaction.version` 2 that the
end of a transaction raises its producer's epoch (KIP-890).
A client may have to authenticate again after a time, on the same connection (KIP-368): then only SASL's two
APIs are served.
Differs from Kafka: no other feature is listed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from struct import pack
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i64, i64Timedelta

from ...authorization.sasl import MECHANISMS, AuthenticationFailed
from .. import entities
from ..access import EVERYONE
from ..api import NO_THROTTLE, CloseConnection, Reply, api

if TYPE_CHECKING:
    from ...authorization.sasl import SaslExchange
    from ..api import RequestContext, Services

API_VERSIONS: Final = 18
_HANDSHAKE: Final = 17
AUTHENTICATE: Final = 36

AGAIN: Final = frozenset({_HANDSHAKE, AUTHENTICATE})
"""The only APIs that a client may call until it has authenticated again."""
BEFORE_AUTHENTICATION: Final = AGAIN | {API_VERSIONS}
"""The only APIs that a client may call until it has authenticated."""

_FEATURES: Final = {"group.version": 1, "transaction.version": 2}
_FIRST_WITH_MIN_0 = 4
"""Older versions leave out features whose lowest version is 0."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_WRAPPED_TOKENS = 1


@api("ApiVersions", max_version=4, access=EVERYONE)
def _api_versions(
    context: RequestContext, request: entities.ApiVersionsRequest
) -> entities.ApiVersionsResponse:
    names = (request.client_software_name, request.client_software_version)
    valid = context.api_version < _FIRST_WITH_SOFTWARE or all(map(_SOFTWARE.fullmatch, names))
    code = ErrorCode.none if valid else ErrorCode.invalid_request
    served = served_versions(context.services, code)
    finalized = tuple(
        entities.FinalizedFeatureKey(
            name=name, max_version_level=i16(level), min_version_level=i16(level)
        )
        for name, level in _FEATURES.items()
    )
    served = replace(served, finalized_features_epoch=i64(0), finalized_features=finalized)
    if context.api_version >= _FIRST_WITH_MIN_0:
        supported = tuple(
            entities.SupportedFeatureKey(name=name, min_version=i16(0), max_version=i16(level))
            for name, level in _FEATURES.items()
        )
        served = replace(served, supported_features=supported)
    return served


def served_versions(services: Services, error: ErrorCode) -> entities.ApiVersionsResponse:
    """Return the list of what this broker serves; with an error too, so that the client can try again."""
    return entities.ApiVersionsResponse(
        error_code=error,
        throttle_time=NO_THROTTLE,
        api_keys=tuple(
            entities.ApiVersion(
                api_key=i16(each.key),
                min_version=i16(each.min_version),
                max_version=i16(each.max_version),
            )
            for each in services.node.versions
        ),
    )


@api("SaslHandshake", max_version=1, access=EVERYONE)
def _handshake(
    context: RequestContext, request: entities.SaslHandshakeRequest
) -> entities.SaslHandshakeResponse:
    if context.sasl is None:
        return entities.SaslHandshakeResponse(
            error_code=ErrorCode.illegal_sasl_state, mechanisms=()
        )
    bare = context.api_version < _FIRST_WITH_WRAPPED_TOKENS
    served = context.sasl.choose(request.mechanism, bare_tokens=bare)
    return entities.SaslHandshakeResponse(
        error_code=ErrorCode.none if served else ErrorCode.unsupported_sasl_mechanism,
        mechanisms=MECHANISMS,
    )


@api("SaslAuthenticate", max_version=2, access=EVERYONE)
async def _authenticate(
    context: RequestContext, request: entities.SaslAuthenticateRequest
) -> entities.SaslAuthenticateResponse:
    code, message, answer, lifetime = ErrorCode.none, None, b"", timedelta(0)
    if context.sasl is None or context.sasl.complete:
        code = ErrorCode.illegal_sasl_state
        message = "authentication is complete already, or this broker has no users"
    else:
        try:
            answer = await context.sasl.respond(request.auth_bytes)
            if context.sasl.complete:
                lifetime = timedelta(milliseconds=int(context.sasl.lifetime * 1000))
        except AuthenticationFailed as error:
            code, message = ErrorCode.sasl_authentication_failed, str(error)
    return entities.SaslAuthenticateResponse(
        error_code=code,
        error_message=message,
        auth_bytes=answer,
        session_lifetime=i64Timedelta.parse(lifetime),
    )


async def answer_bare(sasl: SaslExchange, message: bytes) -> Reply:
    """Answer a bare SASL message. Raise CloseConnection on failure: there are no error codes."""
    try:
        answer = await sasl.respond(message)
        return Reply(pack(">i", len(answer)) + answer)
    except AuthenticationFailed as error:
        raise CloseConnection(str(error)) from None
