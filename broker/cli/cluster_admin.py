"""Topics, groups and transactions of a cluster as plain data; all client commands use it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaConnectionError, for_code
from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from kmr.kio_requests import KioRequest

from .client_command import raise_refusal
from .terminal import CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

_CREATION_TRIES: Final = 5
_COORDINATOR_TRIES: Final = 50
_CONNECTION_TRIES: Final = 50
_PAUSE: Final = 0.2  # seconds between tries


@dataclass(frozen=True)
class PartitionInfo:
    """A partition with its offsets from `start` (inclusive) to `end` (exclusive)."""

    index: int
    leader: int
    start: int
    end: int


@dataclass(frozen=True)
class TopicInfo:
    """A topic; `config` holds the settings that differ from the broker's defaults."""

    name: str
    partitions: tuple[PartitionInfo, ...]
    config: Mapping[str, str]


@dataclass(frozen=True)
class MemberInfo:
    """A member of a group, and its assigned partitions."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class OffsetInfo:
    """A group's committed offset in a partition, and the end offset of the partition."""

    topic: str
    partition: int
    committed: int
    end: int


@dataclass(frozen=True)
class GroupInfo:
    """A group with its members and committed offsets."""

    name: str
    state: str
    protocol: str
    members: tuple[MemberInfo, ...]
    offsets: tuple[OffsetInfo, ...]


class ClusterAdmin:
    """Reads and changes topics, groups and transactions; use `open_admin`.

    All methods raise KafkaError, and CommandError with the subject when a broker refuses.
    """

    def __init__(self, client: AIOKafkaAdminClient, settings: Mapping[str, Any]) -> None:
        self._client = client
        self._connections = client._client  # noqa: SLF001  sends requests that the admin client lacks
        self._settings = settings

    # -- topics --------------------------------------------------------------------------------

    async def topics(self, *, internal: bool = False) -> dict[str, int]:
        """Return the number of partitions of every topic by name."""
        return {
            topic["topic"]: len(topic["partitions"])
            for topic in sorted(await self._client.describe_topics(), key=lambda t: str(t["topic"]))
            if internal or not topic["is_internal"]
        }

    async def partitions(
        self, topics: Iterable[str], only: Sequence[int] = ()
    ) -> list[TopicPartition]:
        """Return all partitions of these topics, or only those with these numbers.

        Raises CommandError for a topic or a partition that does not exist.
        """
        existing = await self.topics(internal=True)
        found = []
        for topic in topics:
            if topic not in existing:
                raise CommandError(f"topic {topic}: does not exist")
            for index in only:
                check_partition(topic, index, existing[topic])
            found += [TopicPartition(topic, index) for index in only or range(existing[topic])]
        return found

    async def ensure_topic(self, name: str) -> int:
        """Return the number of partitions of a topic, which the cluster may create automatically.

        Raises CommandError if the topic does not exist and is not created.
        """
        if name not in await self.topics(internal=True):
            await self._client.describe_topics([name])
        # A cluster of several brokers takes a moment to create it.
        for _ in range(_CREATION_TRIES):
            topics = await self.topics(internal=True)
            if name in topics:
                return topics[name]
            await asyncio.sleep(_PAUSE)
        raise CommandError(f"topic {name}: does not exist")

    async def describe_topic(self, name: str) -> TopicInfo:
        """Return the partitions with their offsets, and the topic's own settings."""
        # Asking for all topics: asking for one could create it.
        topics = {topic["topic"]: topic for topic in await self._client.describe_topics()}
        if name not in topics:
            raise CommandError(f"topic {name}: does not exist")
        leaders = {each["partition"]: each["leader"] for each in topics[name]["partitions"]}
        partitions = [TopicPartition(name, index) for index in sorted(leaders)]
        async with self._consumer() as consumer:
            starts = await consumer.beginning_offsets(partitions)
            ends = await consumer.end_offsets(partitions)
        return TopicInfo(
            name=name,
            partitions=tuple(
                PartitionInfo(each.partition, leaders[each.partition], starts[each], ends[each])
                for each in partitions
            ),
            config=await self._topic_config(name),
        )

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; -1 takes the broker's default."""
        # aiokafka accepts -1 only together with an empty assignment.
        assignment: dict[int, list[int]] | None = (
            {} if -1 in (partitions, replication_factor) else None
        )
        topic = NewTopic(name, partitions, replication_factor, assignment, dict(config or {}))
        response = await self._client.create_topics([topic])
        for _, code, message in response.topic_errors:
            _raise_for(code, f"topic {name}", message)

    async def alter_topic(
        self, name: str, config: Mapping[str, str], *, delete: Iterable[str] = ()
    ) -> None:
        """Set some of a topic's own settings and delete others.

        Reads all settings, changes them and writes them back: concurrent calls may undo each other.
        """
        own = {**await self._topic_config(name), **config}
        for setting in delete:
            own.pop(setting, None)
        resource = ConfigResource(ConfigResourceType.TOPIC, name, own)
        for response in await self._client.alter_configs([resource]):
            for code, message, *_ in response.resources:
                _raise_for(code, f"topic {name}", message)

    async def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, up to `total`."""
        await self._client.create_partitions({name: NewPartitions(total)})

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        response = await self._client.delete_topics([name])
        for _, code in response.topic_error_codes:
            _raise_for(code, f"topic {name}")

    async def _topic_config(self, name: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        (response,) = await self._client.describe_configs([resource])
        code, message, _, _, entries = response.resources[0]
        _raise_for(code, f"configuration of topic {name}", message)
        dynamic_topic_config = 1
        return {
            name: value for name, value, _, source, *_ in entries if source == dynamic_topic_config
        }

    # -- groups --------------------------------------------------------------------------------

    async def groups(self) -> list[str]:
        """Return the names of all groups."""
        return sorted(str(group[0]) for group in await self._client.list_consumer_groups())

    async def describe_group(self, name: str) -> GroupInfo:
        """Return the members, the committed offsets, and the end offsets of their partitions."""
        code, _, state, _, protocol, described, *_ = await self._described(name)
        _raise_for(code, f"group {name}")
        members = tuple(_member(each) for each in described)
        if state == "Dead" and (group := await self._of_new_protocol(name)) is not None:
            state, protocol = group.group_state, group.assignor_name
            members = tuple(_member_of_new_protocol(each) for each in group.members)
        offsets = await self._client.list_consumer_group_offsets(name)
        committed = {tp: each.offset for tp, each in sorted(offsets.items()) if each.offset >= 0}
        if state == "Dead" and not committed:
            raise CommandError(f"group {name}: does not exist")
        ends: Mapping[TopicPartition, int] = {}
        if committed:
            async with self._consumer() as consumer:
                ends = await consumer.end_offsets(list(committed))
        return GroupInfo(
            name,
            state,
            protocol,
            members=members,
            offsets=tuple(
                OffsetInfo(tp.topic, tp.partition, at, ends[tp]) for tp, at in committed.items()
            ),
        )

    async def _described(self, group: str) -> Sequence[Any]:
        """Return the fields of a DescribeGroups response; retry while a new cluster starts up.

        The first field is the error code.
        """
        for left in reversed(range(_COORDINATOR_TRIES)):
            try:
                (response,) = await self._client.describe_consumer_groups([group])
            except GroupCoordinatorNotAvailableError:
                if not left:
                    raise
            else:
                described: Sequence[Any] = response.groups[0]
                if not left or not for_code(described[0]).retriable:
                    return described
            await asyncio.sleep(_PAUSE)
        raise AssertionError("not reached")

    async def _of_new_protocol(self, group: str) -> Any:
        """Return a group of KIP-848, which DescribeGroups does not know; None if there is none."""
        node = await self._client.find_coordinator(group)
        for _ in range(_CONNECTION_TRIES):
            if await self._connections.ready(node):
                break
            await asyncio.sleep(_PAUSE)
        question = ConsumerGroupDescribeRequest(
            group_ids=(GroupId(group),), include_authorized_operations=False
        )
        try:
            answer = await self._connections.send(node, KioRequest(question))
        except NotImplementedError:  # the cluster does not have it
            return None
        (described,) = answer.groups
        return described if described.error_code is ErrorCode.none else None

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer[bytes, bytes]]:
        consumer = AIOKafkaConsumer(**self._settings)
        try:
            await consumer.start()
            yield consumer
        finally:
            await consumer.stop()


@asynccontextmanager
async def open_admin(settings: Mapping[str, Any]) -> AsyncIterator[ClusterAdmin]:
    """Connect to a cluster; `settings` are those of any client of aiokafka.

    Raises KafkaError, and CommandError if a broker answers but refuses.
    """
    client = AIOKafkaAdminClient(**settings)
    try:
        try:
            await client.start()
        except KafkaConnectionError:
            await raise_refusal(settings)
            raise
        yield ClusterAdmin(client, settings)
    finally:
        await client.close()


def check_partition(topic: str, index: int, count: int) -> None:
    """Raise CommandError unless a topic of `count` partitions has the partition `index`."""
    if not 0 <= index < count:
        raise CommandError(f"topic {topic} has no partition {index}: it has {count}")


def _raise_for(code: int, subject: str, message: str | None = None) -> None:
    """Raise CommandError for an error code, with the broker's message if there is one."""
    if not code:
        return
    error = ErrorCode(code)
    if error is ErrorCode.topic_already_exists:
        message = "already exists"
    elif error is ErrorCode.unknown_topic_or_partition:
        message = "does not exist"
    raise CommandError(f"{subject}: {message or error.name.replace('_', ' ')}")


def _member(described: Sequence[Any]) -> MemberInfo:
    member_id, client_id, host, _, assignment = described
    return MemberInfo(member_id, client_id, host, tuple(sorted(_assigned(assignment))))


def _member_of_new_protocol(described: Any) -> MemberInfo:
    partitions = tuple(
        TopicPartition(topic.topic_name, each)
        for topic in described.assignment.topic_partitions
        for each in topic.partitions
    )
    return MemberInfo(described.member_id, described.client_id, described.client_host, partitions)


def _assigned(assignment: bytes) -> Iterable[TopicPartition]:
    """Decode an assignment; empty for members that do not speak the consumer protocol."""
    if not assignment:
        return []
    try:
        decoded = ConsumerProtocolMemberAssignment.decode(assignment)
        return [TopicPartition(topic, each) for topic, some in decoded.assignment for each in some]
    except ValueError:
        return []
