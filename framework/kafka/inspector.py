"""Ask a cluster about topics, groups, permissions and limits, for `kmr doctor`. It changes nothing."""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import anyio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.types import (
    Array,
    Boolean,
    Bytes,
    Int16,
    Int32,
    Schema,
    String,
)

from ..errors import ConsumerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

__all__ = ["GroupFacts", "Inspector", "MemberFacts", "TopicFacts", "inspect_cluster"]

_TIMEOUT: Final = 30.0  # seconds for one question
_RETRY_AFTER: Final = 0.1  # seconds
_UNKNOWN: Final = -(2**31)
_TRANSACTION: Final = 1  # the kind of a coordinator; 0 is that of a group
_NO_TOPIC: Final = 3
_FORBIDDEN: Final = (29, 30, 31, 53)  # topic, group, cluster, transactional id
_OPERATIONS: Final = {
    3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER", 8: "DESCRIBE", 10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS", 12: "IDEMPOTENT_WRITE",
}  # fmt: skip


class _MetadataResponse8(Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(
                ("node_id", Int32),
                ("host", String("utf-8")),
                ("port", Int32),
                ("rack", String("utf-8")),
            ),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_operations", Int32),
    )


class _MetadataRequest8(RequestStruct):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _MetadataResponse8
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _Metadata(Request[_MetadataRequest8]):  # type: ignore[misc]
    """Metadata with authorized operations (KIP-430); creates no topic."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str] | None) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._topics, False, False, True)  # noqa: FBT003


class _DescribeGroupsResponse4(Response):  # type: ignore[misc]
    API_KEY = 15
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            Array(
                ("error_code", Int16),
                ("group", String("utf-8")),
                ("state", String("utf-8")),
                ("protocol_type", String("utf-8")),
                ("protocol", String("utf-8")),
                (
                    "members",
                    Array(
                        ("member_id", String("utf-8")),
                        ("group_instance_id", String("utf-8")),
                        ("client_id", String("utf-8")),
                        ("client_host", String("utf-8")),
                        ("member_metadata", Bytes),
                        ("member_assignment", Bytes),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    )


class _DescribeGroupsRequest4(RequestStruct):  # type: ignore[misc]
    API_KEY = 15
    API_VERSION = 4
    RESPONSE_TYPE = _DescribeGroupsResponse4
    SCHEMA = Schema(("groups", Array(String("utf-8"))), ("include_authorized_operations", Boolean))


class _DescribeGroup(Request[_DescribeGroupsRequest4]):  # type: ignore[misc]
    """DescribeGroups with the names of static members (KIP-345)."""

    API_KEY = 15

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class([self._group], True)  # noqa: FBT003


class TopicFacts(NamedTuple):
    """A topic.

    Attributes:
        error: that of its metadata, as a code of Kafka; 0: it exists.
        partitions: how many.
        leaderless: partitions without a leader.
        lagging: partitions that lack an in-sync replica.
        operations: what we may do with it; None if the cluster does not say.
    """

    name: str
    error: int
    partitions: int
    leaderless: tuple[int, ...]
    lagging: tuple[int, ...]
    operations: frozenset[str] | None

    @property
    def is_missing(self) -> bool:
        """Whether there is no such topic."""
        return self.error == _NO_TOPIC

    def problem(self, operation: Literal["READ", "WRITE"], user: str) -> tuple[str, str] | None:
        """Return why a worker cannot use the topic, and what to do; None if it can."""
        does = {"READ": "read", "WRITE": "write to"}[operation]
        if self.error in _FORBIDDEN or operation not in (self.operations or {operation}):
            return (
                f"we may not {does} topic {self.name}: the worker fails at its start",
                f"allow {user} {operation} and DESCRIBE on the topic",
            )
        if self.error:
            return f"topic {self.name} does not exist", "create it, or correct its name"
        if self.leaderless:
            numbers = ", ".join(map(str, self.leaderless))
            return (
                f"partition {numbers} of topic {self.name} has no leader: it stands still",
                "start the brokers that have its replicas",
            )
        return None


class MemberFacts(NamedTuple):
    """A member of a group; `instance_id` is None unless it is a static one."""

    client_id: str
    host: str
    instance_id: str | None


class GroupFacts(NamedTuple):
    """A group; see `TopicFacts` for `operations`."""

    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberFacts, ...]
    operations: frozenset[str] | None


class Inspector:
    """Asks a cluster. Every method raises ConsumerError if it does not answer, or refuses."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin
        self._client = admin._client

    async def brokers(self) -> list[str]:
        """Return the addresses of all brokers."""
        answer = await self._ask("the list of brokers", _Metadata([]))
        return [f"{broker['host']}:{broker['port']}" for broker in answer["brokers"]]

    async def topics(self, names: Sequence[str] | None) -> dict[str, TopicFacts]:
        """Return what is known of these topics, or of all that we may describe."""
        answer = await self._ask("topics", _Metadata(names))
        return {
            topic["topic"]: TopicFacts(
                topic["topic"],
                topic["error_code"],
                len(topic["partitions"]),
                tuple(p["partition"] for p in topic["partitions"] if p["leader"] < 0),
                tuple(
                    p["partition"]
                    for p in topic["partitions"]
                    if len(p["isr"]) < len(p["replicas"])
                ),
                _operations(topic["authorized_operations"]),
            )
            for topic in answer["topics"]
        }

    async def group(self, name: str) -> GroupFacts | None:
        """Return a group; None if we may not describe it."""
        node = await self._coordinator(name, 0)
        if node is None:
            return None
        answer = await self._ask(f"group {name}", _DescribeGroup(name), node)
        (group,) = answer["groups"]
        if group["error_code"] in _FORBIDDEN:
            return None
        return GroupFacts(
            group["state"],
            group["protocol_type"],
            group["protocol"],
            tuple(
                MemberFacts(
                    m["client_id"], m["client_host"].removeprefix("/"), m["group_instance_id"]
                )
                for m in group["members"]
            ),
            _operations(group["authorized_operations"]),
        )

    async def may_use_transactional_id(self, transactional_id: str) -> bool:
        """Return whether we may describe it; the right to write with it includes that."""
        return await self._coordinator(transactional_id, _TRANSACTION) is not None

    async def topic_settings(self, name: str) -> Mapping[str, str] | None:
        """Return the settings of a topic; None if we may not read them."""
        return await self._settings(ConfigResource(ConfigResourceType.TOPIC, name))

    async def broker_settings(self) -> Mapping[str, str] | None:
        """Return the settings of one broker; None if we may not read them."""
        node = str(self._client.get_random_node())
        return await self._settings(ConfigResource(ConfigResourceType.BROKER, node))

    async def _settings(self, resource: Any) -> Mapping[str, str] | None:
        resource.configs = None
        try:
            with anyio.fail_after(_TIMEOUT):
                (response,) = await self._admin.describe_configs([resource])
        except (KafkaError, TimeoutError) as error:
            raise _refused(f"settings of {resource.name}", error) from error
        for code, _, _, _, entries in response.resources:
            if code:
                return None
            return {name: value for name, value, *_ in entries if value is not None}
        return None

    async def _coordinator(self, key: str, kind: int) -> int | None:
        """Return the node of a coordinator; None if we may not ask for it."""
        with anyio.move_on_after(_TIMEOUT):
            while True:
                answer = await self._ask(key, FindCoordinatorRequest(key, kind))
                code: int = answer["error_code"]
                if code in _FORBIDDEN:
                    return None
                if not code:
                    node: int = answer["coordinator_id"]
                    return node
                await anyio.sleep(_RETRY_AFTER)
        raise ConsumerError(f"{key}: no broker is its coordinator")

    async def _ask(self, subject: str, request: Any, node: int | None = None) -> dict[str, Any]:
        target = self._client.get_random_node() if node is None else node
        try:
            with anyio.fail_after(_TIMEOUT):
                answer = await self._client.send(target, request)
        except (KafkaError, NotImplementedError, TimeoutError) as error:
            raise _refused(subject, error) from error
        found: dict[str, Any] = answer.to_object()
        return found


@asynccontextmanager
async def inspect_cluster(options: Mapping[str, Any]) -> AsyncIterator[Inspector]:
    """Connect for the duration of a `with` block.

    Args:
        options: keyword arguments of aiokafka's clients.

    Raises:
        ConsumerError: no broker answers, or it refuses.
    """
    admin = AIOKafkaAdminClient(**options)
    try:
        try:
            with anyio.fail_after(_TIMEOUT):
                await admin.start()
        except (KafkaError, TimeoutError) as error:
            # aiokafka only logs why: an address that does not answer, or credentials that are refused.
            servers = options["bootstrap_servers"]
            raise ConsumerError(f"no Kafka broker at {servers} answers, and lets us in") from error
        yield Inspector(admin)
    finally:
        await admin.close()


def _operations(bits: int) -> frozenset[str] | None:
    if bits == _UNKNOWN:
        return None
    return frozenset(name for code, name in _OPERATIONS.items() if bits >> code & 1)


def _refused(subject: str, error: Exception) -> ConsumerError:
    return ConsumerError(f"{subject}: the brokers did not answer: {type(error).__name__}: {error}")
