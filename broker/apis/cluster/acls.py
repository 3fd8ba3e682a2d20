"""DescribeAcls, CreateAcls, DeleteAcls 1 to 3: the access rules in the file of --acls (KIP-11, KIP-290).

`kmr broker acl` changes the same file by the same functions (`authorization.rules`).
Differs from Kafka: principals other than users, and resources other than topics, groups, transactional ids
and the cluster are refused with INVALID_REQUEST.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from anyio import to_thread
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from ...authorization.rules import (
    CLUSTER,
    WILDCARD,
    Binding,
    Resource,
    bindings_of,
    with_bindings,
    without_bindings,
)
from ...errors import BrokerError, RequestError
from ...protocol.messages import recast
from ...turns import in_turns
from .. import entities
from ..access import ALTER_CLUSTER, DESCRIBE_CLUSTER, OPERATION_CODES
from ..api import NO_THROTTLE, Outcome, api, result_or_refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...authorization.rules import Authorizer
    from ..api import RequestContext

logger = structlog.get_logger(__name__)

_UNKNOWN, _ANY = 0, 1
_MATCH, _LITERAL, _PREFIXED = 2, 3, 4  # types of patterns
_DENY, _ALLOW = 2, 3
_MAX_RESOURCE_TYPE, _MAX_PATTERN_TYPE, _MAX_OPERATION, _MAX_PERMISSION = 7, 4, 15, 3

_RESOURCE_CODES: Final[Mapping[Resource, int]] = {
    Resource.TOPIC: 2,
    Resource.GROUP: 3,
    Resource.CLUSTER: 4,
    Resource.TRANSACTIONAL_ID: 5,
}


_Filter: TypeAlias = "entities.DescribeAclsRequest | entities.DeleteAclsFilter"


def _pattern_type(binding: Binding) -> int:
    return _PREFIXED if binding.prefixed else _LITERAL


def _permission(binding: Binding) -> int:
    return _DENY if binding.denied else _ALLOW


def _check_filter(wanted: _Filter) -> None:
    """Raise RequestError for unknown codes."""
    codes = (
        (wanted.resource_type_filter, _MAX_RESOURCE_TYPE, "resource type"),
        (wanted.pattern_type_filter, _MAX_PATTERN_TYPE, "pattern type"),
        (wanted.operation, _MAX_OPERATION, "operation"),
        (wanted.permission_type, _MAX_PERMISSION, "permission"),
    )
    for code, highest, kind in codes:
        if not _UNKNOWN < code <= highest:
            raise _refused(f"unknown {kind} {code}")


def _matches(wanted: _Filter, binding: Binding) -> bool:
    """Whether a filter selects the binding; null and ANY match everything."""
    return (
        wanted.resource_type_filter in (_ANY, _RESOURCE_CODES[binding.resource])
        and wanted.operation in (_ANY, OPERATION_CODES[binding.operation])
        and wanted.permission_type in (_ANY, _permission(binding))
        and wanted.principal_filter in (None, binding.principal)
        and wanted.host_filter in (None, binding.host)
        and _matches_name(wanted.pattern_type_filter, wanted.resource_name_filter, binding)
    )


def _matches_name(pattern_type: int, name: str | None, binding: Binding) -> bool:
    """MATCH selects all bindings that cover the name; other types compare the binding's own name."""
    if pattern_type == _MATCH:
        return name is None or binding.covers(name)
    return pattern_type in (_ANY, _pattern_type(binding)) and name in (None, binding.name)


_NO_RULES: Final = "this broker has no access rules; start it with --acls"
_FILE_FAILED: Final = "the file of access rules cannot be changed; the broker's log has the reason"
_RESOURCES: Final = {code: resource for resource, code in _RESOURCE_CODES.items()}
_OPERATIONS: Final = {code: operation for operation, code in OPERATION_CODES.items()}


def _selected(context: RequestContext, wanted: _Filter) -> list[Binding]:
    """Return the bindings that a filter selects. Raise RequestError."""
    _check_filter(wanted)
    return [each for each in bindings_of(_authorizer(context).rules) if _matches(wanted, each)]


@api("DescribeAcls", min_version=1, max_version=3, access=DESCRIBE_CLUSTER)
async def _describe(
    context: RequestContext, request: entities.DescribeAclsRequest
) -> entities.DescribeAclsResponse:
    found = result_or_refusal(_selected, context, request)
    outcome, bindings = (found, []) if isinstance(found, Outcome) else (Outcome(), found)
    resources: dict[tuple[Any, ...], list[Binding]] = defaultdict(list)
    async for binding in in_turns(bindings):
        resources[binding.resource, binding.name, binding.prefixed].append(binding)
    return entities.DescribeAclsResponse(
        throttle_time=NO_THROTTLE,
        error_code=outcome.code,
        error_message=outcome.message,
        resources=tuple([_described(each) async for each in in_turns(resources.values())]),
    )


def _encoded(binding: Binding) -> entities.DeleteAclsMatchingAcl:
    """Return the message that has all fields of a binding."""
    return entities.DeleteAclsMatchingAcl(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=i8(_RESOURCE_CODES[binding.resource]),
        resource_name=binding.name,
        pattern_type=i8(_pattern_type(binding)),
        principal=binding.principal,
        host=binding.host,
        operation=i8(OPERATION_CODES[binding.operation]),
        permission_type=i8(_permission(binding)),
    )


def _described(bindings: list[Binding]) -> entities.DescribeAclsResource:
    first = _encoded(bindings[0])
    return entities.DescribeAclsResource(
        resource_type=first.resource_type,
        resource_name=first.resource_name,
        pattern_type=first.pattern_type,
        acls=tuple(recast(_encoded(each), entities.AclDescription) for each in bindings),
    )


@api("CreateAcls", min_version=1, max_version=3, access=ALTER_CLUSTER)
async def _create(
    context: RequestContext, request: entities.CreateAclsRequest
) -> entities.CreateAclsResponse:
    outcomes = [
        result_or_refusal(_binding, context, each) async for each in in_turns(request.creations)
    ]
    added = [each for each in outcomes if isinstance(each, Binding)]
    done = await _change(context, added=added) if added else Outcome()
    results = [done if isinstance(each, Binding) else each for each in outcomes]
    return entities.CreateAclsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                entities.AclCreationResult(error_code=each.code, error_message=each.message)
                async for each in in_turns(results)
            ]
        ),
    )


@api("DeleteAcls", min_version=1, max_version=3, access=ALTER_CLUSTER)
async def _delete(
    context: RequestContext, request: entities.DeleteAclsRequest
) -> entities.DeleteAclsResponse:
    outcomes = [
        result_or_refusal(_selected, context, each) async for each in in_turns(request.filters)
    ]
    removed = {each for found in outcomes if isinstance(found, list) for each in found}
    done = await _change(context, removed=removed) if removed else Outcome()
    return entities.DeleteAclsResponse(
        throttle_time=NO_THROTTLE,
        filter_results=tuple(
            [
                _deleted([], each) if isinstance(each, Outcome) else _deleted(each, done)
                async for each in in_turns(outcomes)
            ]
        ),
    )


def _deleted(bindings: list[Binding], outcome: Outcome) -> entities.DeleteAclsFilterResult:
    return entities.DeleteAclsFilterResult(
        error_code=outcome.code,
        error_message=outcome.message,
        matching_acls=() if outcome.code else tuple(map(_encoded, bindings)),
    )


def _authorizer(context: RequestContext) -> Authorizer:
    authorizer = context.services.authorizer
    if authorizer is None:
        raise RequestError(ErrorCode.security_disabled, _NO_RULES)
    return authorizer


async def _change(
    context: RequestContext, *, added: Iterable[Binding] = (), removed: Iterable[Binding] = ()
) -> Outcome:
    """Change the file of rules, which apply at once."""
    gone = set(removed)
    authorizer = _authorizer(context)
    try:
        await to_thread.run_sync(
            authorizer.alter, lambda rules: with_bindings(without_bindings(rules, gone), added)
        )
    except BrokerError as error:
        logger.error("access rules cannot be changed", reason=str(error))
        return Outcome(ErrorCode.kafka_storage_error, _FILE_FAILED)
    logger.info("access rules changed", principal=context.principal)
    return Outcome()


def _binding(context: RequestContext, creation: entities.AclCreation) -> Binding:
    """Return what the client wants to allow or deny. Raise RequestError for what rules cannot express."""
    _authorizer(context)
    resource = _RESOURCES.get(creation.resource_type)
    operation = _OPERATIONS.get(creation.operation)
    name, prefixed = creation.resource_name, creation.resource_pattern_type == _PREFIXED
    if resource is None:
        raise _refused(f"there are no rules for resources of type {creation.resource_type}")
    if operation is None:
        raise _refused(f"there is no operation {creation.operation} to allow or deny")
    if creation.resource_pattern_type not in (_LITERAL, _PREFIXED):
        raise _refused("the pattern type must be literal or prefixed")
    if creation.permission_type not in (_ALLOW, _DENY):
        raise _refused("the permission must be allow or deny")
    if not creation.host:
        raise _refused("the host is empty; use * for every host")
    if not name:
        raise _refused("the name of the resource is empty")
    if resource is Resource.CLUSTER and (name != CLUSTER or prefixed):
        raise _refused(f"the cluster's name is {CLUSTER}, and literal")
    if not prefixed and name != WILDCARD and name.endswith(WILDCARD):
        raise _refused(f"{name!r}: rules cannot name a resource whose name ends with a *")
    _check_principal(creation.principal)
    denied = creation.permission_type == _DENY
    return Binding(creation.principal, operation, resource, name, prefixed, creation.host, denied)


def _check_principal(principal: str) -> None:
    kind, _, name = principal.partition(":")
    if kind != "User" or not name:
        raise _refused(f"the principal must be a user, User:NAME, not {principal!r}")


def _refused(reason: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, reason)
