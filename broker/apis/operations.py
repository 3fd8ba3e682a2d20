"""Which operations a client may do, as descriptions tell it: a bit for each of Kafka's (KIP-430)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.static.primitive import i32

from broker.security.acls import CLUSTER, Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.api import RequestContext

__all__ = ["NOT_ASKED_FOR", "OPERATIONS", "allowed_operations"]

NOT_ASKED_FOR: Final = i32(-(2**31))
"""What a description has where nobody asked."""


OPERATIONS: Final[Mapping[Operation, int]] = {
    Operation.ALL: 2,
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
"""The codes of the protocol (`AclOperation` of the Java client)."""

_ON_TOPIC: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_ON_GROUP: Final = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)
_ON_CLUSTER: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
_OF: Final[Mapping[Resource, Sequence[Operation]]] = {
    Resource.TOPIC: _ON_TOPIC,
    Resource.GROUP: _ON_GROUP,
    Resource.CLUSTER: _ON_CLUSTER,
}


def allowed_operations(
    context: RequestContext, resource: Resource, name: str = CLUSTER, *, wanted: bool = True
) -> i32:
    """Bit n is set if this client may do Kafka's operation n; without an authorizer, everything."""
    if not wanted:
        return NOT_ASKED_FOR
    allowed = [each for each in _OF[resource] if context.allows(each, resource, name)]
    return i32(sum(1 << OPERATIONS[each] for each in allowed))
