"""Inspect topics and groups, and reset a group's offsets, without joining it."""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

import re
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import aiokafka
import anyio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from ..errors import ConsumerError, OffsetOutOfRange
from ..record import TopicPartition
from .connection import connect, no_such_topic
from .group_offsets import OffsetFetch, check_code, committed_offsets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping

    from .connection import ConnectionConfig
    from .consumer import CommitOffset
    from .subscription import Subscription

__all__ = [
    "Admin",
    "Group",
    "GroupMember",
    "connect_admin",
    "explain_refusal",
    "log_offsets",
    "offsets_at_times",
]

T = TypeVar("T")

_RETRY_BACKOFF: Final = 0.1  # seconds
_UUID: Final = re.compile(r"([0-9a-f]{8})-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}$")
"""The end of a member id, after the client id; the group makes it."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group and its assignment."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]

    @property
    def name(self) -> str:
        """The client id, or the fixed name of a static member, and what tells it from others of that name."""
        return _UUID.sub(r"\1", self.member_id)


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
    """Connect for the duration of a `with` block.

    Raises `BrokerUnavailable` when no broker answers and `ConsumerError` for refused credentials.
    """
    options = config.client_options()
    consumer = aiokafka.AIOKafkaConsumer(**options)
    async with AsyncExitStack() as stack:
        await connect(consumer, config)
        stack.push_async_callback(consumer.stop)
        client = AIOKafkaAdminClient(**options)
        stack.push_async_callback(client.close)
        with explain_refusal("connecting", config):
            await client.start()
        yield Admin(config, consumer, client)


class Admin:
    """Inspects a cluster and resets offsets. Made by `connect_admin`.

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

    async def group_members(self, group: str) -> Group:
        """Return the state of a group and its members."""

        async def ask() -> Any:
            (response,) = await self._client.describe_consumer_groups([group])
            ((code, *described),) = response.groups
            check_code(code, group)
            return described

        name, state, _, _, members, *_ = await self._ask_coordinator(f"group {group}", ask)
        return Group(name, state, tuple(_member(*fields) for fields in members))

    async def reset_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommitOffset]
    ) -> None:
        """Commit these offsets, with their metadata, for a group without members.

        Raises:
            ConsumerError: the group has members; nothing was changed.
            OffsetOutOfRange: an offset is not in the log; nothing was changed.
        """
        current = await self.group_members(group)
        if current.members:
            names = ", ".join(f"{member.client_id} at {member.host}" for member in current.members)
            raise ConsumerError(
                f"group {group} has {len(current.members)} members ({names}):"
                " stop them before its offsets are reset"
            )
        first, end = await self.beginning_offsets(offsets), await self.end_offsets(offsets)
        for partition, (offset, _) in offsets.items():
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
    except KafkaError as error:
        raise ConsumerError(f"{subject}: the broker at {servers} refused: {error}") from error
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


def _member(
    member_id: str, client_id: str, host: str, _metadata: bytes, assignment: bytes
) -> GroupMember:
    partitions = (  # empty while the group rebalances
        ConsumerProtocolMemberAssignment.decode(assignment).partitions() if assignment else []
    )
    return GroupMember(
        member_id, client_id, host, tuple(sorted(TopicPartition(*p) for p in partitions))
    )
