"""Which permissions DescribeAcls and DeleteAcls mean; the codes of the protocol for what they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from kio.schema.errors import ErrorCode

from broker.apis.operations import OPERATIONS
from broker.errors import RequestError
from broker.security.acls import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kio.schema.delete_acls.v3.request import DeleteAclsFilter
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

    from broker.security.bindings import Binding

__all__ = [
    "ALLOW",
    "DENY",
    "LITERAL",
    "PREFIXED",
    "RESOURCES",
    "AclFilter",
    "pattern_type",
    "permission",
]

_UNKNOWN, _ANY = 0, 1
_MATCH, LITERAL, PREFIXED = 2, 3, 4
_RESOURCE_TYPES, _PATTERN_TYPES, _OPERATIONS, _PERMISSIONS = 7, 4, 15, 3  # the highest of each

DENY: Final = 2
ALLOW: Final = 3
"""The two permissions."""

RESOURCES: Final[Mapping[Resource, int]] = {
    Resource.TOPIC: 2,
    Resource.GROUP: 3,
    Resource.CLUSTER: 4,
    Resource.TRANSACTIONAL_ID: 5,
}


def pattern_type(binding: Binding) -> int:
    """How its name is meant."""
    return PREFIXED if binding.prefixed else LITERAL


def permission(binding: Binding) -> int:
    """Whether it allows or denies."""
    return DENY if binding.denied else ALLOW


@dataclass(frozen=True, slots=True)
class AclFilter:
    """What a permission must be to be meant; None and ANY mean every one."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @classmethod
    def of(cls, asked: DescribeAclsRequest | DeleteAclsFilter) -> Self:
        """Raises RequestError for codes that nobody knows."""
        codes = (
            (asked.resource_type_filter, _RESOURCE_TYPES, "resource type"),
            (asked.pattern_type_filter, _PATTERN_TYPES, "pattern type"),
            (asked.operation, _OPERATIONS, "operation"),
            (asked.permission_type, _PERMISSIONS, "permission"),
        )
        for code, highest, what in codes:
            if not _UNKNOWN < code <= highest:
                raise RequestError(ErrorCode.invalid_request, f"there is no {what} {code}")
        return cls(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )

    def matches(self, binding: Binding) -> bool:
        """Whether this permission is meant."""
        return (
            self.resource in (_ANY, RESOURCES[binding.resource])
            and self.operation in (_ANY, OPERATIONS[binding.operation])
            and self.permission in (_ANY, permission(binding))
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self._names(binding)
        )

    def _names(self, binding: Binding) -> bool:
        """MATCH means whatever is about that name, the other kinds of patterns a name itself."""
        if self.pattern == _MATCH:
            return self.name is None or binding.covers(self.name)
        return self.pattern in (_ANY, pattern_type(binding)) and self.name in (None, binding.name)
