"""DescribeUserScramCredentials, AlterUserScramCredentials: the users of a broker with --users (KIP-554).

Answers are those of Kafka 4: one for each user, who may be altered once in a request, whatever the mechanism.
Without --users there is nobody, and making somebody is refused with SECURITY_DISABLED.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kio.schema.alter_user_scram_credentials.v0.response import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from kio.schema.describe_user_scram_credentials.v0.request import (
    DescribeUserScramCredentialsRequest,
)
from kio.schema.describe_user_scram_credentials.v0.response import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8, i32

from broker.api import Api
from broker.apis.common import NO_THROTTLE
from broker.errors import BrokerError, RequestError
from broker.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, credential_of
from broker.security.users import Alteration, is_user_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.api import RequestContext
    from broker.security.scram import Credential, ScramMechanism
    from broker.security.users import User

__all__ = ["APIS"]

logger = structlog.get_logger(__name__)

_NO_FILE: Final = "this broker has no users: it is started without --users"
_FILE_FAILED: Final = "the file of users cannot be changed; the broker's log says why"
_MECHANISMS: Final[Mapping[int, ScramMechanism]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_CODES: Final = {mechanism: code for code, mechanism in _MECHANISMS.items()}

_Asked: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion


# -- DescribeUserScramCredentials ------------------------------------------------------------------


def _describe(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    users = _by_name(context)
    times = Counter(each.name for each in request.users) if request.users else Counter(users.keys())
    return DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(_described(name, users.get(name), times[name]) for name in times),
    )


def _described(name: str, user: User | None, times: int) -> DescribeUserScramCredentialsResult:
    code, message = ErrorCode.none, None
    credentials: Mapping[ScramMechanism, Credential] = {}
    if times > 1:
        code, message = ErrorCode.duplicate_resource, f"{name!r} is in the request more than once"
    elif user is None:
        code, message = ErrorCode.resource_not_found, f"there is no user {name!r}"
    else:
        credentials = user.credentials
    return DescribeUserScramCredentialsResult(
        user=name,
        error_code=code,
        error_message=message,
        credential_infos=tuple(
            CredentialInfo(mechanism=i8(_CODES[mechanism]), iterations=i32(credential.iterations))
            for mechanism, credential in credentials.items()
        ),
    )


# -- AlterUserScramCredentials ---------------------------------------------------------------------


def _alter(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    asked: tuple[_Asked, ...] = (*request.deletions, *request.upsertions)
    outcomes: dict[str, Alteration | RequestError] = {}
    for wanted in asked:
        before = outcomes.get(wanted.name)
        if isinstance(before, RequestError):
            continue
        try:
            if before is not None:
                raise RequestError(
                    ErrorCode.duplicate_resource, "a user can be altered once in a request"
                )
            outcomes[wanted.name] = _alteration(context, wanted)
        except RequestError as error:
            outcomes[wanted.name] = error
    alterations = {name: each for name, each in outcomes.items() if isinstance(each, Alteration)}
    failed = _change(context, alterations) if alterations else None
    return AlterUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            _altered(name, failed if isinstance(each, Alteration) else each)
            for name, each in outcomes.items()
        ),
    )


def _altered(name: str, error: RequestError | None) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(
        user=name,
        error_code=ErrorCode.none if error is None else error.code,
        error_message=None if error is None else error.message,
    )


def _alteration(context: RequestContext, wanted: _Asked) -> Alteration:
    """What is to become of one user. Raises RequestError."""
    if not is_user_name(wanted.name):
        raise _unacceptable("the name of a user must not be empty, or have a NUL")
    mechanism = _MECHANISMS.get(wanted.mechanism)
    if mechanism is None:
        raise RequestError(
            ErrorCode.unsupported_sasl_mechanism,
            f"there is no SCRAM mechanism {wanted.mechanism}: SCRAM-SHA-256 is 1, SCRAM-SHA-512 is 2",
        )
    if isinstance(wanted, ScramCredentialUpsertion):
        return _upsertion(mechanism, wanted)
    user = _by_name(context).get(wanted.name)
    if user is None or mechanism not in user.credentials:
        raise RequestError(
            ErrorCode.resource_not_found, f"user {wanted.name!r} has no credential for {mechanism}"
        )
    return Alteration(mechanism, None)


def _upsertion(mechanism: ScramMechanism, wanted: ScramCredentialUpsertion) -> Alteration:
    if not MIN_ITERATIONS <= wanted.iterations <= MAX_ITERATIONS:
        raise _unacceptable(
            f"iterations must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}, not {wanted.iterations}"
        )
    if not wanted.salted_password:
        raise _unacceptable("the salted password is empty")
    credential = credential_of(
        mechanism, wanted.salted_password, salt=wanted.salt, iterations=wanted.iterations
    )
    return Alteration(mechanism, credential)


def _unacceptable(reason: str) -> RequestError:
    return RequestError(ErrorCode.unacceptable_credential, reason)


def _by_name(context: RequestContext) -> Mapping[str, User]:
    users = context.services.users
    return {} if users is None else users.by_name


def _change(context: RequestContext, alterations: Mapping[str, Alteration]) -> RequestError | None:
    """Write the file of users, which holds at once; the error if that fails."""
    users = context.services.users
    if users is None:
        return RequestError(ErrorCode.security_disabled, _NO_FILE)
    try:
        users.alter(alterations)
    except BrokerError as error:
        logger.error("users cannot be changed", reason=str(error))
        return RequestError(ErrorCode.kafka_storage_error, _FILE_FAILED)
    logger.info("users changed", principal=context.principal, users=sorted(alterations))
    return None


APIS = (
    Api(
        _describe,
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
        min_version=0,
    ),
    Api(_alter, AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, min_version=0),
)
