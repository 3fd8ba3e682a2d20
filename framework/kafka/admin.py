"""Ask a cluster about topics, groups, permissions and limits; move a group's offsets without joining it."""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

import re
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import aiokafka
import anyio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError
from aiokafka.protocol.coordination import FindCoordinatorRequest

from ..config.schema import show_count
from ..errors import ConsumerError, OffsetOutOfRange
from ..record import TopicPartition
from ..service.deadline import shield
from .connection import ConnectionConfig, connect, no_such_topic
from .group_offsets import OffsetFetch, check_code, committed_offsets

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from .consumer import CommitOffset
    from .subscription import Subscription

T = TypeVar("T")

_RETRY_BACKOFF: Final = 0.1  # seconds
_STOP_TIMEOUT: Final = 5.0  # seconds
_ANY_REQUEST_TIMEOUT: Final = 30.0  # seconds, where only options of the client are known
_UNKNOWN: Final = -(2**31)
_TRANSACTION: Final = 1  # the kind of a coordinator; 0 is that of a group
_NO_TOPIC: Final = 3
_FORBIDDEN: Final = (29, 30, 31, 53)  # topic, group, cluster, transactional id
_OPERATIONS: Final = {
    3: "READ", 4: "WRITE", 5: "CREATE", 6: "DELETE", 7: "ALTER", 8: "DESCRIBE", 10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS", 12: "IDEMPOTENT_WRITE",
}  # fmt: skip
_UUID: Final = re.compile(r"([0-9a-f]{8})-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}$")
"""The end of a member id, after the client id; the group makes it."""


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


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group and its assignment; `instance_id` is None unless it is a static one."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    instance_id: str | None = None

    @property
    def name(self) -> str:
        """The client id, or the fixed name of a static member, and what tells it from others of that name."""
        return _UUID.sub(r"\1", self.member_id)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A consumer group.

    Attributes:
        state: "Stable", "PreparingRebalance", "CompletingRebalance", "Empty" (offsets, no members) or
            "Dead" (does not exist).
        operations: what we may do with it; None if the cluster does not say.
    """

    name: str
    state: str
    members: tuple[GroupMember, ...]
    protocol_type: str = ""
    protocol: str = ""
    operations: frozenset[str] | None = None


class NotAllowed(ConsumerError):
    """Our user may not do what was asked for."""


@asynccontextmanager
async def connect_admin(
    to: ConnectionConfig | Mapping[str, Any], isolation_level: str = "read_uncommitted"
) -> AsyncIterator[Admin]:
    """Connect for the duration of a `with` block.

    Args:
        to: a connection, or options of aiokafka's clients.
        isolation_level: with `read_committed`, a log ends where an open transaction begins.

    Raises:
        BrokerUnavailable: no broker answers.
        ConsumerError: credentials are refused.
    """
    if isinstance(to, ConnectionConfig):
        config, options = to, to.client_options()
    else:
        servers, options = to["bootstrap_servers"], dict(to)
        config = ConnectionConfig(bootstrap_servers=servers, request_timeout=_ANY_REQUEST_TIMEOUT)
    consumer = aiokafka.AIOKafkaConsumer(**options, isolation_level=isolation_level)
    await connect(consumer, config)
    client = AIOKafkaAdminClient(**options)
    try:
        with explain_refusal("connecting", config):
            await client.start()
        yield Admin(config, consumer, client)
    finally:
        with shield(_STOP_TIMEOUT):
            await client.close()
            await consumer.stop()


class Admin:
    """Asks a cluster, and moves offsets. Made by `connect_admin`.

    Every method raises `ConsumerError` when the broker refuses, and when it has not answered within
    `request_timeout` seconds.
    """

    def __init__(self, config: ConnectionConfig, consumer: Any, client: Any) -> None:
        self._config = config
        self._consumer = consumer
        self._client = client
        self._explain = partial(explain_refusal, config=config)

    async def topic_partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return all partitions of the topics, in order; never create a topic.

        Raises `ConsumerError` for a topic that does not exist.
        """
        with self._explain("the list of topics"):
            cluster = await self._consumer._client.fetch_all_metadata()
        found = []
        for topic in topics:
            numbers = cluster.partitions_for_topic(topic)
            if not numbers:
                raise no_such_topic([topic], cluster.topics(), self._config)
            found += [TopicPartition(topic, number) for number in sorted(numbers)]
        return found

    async def partitions_of(self, subscription: Subscription) -> list[TopicPartition]:
        """Return all partitions of the topics that exist and match, or of the named topics, in order.

        Raises `ConsumerError` for a named topic that does not exist, and if no topic matches.
        """
        topics: Iterable[str] = subscription.topics
        if subscription.pattern is not None:
            with self._explain("the list of topics"):
                cluster = await self._consumer._client.fetch_all_metadata()
            topics = sorted(topic for topic in cluster.topics() if topic in subscription)
            if not topics:
                raise ConsumerError(f"no topic matches {subscription.pattern}")
        return await self.topic_partitions(topics)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each log."""
        wanted = await self._existing(partitions)
        with self._explain("the first offsets"):
            return await log_offsets(self._consumer, "beginning", wanted)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that the next record of each partition will have."""
        wanted = await self._existing(partitions)
        with self._explain("the end offsets"):
            return await log_offsets(self._consumer, "end", wanted)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset with a timestamp (ms) at or after the given one; None if there is none."""
        await self._existing(times)
        with self._explain("offsets by time"):
            return await offsets_at_times(self._consumer, times)

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, CommitOffset]:
        """Return all committed offsets of a group."""

        async def ask() -> dict[TopicPartition, CommitOffset]:
            node = await self._client.find_coordinator(group)
            response = await self._client._send_request(OffsetFetch(group, None), node)
            return committed_offsets(response)

        return await self._ask_coordinator(f"offsets of group {group}", ask)

    async def group(self, name: str) -> GroupListing:
        """Return the state of a group and its members. Raises NotAllowed if we may not describe it."""
        from kio.schema.describe_groups.v4 import DescribeGroupsRequest

        question = DescribeGroupsRequest(
            groups=(name,),  # type: ignore[arg-type]
            include_authorized_operations=True,
        )

        async def ask() -> Any:
            node = await self._client.find_coordinator(name)
            (found,) = (await self._send(question, node)).groups
            check_code(found.error_code, name)
            return found

        found = await self._ask_coordinator(f"group {name}", ask)
        return GroupListing(
            name,
            found.group_state,
            tuple(map(_member, found.members)),
            found.protocol_type,
            found.protocol_data,
            _operations(found.authorized_operations),
        )

    async def brokers(self) -> list[str]:
        """Return the addresses of all brokers."""
        answer = await self._metadata("the list of brokers", ())
        return [f"{broker.host}:{broker.port}" for broker in answer.brokers]

    async def log_sizes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the bytes of the logs; without those that no broker tells, or that we may not ask for."""
        from kio.schema.describe_log_dirs.v1 import DescribeLogDirsRequest
        from kio.schema.describe_log_dirs.v1.request import DescribableLogDirTopic

        numbers: dict[str, list[int]] = {}
        for topic, number in partitions:
            numbers.setdefault(topic, []).append(number)
        wanted = tuple(
            DescribableLogDirTopic(topic=topic, partitions=tuple(each))  # type: ignore[arg-type]
            for topic, each in numbers.items()
        )
        found: dict[TopicPartition, int] = {}
        for broker in self._consumer._client.cluster.brokers():
            with suppress(ConsumerError), self._explain("the sizes of logs"):
                answer = await self._send(DescribeLogDirsRequest(topics=wanted), broker.nodeId)
                found |= {
                    TopicPartition(topic.name, part.partition_index): part.partition_size
                    for directory in answer.results
                    for topic in directory.topics
                    for part in topic.partitions
                    if not part.is_future_key
                }
        return found

    async def topics(self, names: Sequence[str] | None) -> dict[str, TopicFacts]:
        """Return what is known of these topics, or of all that we may describe. It creates none."""
        answer = await self._metadata("topics", names)
        return {
            topic.name: TopicFacts(
                topic.name,
                topic.error_code,
                len(topic.partitions),
                tuple(p.partition_index for p in topic.partitions if p.leader_id < 0),
                tuple(
                    p.partition_index
                    for p in topic.partitions
                    if len(p.isr_nodes) < len(p.replica_nodes)
                ),
                _operations(topic.topic_authorized_operations),
            )
            for topic in answer.topics
        }

    async def may_use_transactional_id(self, transactional_id: str) -> bool:
        """Return whether we may describe it; the right to write with it includes that."""

        async def ask() -> None:
            node = self._client._client.get_random_node()
            question = FindCoordinatorRequest(transactional_id, _TRANSACTION)
            answer = await self._client._client.send(node, question)
            check_code(answer.error_code, transactional_id)

        try:
            await self._ask_coordinator(f"transactional id {transactional_id}", ask)
        except NotAllowed:
            return False
        return True

    async def topic_settings(self, name: str) -> Mapping[str, str] | None:
        """Return the settings of a topic; None if we may not read them."""
        return await self._settings(ConfigResource(ConfigResourceType.TOPIC, name))

    async def broker_settings(self) -> Mapping[str, str] | None:
        """Return the settings of one broker; None if we may not read them."""
        node = str(self._client._client.get_random_node())
        return await self._settings(ConfigResource(ConfigResourceType.BROKER, node))

    async def _settings(self, resource: Any) -> Mapping[str, str] | None:
        resource.configs = None
        with self._explain(f"settings of {resource.name}"):
            (response,) = await self._client.describe_configs([resource])
        for code, _, _, _, entries in response.resources:
            if not code:
                return {name: value for name, value, *_ in entries if value is not None}
        return None

    async def _metadata(self, subject: str, names: Sequence[str] | None) -> Any:
        from kio.schema.metadata.v8 import MetadataRequest
        from kio.schema.metadata.v8.request import MetadataRequestTopic

        topics = None if names is None else tuple(MetadataRequestTopic(name=n) for n in names)  # type: ignore[arg-type]
        question = MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=True,
        )
        with self._explain(subject):
            return await self._send(question, self._client._client.get_random_node())

    async def _send(self, message: Any, node: int) -> Any:
        from ..kio_requests import KioRequest

        return await self._client._client.send(node, KioRequest(message))

    async def reset_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommitOffset],
        *,
        before_log: bool = False,
    ) -> None:
        """Commit these offsets, with their metadata, for a group without members.

        Args:
            before_log: an offset may be before the first one of the log: an archive has it.

        Raises:
            ConsumerError: the group has members; nothing was changed.
            OffsetOutOfRange: an offset is not in the log; nothing was changed.
        """
        current = await self.group(group)
        if current.members:
            names = ", ".join(f"{member.client_id} at {member.host}" for member in current.members)
            raise ConsumerError(
                f"group {group} has {show_count(len(current.members), 'member')} ({names}):"
                " stop them before its offsets are reset"
            )
        first, end = await self.beginning_offsets(offsets), await self.end_offsets(offsets)
        for partition, (offset, _) in offsets.items():
            begin = 0 if before_log else first[partition]
            if not begin <= offset <= end[partition]:
                raise OffsetOutOfRange(
                    f"{partition}: offset {offset} is not in the log, which has"
                    f" {first[partition]} to {end[partition]}"
                )
        consumer = aiokafka.AIOKafkaConsumer(
            group_id=group, enable_auto_commit=False, **self._config.client_options()
        )
        try:
            await connect(consumer, self._config)
            consumer.assign([aiokafka.TopicPartition(*partition) for partition in offsets])
            with self._explain(f"the reset of group {group}"):
                # The broker refuses it if a member has joined since the check.
                await consumer.commit(
                    {aiokafka.TopicPartition(*p): tuple(entry) for p, entry in offsets.items()}
                )
        finally:
            with anyio.CancelScope(shield=True):
                await consumer.stop()

    async def _existing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Refuse unknown partitions: aiokafka would wait for them forever."""
        wanted = list(partitions)
        existing = set(await self.topic_partitions({partition.topic for partition in wanted}))
        for partition in wanted:
            if partition not in existing:
                raise ConsumerError(
                    f"{partition} does not exist at {self._config.bootstrap_servers}"
                )
        return wanted

    async def _ask_coordinator(self, subject: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask a group's coordinator; retry while there is none yet, or it is loading."""
        latest = anyio.current_time() + self._config.request_timeout - _RETRY_BACKOFF
        with self._explain(subject):
            while True:
                try:
                    return await ask()
                except KafkaError as error:
                    if not error.retriable or anyio.current_time() >= latest:
                        raise
                await anyio.sleep(_RETRY_BACKOFF)


@contextmanager
def explain_refusal(subject: str, config: ConnectionConfig) -> Iterator[None]:
    """Raise ConsumerError when the broker refuses, or gives no answer within `request_timeout` seconds."""
    seconds, servers = config.request_timeout, config.bootstrap_servers
    try:
        with anyio.fail_after(seconds):
            yield
    except (KafkaError, NotImplementedError) as error:
        kind = NotAllowed if getattr(error, "errno", 0) in _FORBIDDEN else ConsumerError
        raise kind(f"{subject}: the broker at {servers} refused: {error}") from error
    except TimeoutError:
        raise ConsumerError(f"{subject}: no answer from {servers} in {seconds:g} s") from None


async def log_offsets(
    consumer: Any, end: Literal["beginning", "end"], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the first offset of each log, or the offset that its next record will have."""
    asked = [aiokafka.TopicPartition(*partition) for partition in partitions]
    found = await getattr(consumer, f"{end}_offsets")(asked) if asked else {}
    return {TopicPartition(*partition): offset for partition, offset in found.items()}


async def offsets_at_times(
    consumer: Any, times: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """Return the first offset with a timestamp (ms) at or after the given one; None if there is none."""
    asked = {aiokafka.TopicPartition(*partition): time for partition, time in times.items()}
    found = await consumer.offsets_for_times(asked) if asked else {}
    return {
        TopicPartition(*partition): None if entry is None else int(entry.offset)
        for partition, entry in found.items()
    }


def _member(member: Any) -> GroupMember:
    assignment = member.member_assignment  # empty while the group rebalances
    partitions = (
        ConsumerProtocolMemberAssignment.decode(assignment).partitions() if assignment else []
    )
    return GroupMember(
        member.member_id,
        member.client_id,
        member.client_host.removeprefix("/"),
        tuple(sorted(TopicPartition(*p) for p in partitions)),
        member.group_instance_id,
    )


def _operations(bits: int) -> frozenset[str] | None:
    if bits == _UNKNOWN:
        return None
    return frozenset(name for code, name in _OPERATIONS.items() if bits >> code & 1)
