"""Topics and groups of a cluster, as plain data; what commands and the console share."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from broker.cli.errors import CommandError
from broker.cli.refusal import raise_refusal
from broker.cli.transactions import TransactionAdmin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

__all__ = ["Admin", "GroupInfo", "MemberInfo", "PartitionInfo", "TopicInfo", "open_admin"]


_CREATION_TRIES = 5
_COORDINATOR_TRIES = 50
_PAUSE = 0.2  # seconds


@dataclass(frozen=True)
class PartitionInfo:
    """A partition holds the offsets from `start` (inclusive) to `end` (exclusive)."""

    index: int
    leader: int
    start: int
    end: int


@dataclass(frozen=True)
class TopicInfo:
    """A topic; `config` has what differs from the broker's defaults."""

    name: str
    partitions: tuple[PartitionInfo, ...]
    config: Mapping[str, str]


@dataclass(frozen=True)
class MemberInfo:
    """A member of a group, and which partitions it has."""

    member_id: str
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class GroupInfo:
    """A group, its members, and what it has committed."""

    name: str
    state: str
    protocol: str
    members: tuple[MemberInfo, ...]
    committed: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


class Admin:
    """Questions and orders for one cluster; use `open_admin`."""

    def __init__(self, client: AIOKafkaAdminClient, settings: Mapping[str, Any]) -> None:
        self._client = client
        self._settings = settings
        self.transactions = TransactionAdmin(client)

    async def topics(self, *, internal: bool = False) -> dict[str, int]:
        """Name and number of partitions of every topic."""
        return {
            topic["topic"]: len(topic["partitions"])
            for topic in sorted(await self._client.describe_topics(), key=lambda t: str(t["topic"]))
            if internal or not topic["is_internal"]
        }

    async def need_topic(self, name: str) -> int:
        """Number of partitions of a topic that records are to be sent to.

        One that does not exist is created if the cluster does so by itself; otherwise CommandError.
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

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; -1 leaves a number to the broker. Raises CommandError."""
        # aiokafka wants to be told, by an empty assignment, that -1 is meant.
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
        """Set some of a topic's own settings and delete others. Raises CommandError.

        All that it has of its own is read, changed and written back: two of these at a time may undo
        each other.
        """
        own = {**await self._topic_config(name), **config}
        for setting in delete:
            own.pop(setting, None)
        resource = ConfigResource(ConfigResourceType.TOPIC, name, own)
        for response in await self._client.alter_configs([resource]):
            for code, message, *_ in response.resources:
                _raise_for(code, f"topic {name}", message)

    async def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, so that it has this many. Raises KafkaError."""
        await self._client.create_partitions({name: NewPartitions(total)})

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records. Raises CommandError."""
        response = await self._client.delete_topics([name])
        for _, code in response.topic_error_codes:
            _raise_for(code, f"topic {name}")

    async def describe_topic(self, name: str) -> TopicInfo:
        """Partitions with their offsets, and the topic's configuration. Raises CommandError."""
        # All are asked for: naming one would create it.
        topics = {topic["topic"]: topic for topic in await self._client.describe_topics()}
        if name not in topics:
            raise CommandError(f"topic {name}: does not exist")
        topic = topics[name]
        leaders = {each["partition"]: each["leader"] for each in topic["partitions"]}
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

    async def groups(self) -> list[str]:
        """Names of all groups."""
        return sorted(str(group[0]) for group in await self._client.list_consumer_groups())

    async def describe_group(self, name: str) -> GroupInfo:
        """Members, committed offsets and ends of the partitions. Raises CommandError."""
        code, _, state, _, protocol, members, *_ = await self._described(name)
        _raise_for(code, f"group {name}")
        offsets = await self._client.list_consumer_group_offsets(name)
        committed = {tp: each.offset for tp, each in sorted(offsets.items()) if each.offset >= 0}
        if state == "Dead" and not committed:
            raise CommandError(f"group {name}: does not exist")
        async with self._consumer() as consumer:
            ends = await consumer.end_offsets(list(committed)) if committed else {}
        return GroupInfo(
            name, state, protocol, tuple(_member(each) for each in members), committed, ends
        )

    async def _described(self, group: str) -> Sequence[Any]:
        """What its coordinator says of a group; a new cluster takes a while to have one that is ready.

        The first field is an error code. Raises KafkaError.
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

    async def _topic_config(self, name: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        (response,) = await self._client.describe_configs([resource])
        code, message, _, _, entries = response.resources[0]
        _raise_for(code, f"configuration of topic {name}", message)
        topics_own = 1  # config source DYNAMIC_TOPIC_CONFIG
        return {entry[0]: entry[1] for entry in entries if entry[3] == topics_own}

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer[bytes, bytes]]:
        consumer = AIOKafkaConsumer(**self._settings)
        try:
            await consumer.start()
            yield consumer
        finally:
            await consumer.stop()


@asynccontextmanager
async def open_admin(settings: Mapping[str, Any]) -> AsyncIterator[Admin]:
    """An `Admin`; `settings` are those of any client of aiokafka. Raises KafkaError, CommandError."""
    client = AIOKafkaAdminClient(**settings)
    try:
        try:
            await client.start()
        except KafkaConnectionError:
            await raise_refusal(settings)
            raise
        yield Admin(client, settings)
    finally:
        await client.close()


def _raise_for(code: int, what: str, message: str | None = None) -> None:
    """Raise the error of a response in words; the broker's own words go before the general ones."""
    if not code:
        return
    error: KafkaError = for_code(code)()
    if isinstance(error, TopicAlreadyExistsError):
        message = "already exists"
    elif isinstance(error, UnknownTopicOrPartitionError):
        message = "does not exist"
    words = message or getattr(error, "description", "") or type(error).__name__
    raise CommandError(f"{what}: {words}") from error


def _member(described: Sequence[Any]) -> MemberInfo:
    member_id, client_id, host, _, assignment = described
    return MemberInfo(member_id, client_id, host, tuple(sorted(_partitions(assignment))))


def _partitions(assignment: bytes) -> Iterable[TopicPartition]:
    """What the group's leader assigned; nothing when it speaks another protocol than consumers do."""
    if not assignment:
        return []
    try:
        decoded = ConsumerProtocolMemberAssignment.decode(assignment)
        return [TopicPartition(topic, each) for topic, some in decoded.assignment for each in some]
    except ValueError:
        return []
