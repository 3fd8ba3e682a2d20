"""DescribeUserScramCredentials 0, AlterUserScramCredentials 0: the users in the file of --users (KIP-554).

As in Kafka 4, a request may alter a user once, with any mechanism, and gets one result for each user.
`kmr broker user` changes the same file by the same functions (`authorization.users`).
Differs from Kafka: without --users there are no users, and alterations are refused with SECURITY_DISABLED.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from anyio import to_thread
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8, i32

from ...authorization.scram import MAX_ITERATIONS, MIN_ITERATIONS, credential_of
from ...authorization.users import Alteration, is_user_name
from ...errors import BrokerError, RequestError
from ...turns import in_turns
from .. import entities
from ..access import ALTER_CLUSTER, DESCRIBE_CLUSTER
from ..api import NO_THROTTLE, Outcome, api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...authorization.scram import Credential, ScramMechanism
    from ...authorization.users import User
    from ..api import RequestContext

logger = structlog.get_logger(__name__)

_NO_FILE: Final = "this broker has no users; start it with --users"
_FILE_FAILED: Final = "the file of users cannot be changed; the broker's log has the reason"
_MECHANISMS: Final[Mapping[int, ScramMechanism]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_CODES: Final = {mechanism: code for code, mechanism in _MECHANISMS.items()}

_Asked: TypeAlias = "entities.ScramCredentialDeletion | entities.ScramCredentialUpsertion"


# -- DescribeUserScramCredentials ------------------------------------------------------------------


@api(
    "DescribeUserScramCredentials",
    max_version=0,
    access=replace(DESCRIBE_CLUSTER, elements=lambda _: ()),
)
async def _describe(
    context: RequestContext, request: entities.DescribeUserScramCredentialsRequest
) -> entities.DescribeUserScramCredentialsResponse:
    users = _by_name(context)
    times = Counter(each.name for each in request.users) if request.users else Counter(users.keys())
    return entities.DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(
            [_described(name, users.get(name), times[name]) async for name in in_turns(times)]
        ),
    )


def _described(
    name: str, user: User | None, times: int
) -> entities.DescribeUserScramCredentialsResult:
    outcome = Outcome()
    credentials: Mapping[ScramMechanism, Credential] = {}
    if times > 1:
        message = f"{name!r} is listed more than once; list it once"
        outcome = Outcome(ErrorCode.duplicate_resource, message)
    elif user is None:
        outcome = Outcome(ErrorCode.resource_not_found, f"there is no user {name!r}")
    else:
        credentials = user.credentials
    return entities.DescribeUserScramCredentialsResult(
        user=name,
        error_code=outcome.code,
        error_message=outcome.message,
        credential_infos=tuple(
            entities.CredentialInfo(
                mechanism=i8(_CODES[mechanism]), iterations=i32(credential.iterations)
            )
            for mechanism, credential in credentials.items()
        ),
    )


# -- AlterUserScramCredentials ---------------------------------------------------------------------


@api(
    "AlterUserScramCredentials",
    max_version=0,
    access=replace(
        ALTER_CLUSTER,
        elements=lambda request: sorted(
            {each.name for each in (*request.deletions, *request.upsertions)}
        ),
    ),
)
async def _alter(
    context: RequestContext, request: entities.AlterUserScramCredentialsRequest
) -> entities.AlterUserScramCredentialsResponse:
    asked: tuple[_Asked, ...] = (*request.deletions, *request.upsertions)
    outcomes: dict[str, Alteration | Outcome] = {}
    async for wanted in in_turns(asked):
        before = outcomes.get(wanted.name)
        if isinstance(before, Outcome):
            continue  # the first error of a user is returned
        try:
            if before is not None:
                raise RequestError(
                    ErrorCode.duplicate_resource, "a user can be altered once in a request"
                )
            outcomes[wanted.name] = _alteration(context, wanted)
        except RequestError as error:
            outcomes[wanted.name] = Outcome(error.code, error.message)
    alterations = {name: each for name, each in outcomes.items() if isinstance(each, Alteration)}
    done = await _change(context, alterations) if alterations else Outcome()
    results = {n: done if isinstance(each, Alteration) else each for n, each in outcomes.items()}
    return entities.AlterUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                entities.AlterUserScramCredentialsResult(
                    user=name, error_code=outcome.code, error_message=outcome.message
                )
                async for name, outcome in in_turns(results.items())
            ]
        ),
    )


def _alteration(context: RequestContext, wanted: _Asked) -> Alteration:
    """Return the alteration that the client wants of one user. Raise RequestError."""
    if not is_user_name(wanted.name):
        raise _unacceptable("the user's name must not be empty, nor contain a NUL")
    mechanism = _MECHANISMS.get(wanted.mechanism)
    if mechanism is None:
        raise RequestError(
            ErrorCode.unsupported_sasl_mechanism,
            f"unknown SCRAM mechanism {wanted.mechanism}: use 1 (SCRAM-SHA-256) or 2 (SCRAM-SHA-512)",
        )
    if isinstance(wanted, entities.ScramCredentialUpsertion):
        return _upsertion(mechanism, wanted)
    user = _by_name(context).get(wanted.name)
    if user is None or mechanism not in user.credentials:
        raise RequestError(
            ErrorCode.resource_not_found, f"user {wanted.name!r} has no credential for {mechanism}"
        )
    return Alteration(mechanism, None)


def _upsertion(mechanism: ScramMechanism, wanted: entities.ScramCredentialUpsertion) -> Alteration:
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


async def _change(context: RequestContext, alterations: Mapping[str, Alteration]) -> Outcome:
    """Change the file of users, which applies at once."""
    users = context.services.users
    if users is None:
        return Outcome(ErrorCode.security_disabled, _NO_FILE)
    try:
        await to_thread.run_sync(users.alter, alterations)
    except BrokerError as error:
        logger.error("users cannot be changed", reason=str(error))
        return Outcome(ErrorCode.kafka_storage_error, _FILE_FAILED)
    logger.info("users changed", principal=context.principal, users=sorted(alterations))
    return Outcome()
