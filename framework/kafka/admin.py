"""Looking at topics and groups, and moving a group's offsets, without being a member of it."""
# ruff: noqa: SLF001  aiokafka's internals; framework.kafka.contract checks them

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiokafka
import anyio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from framework.errors import ConsumerError, OffsetOutOfRange
from framework.kafka.codes import check_code
from framework.kafka.connecting import connect
from framework.kafka.offset_fetch import OffsetFetch, committed_offsets
from framework.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping

    from framework.consumer import CommitOffset
    from framework.kafka.connection import ConnectionConfig

__all__ = ["Admin", "Group", "GroupMember", "connect_admin"]

T = TypeVar("T")

_RETRY_BACKOFF: Final = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group and what it was assigned."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group.

    Attributes:
        state: "Stable", "PreparingRebalance", "CompletingRebalance", "Empty" (offsets, no members) or
            "Dead" (does not exist).
    """

    name: str
    state: str
    members: tuple[GroupMember, ...]


@asynccontextmanager
async def connect_admin(config: ConnectionConfig) -> AsyncIterator[Admin]:
    """Connect for the time of a `with` block.

    Raises `BrokerUnavailable` when no broker answers and `ConsumerError` for refused credentials.
    """
    options = config.client_options()
    consumer = aiokafka.AIOKafkaConsumer(**options)
    async with AsyncExitStack() as stack:
        await connect(consumer, config)
        stack.push_async_callback(consumer.stop)
        client = AIOKafkaAdminClient(**options)
        stack.push_async_callback(client.close)
        await client.start()
        yield Admin(config, consumer, client)


class Admin:
    """Questions to a cluster, and one order. Made by `connect_admin`.

    Every method raises `ConsumerError` when the broker refuses, and when it has not answered within
    `request_timeout` seconds.
    """

    def __init__(self, config: ConnectionConfig, consumer: Any, client: Any) -> None:
        self._config = config
        self._consumer = consumer
        self._client = client

    async def topic_partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """All partitions of the topics, in order; never creates one.

        Raises `ConsumerError` for a topic that does not exist.
        """
        with self._explained("the list of topics"):
            cluster = await self._consumer._client.fetch_all_metadata()
        found = []
        for topic in topics:
            numbers = cluster.partitions_for_topic(topic)
            if not numbers:
                raise ConsumerError(
                    f"topic {topic} does not exist at {self._config.bootstrap_servers}"
                )
            found += [TopicPartition(topic, number) for number in sorted(numbers)]
        return found

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset of each log."""
        wanted = await self._known(partitions)
        with self._explained("the first offsets"):
            return _ours(await self._consumer.beginning_offsets(wanted))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will have."""
        wanted = await self._known(partitions)
        with self._explained("the end offsets"):
            return _ours(await self._consumer.end_offsets(wanted))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first offset with a timestamp at or after the given one (milliseconds); None beyond all."""
        wanted = await self._known(times)
        with self._explained("offsets by time"):
            found = await self._consumer.offsets_for_times(
                {partition: times[TopicPartition(*partition)] for partition in wanted}
            )
        return {
            TopicPartition(*partition): None if entry is None else int(entry.offset)
            for partition, entry in found.items()
        }

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, CommitOffset]:
        """Everything that a group has committed."""

        async def ask() -> dict[TopicPartition, CommitOffset]:
            node = await self._client.find_coordinator(group)
            response = await self._client._send_request(OffsetFetch(group, None), node)
            return committed_offsets(response)

        return await self._ask_coordinator(f"offsets of group {group}", ask)

    async def group_members(self, group: str) -> Group:
        """The state of a group and its members."""

        async def ask() -> Any:
            (response,) = await self._client.describe_consumer_groups([group])
            ((code, *described),) = response.groups
            check_code(code, group)
            return described

        name, state, _, _, members, *_ = await self._ask_coordinator(f"group {group}", ask)
        return Group(name, state, tuple(_member(*fields) for fields in members))

    async def reset_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets for a group that has no members.

        Raises:
            ConsumerError: the group has members; nothing was changed.
            OffsetOutOfRange: an offset that the log does not have; nothing was changed.
        """
        current = await self.group_members(group)
        if current.members:
            names = ", ".join(f"{member.client_id} at {member.host}" for member in current.members)
            raise ConsumerError(
                f"group {group} has {len(current.members)} members ({names}):"
                " stop them before its offsets are reset"
            )
        first, end = await self.beginning_offsets(offsets), await self.end_offsets(offsets)
        for partition, offset in offsets.items():
            if not first[partition] <= offset <= end[partition]:
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
            with self._explained(f"the reset of group {group}"):
                # The broker refuses it if a member has joined since we looked.
                await consumer.commit(
                    {aiokafka.TopicPartition(*p): (offset, "") for p, offset in offsets.items()}
                )
        finally:
            with anyio.CancelScope(shield=True):
                await consumer.stop()

    async def _known(self, partitions: Iterable[TopicPartition]) -> list[Any]:
        """aiokafka waits for ever for a partition that does not exist."""
        wanted = list(partitions)
        existing = set(await self.topic_partitions({partition.topic for partition in wanted}))
        for partition in wanted:
            if partition not in existing:
                raise ConsumerError(
                    f"{partition} does not exist at {self._config.bootstrap_servers}"
                )
        return [aiokafka.TopicPartition(*partition) for partition in wanted]

    async def _ask_coordinator(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """What a group's coordinator answers; asked again while there is none yet, or it is loading."""
        latest = anyio.current_time() + self._config.request_timeout - _RETRY_BACKOFF
        with self._explained(what):
            while True:
                try:
                    return await ask()
                except KafkaError as error:
                    if not error.retriable or anyio.current_time() >= latest:
                        raise
                await anyio.sleep(_RETRY_BACKOFF)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        seconds = self._config.request_timeout
        try:
            with anyio.fail_after(seconds):
                yield
        except KafkaError as error:
            raise ConsumerError(f"{what}: the broker refused: {error}") from error
        except TimeoutError:
            raise ConsumerError(f"{what}: the broker gave no answer in {seconds:g} s") from None


def _ours(offsets: Mapping[Any, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*partition): offset for partition, offset in offsets.items()}


def _member(
    member_id: str, client_id: str, host: str, _metadata: bytes, assignment: bytes
) -> GroupMember:
    # Empty while the group rebalances.
    partitions = (
        ConsumerProtocolMemberAssignment.decode(assignment).partitions() if assignment else []
    )
    return GroupMember(
        member_id, client_id, host, tuple(sorted(TopicPartition(*p) for p in partitions))
    )
