"""DescribeAcls, CreateAcls, DeleteAcls: the rules of a broker that is started with --acls (KIP-11, KIP-290).

What rules of ours cannot say is refused with INVALID_REQUEST: principals that are no users, and resources
that are no topics, groups, transactional ids or the cluster.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import structlog
from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.create_acls.v3.response import AclCreationResult, CreateAclsResponse
from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.delete_acls.v3.response import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
)
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_acls.v3.response import (
    AclDescription,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from broker.api import Api
from broker.apis.acl_filters import (
    ALLOW,
    DENY,
    LITERAL,
    PREFIXED,
    RESOURCES,
    AclFilter,
    pattern_type,
    permission,
)
from broker.apis.common import NO_THROTTLE
from broker.apis.operations import OPERATIONS
from broker.errors import BrokerError, RequestError
from broker.security.acls import CLUSTER, Resource
from broker.security.bindings import (
    WILDCARD,
    Binding,
    bindings_of,
    with_bindings,
    without_bindings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.api import RequestContext
    from broker.security.acls import Authorizer

__all__ = ["APIS"]

logger = structlog.get_logger(__name__)

_NO_RULES: Final = "this broker has no access rules: it is started without --acls"
_FILE_FAILED: Final = "the file of access rules cannot be changed; the broker's log says why"
_RESOURCES: Final = {code: resource for resource, code in RESOURCES.items()}
_OPERATIONS: Final = {code: operation for operation, code in OPERATIONS.items()}


def _describe(context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    try:
        wanted = AclFilter.of(request)
        bindings = bindings_of(_authorizer(context).rules)
    except RequestError as error:
        return DescribeAclsResponse(
            throttle_time=NO_THROTTLE,
            error_code=error.code,
            error_message=error.message,
            resources=(),
        )
    resources: dict[tuple[Any, ...], list[Binding]] = defaultdict(list)
    for binding in bindings:
        if wanted.matches(binding):
            resources[binding.resource, binding.name, binding.prefixed].append(binding)
    return DescribeAclsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        resources=tuple(map(_described, resources.values())),
    )


def _described(bindings: list[Binding]) -> DescribeAclsResource:
    first = bindings[0]
    return DescribeAclsResource(
        resource_type=i8(RESOURCES[first.resource]),
        resource_name=first.name,
        pattern_type=i8(pattern_type(first)),
        acls=tuple(
            AclDescription(
                principal=each.principal,
                host=each.host,
                operation=i8(OPERATIONS[each.operation]),
                permission_type=i8(permission(each)),
            )
            for each in bindings
        ),
    )


def _create(context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    outcomes: list[Binding | RequestError] = []
    for creation in request.creations:
        try:
            _authorizer(context)
            outcomes.append(_binding(creation))
        except RequestError as error:
            outcomes.append(error)
    added = [each for each in outcomes if isinstance(each, Binding)]
    failed = _change(context, added=added) if added else None
    return CreateAclsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(_created(failed if isinstance(each, Binding) else each) for each in outcomes),
    )


def _created(error: RequestError | None) -> AclCreationResult:
    return AclCreationResult(
        error_code=ErrorCode.none if error is None else error.code,
        error_message=None if error is None else error.message,
    )


def _delete(context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    outcomes: list[list[Binding] | RequestError] = []
    for each in request.filters:
        try:
            outcomes.append(_matching(context, each))
        except RequestError as error:
            outcomes.append(error)
    removed = {each for found in outcomes if isinstance(found, list) for each in found}
    failed = _change(context, removed=removed) if removed else None
    return DeleteAclsResponse(
        throttle_time=NO_THROTTLE,
        filter_results=tuple(
            _deleted(failed if failed and isinstance(each, list) else each) for each in outcomes
        ),
    )


def _matching(context: RequestContext, described: DeleteAclsFilter) -> list[Binding]:
    wanted = AclFilter.of(described)
    return [each for each in bindings_of(_authorizer(context).rules) if wanted.matches(each)]


def _deleted(outcome: list[Binding] | RequestError) -> DeleteAclsFilterResult:
    if isinstance(outcome, RequestError):
        return DeleteAclsFilterResult(
            error_code=outcome.code, error_message=outcome.message, matching_acls=()
        )
    return DeleteAclsFilterResult(
        error_code=ErrorCode.none,
        error_message=None,
        matching_acls=tuple(
            DeleteAclsMatchingAcl(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=i8(RESOURCES[each.resource]),
                resource_name=each.name,
                pattern_type=i8(pattern_type(each)),
                principal=each.principal,
                host=each.host,
                operation=i8(OPERATIONS[each.operation]),
                permission_type=i8(permission(each)),
            )
            for each in outcome
        ),
    )


def _authorizer(context: RequestContext) -> Authorizer:
    authorizer = context.services.authorizer
    if authorizer is None:
        raise RequestError(ErrorCode.security_disabled, _NO_RULES)
    return authorizer


def _change(
    context: RequestContext, *, added: Iterable[Binding] = (), removed: Iterable[Binding] = ()
) -> RequestError | None:
    """Write the file of rules, which hold at once; the error if that fails."""
    gone = set(removed)
    authorizer = _authorizer(context)
    try:
        authorizer.alter(lambda rules: with_bindings(without_bindings(rules, gone), added))
    except BrokerError as error:
        logger.error("access rules cannot be changed", reason=str(error))
        return RequestError(ErrorCode.kafka_storage_error, _FILE_FAILED)
    logger.info("access rules changed", principal=context.principal)
    return None


def _binding(creation: AclCreation) -> Binding:
    """What is to be allowed or denied. Raises RequestError for what rules cannot say."""
    resource = _RESOURCES.get(creation.resource_type)
    operation = _OPERATIONS.get(creation.operation)
    name, prefixed = creation.resource_name, creation.resource_pattern_type == PREFIXED
    if resource is None:
        raise _refused(f"there are no rules for resources of type {creation.resource_type}")
    if operation is None:
        raise _refused(f"there is no operation {creation.operation} to allow or deny")
    if creation.resource_pattern_type not in (LITERAL, PREFIXED):
        raise _refused("a resource is named literally, or by what its name begins with")
    if creation.permission_type not in (ALLOW, DENY):
        raise _refused("rules allow or deny")
    if not creation.host:
        raise _refused("the host is empty; * is every one")
    if not name:
        raise _refused("the name of the resource is empty")
    if resource is Resource.CLUSTER and (name != CLUSTER or prefixed):
        raise _refused(f"the only cluster is called {CLUSTER}")
    if not prefixed and name != WILDCARD and name.endswith(WILDCARD):
        raise _refused(f"{name!r}: rules cannot name a resource whose name ends with a *")
    _check_principal(creation.principal)
    denied = creation.permission_type == DENY
    return Binding(creation.principal, operation, resource, name, prefixed, creation.host, denied)


def _check_principal(principal: str) -> None:
    kind, _, name = principal.partition(":")
    if kind != "User" or not name:
        raise _refused(f"a principal is a user, User:NAME, not {principal!r}")


def _refused(reason: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, reason)


APIS = (
    Api(_describe, DescribeAclsRequest, DescribeAclsResponse, min_version=1),
    Api(_create, CreateAclsRequest, CreateAclsResponse, min_version=1),
    Api(_delete, DeleteAclsRequest, DeleteAclsResponse, min_version=1),
)
