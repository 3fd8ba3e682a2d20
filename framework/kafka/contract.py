"""What we use of aiokafka that it does not promise: checked at start, so that a change shows at once."""
# ruff: noqa: SLF001  aiokafka's internals; framework.kafka.contract checks them

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from aiokafka.consumer.fetcher import Fetcher, FetchError
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import (
    Assignment,
    SubscriptionState,
    TopicPartitionState,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["coordinator_mismatch", "fetcher_mismatch"]

# Methods that we call or override, with their parameters.
_FETCHER_METHODS: dict[str, tuple[str, ...]] = {
    "_proc_fetch_request": ("self", "assignment", "node_id", "request"),
    "_get_actions_per_node": ("self", "assignment"),
    "_create_fetch_waiter": ("self",),
    "_notify": ("self", "future"),
    "_set_error": ("self", "tp", "error"),
    "seek_to": ("self", "tp", "offset"),
    "close": ("self",),
}
_COORDINATOR_METHODS: dict[str, tuple[str, ...]] = {
    "_send_req": ("self", "request"),
    "ensure_coordinator_known": ("self",),
    "coordinator_dead": ("self",),
    "check_errors": ("self",),
}
_FETCHER_ATTRIBUTES = (
    "_client",
    "_subscriptions",
    "_fetch_min_bytes",
    "_fetch_max_bytes",
    "_fetch_max_wait_ms",
    "_max_partition_fetch_bytes",
    "_fetcher_timeout",
    "_retry_backoff",
    "_isolation_level",
    "_records",
    "_fetch_waiters",
    "_fetch_task",
    "_wait_consume_future",
    "_closed",
)
_COORDINATOR_ATTRIBUTES = ("generation", "member_id", "group_id", "_coordination_task")


def fetcher_mismatch(consumer: Any) -> str | None:
    """What `BatchFetcher` needs of a started `AIOKafkaConsumer` and does not find; None if all is there."""
    problems = [
        *_methods(Fetcher, _FETCHER_METHODS),
        *_methods(FetchError, {"check_raise": ("self",), "calculate_backoff": ("self",)}),
        *_attributes(SubscriptionState, ("subscription", "reassignment_in_progress")),
        *_attributes(Assignment, ("tps", "active", "state_value")),
        *_attributes(
            TopicPartitionState,
            ("paused", "position", "has_valid_position", "consumed_to", "await_reset"),
        ),
        *_attributes(consumer._fetcher, _FETCHER_ATTRIBUTES),
        *_attributes(consumer._client, ("send", "force_metadata_update")),
    ]
    return ", ".join(problems) or None


def coordinator_mismatch(consumer: Any) -> str | None:
    """What membership and commits need of a started consumer and do not find; None if all is there."""
    problems = [
        *_attributes(consumer, ("_client", "_fetcher", "_coordinator")),
        *_methods(GroupCoordinator, _COORDINATOR_METHODS),
        *_attributes(consumer._coordinator, _COORDINATOR_ATTRIBUTES),
        *_attributes(consumer._client, ("cluster", "set_topics")),
    ]
    return ", ".join(problems) or None


def _methods(owner: type, expected: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for name, parameters in expected.items():
        method = getattr(owner, name, None)
        if method is None or tuple(inspect.signature(method).parameters) != parameters:
            yield f"{owner.__name__}.{name}({', '.join(parameters[1:])})"


def _attributes(owner: Any, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if not hasattr(owner, name):
            yield f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"
