"""Which operations a client may do, as descriptions tell it: a bit for each of Kafka's (KIP-430)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from kio.static.primitive import i32

from broker.security.acls import CLUSTER, Operation, Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.api import RequestContext

__all__ = ["NOT_ASKED_FOR", "KafkaOperation", "allowed_operations"]

NOT_ASKED_FOR: Final = i32(-(2**31))
"""What a description has where nobody asked."""


class KafkaOperation(IntEnum):
    """The operations that the protocol knows, by their codes (`AclOperation` of the Java client)."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_OF: Final[Mapping[Resource, Mapping[KafkaOperation, Operation]]] = {
    Resource.TOPIC: {
        KafkaOperation.READ: Operation.READ,
        KafkaOperation.WRITE: Operation.WRITE,
        KafkaOperation.CREATE: Operation.CREATE,
        KafkaOperation.DELETE: Operation.DELETE,
        KafkaOperation.ALTER: Operation.ALTER,
        KafkaOperation.DESCRIBE: Operation.DESCRIBE,
        KafkaOperation.DESCRIBE_CONFIGS: Operation.DESCRIBE,
        KafkaOperation.ALTER_CONFIGS: Operation.ALTER,
    },
    Resource.GROUP: {
        KafkaOperation.READ: Operation.READ,
        KafkaOperation.DELETE: Operation.DELETE,
        KafkaOperation.DESCRIBE: Operation.DESCRIBE,
    },
    Resource.CLUSTER: {
        KafkaOperation.CREATE: Operation.CREATE,
        KafkaOperation.ALTER: Operation.ALTER,
        KafkaOperation.DESCRIBE: Operation.DESCRIBE,
        KafkaOperation.CLUSTER_ACTION: Operation.ALTER,
        KafkaOperation.DESCRIBE_CONFIGS: Operation.DESCRIBE,
        KafkaOperation.ALTER_CONFIGS: Operation.ALTER,
        KafkaOperation.IDEMPOTENT_WRITE: Operation.WRITE,
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
