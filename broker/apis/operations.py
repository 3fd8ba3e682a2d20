"""Which operations a client may do, as descriptions tell it: a bit for each of Kafka's (KIP-430)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.static.primitive import i32

from broker.security.acls import CLUSTER, Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.api import RequestContext

__all__ = ["NOT_ASKED_FOR", "allowed_operations"]

NOT_ASKED_FOR: Final = i32(-(2**31))
"""What a description has where nobody asked."""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = range(3, 10)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)
_OF: Final[Mapping[Resource, Mapping[int, Operation]]] = {
    Resource.TOPIC: {
        _READ: Operation.READ,
        _WRITE: Operation.WRITE,
        _CREATE: Operation.CREATE,
        _DELETE: Operation.DELETE,
        _ALTER: Operation.ALTER,
        _DESCRIBE: Operation.DESCRIBE,
        _DESCRIBE_CONFIGS: Operation.DESCRIBE,
        _ALTER_CONFIGS: Operation.ALTER,
    },
    Resource.GROUP: {
        _READ: Operation.READ,
        _DELETE: Operation.DELETE,
        _DESCRIBE: Operation.DESCRIBE,
    },
    Resource.CLUSTER: {
        _CREATE: Operation.CREATE,
        _ALTER: Operation.ALTER,
        _DESCRIBE: Operation.DESCRIBE,
        _CLUSTER_ACTION: Operation.ALTER,
        _DESCRIBE_CONFIGS: Operation.DESCRIBE,
        _ALTER_CONFIGS: Operation.ALTER,
        _IDEMPOTENT_WRITE: Operation.WRITE,
    },
}
"""Kafka's operations on a resource, and what allows them here."""


def allowed_operations(
    context: RequestContext, resource: Resource, name: str = CLUSTER, *, wanted: bool = True
) -> i32:
    """Bit n is set if this client may do Kafka's operation n; without an authorizer, everything."""
    if not wanted:
        return NOT_ASKED_FOR
    operations = _OF[resource].items()
    return i32(sum(1 << code for code, need in operations if context.allows(need, resource, name)))
