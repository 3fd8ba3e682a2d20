"""Requests, results and states of consumer groups, independent of the wire protocol.

Durations are seconds. A refused request is a result with an `error`, not an exception: refusals are
normal during a rebalance.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeVar
from uuid import UUID

GROUP_BYTES, MEMBER_BYTES = 2_000, 2_000
"""The approximate memory, in bytes, of a group and of a member, without what clients say."""

NO_GENERATION = -1
"""The generation of a client outside the group, which only stores offsets."""

T_contra = TypeVar("T_contra", contravariant=True)
Topic = TypeVar("Topic", str, UUID)


def by_topic(partitions: Iterable[tuple[Topic, int]]) -> dict[Topic, list[int]]:
    """Return the partitions of each topic, in order; topics are names or ids."""
    indexes: dict[Topic, list[int]] = {}
    for topic, index in sorted(partitions):
        indexes.setdefault(topic, []).append(index)
    return indexes


class GroupState(Enum):
    """The states of the classic protocol, with Kafka's names in DescribeGroups as values."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupError(Enum):
    """The reasons to refuse a request, named as the protocol's error codes."""

    COORDINATOR_NOT_AVAILABLE = auto()
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_GROUP_PROTOCOL = auto()
    INVALID_COMMIT_OFFSET_SIZE = auto()
    INVALID_GROUP_ID = auto()
    INVALID_REQUEST = auto()
    UNKNOWN_MEMBER_ID = auto()
    INVALID_SESSION_TIMEOUT = auto()
    REBALANCE_IN_PROGRESS = auto()
    NON_EMPTY_GROUP = auto()
    GROUP_ID_NOT_FOUND = auto()
    MEMBER_ID_REQUIRED = auto()
    GROUP_MAX_SIZE_REACHED = auto()
    FENCED_INSTANCE_ID = auto()
    FENCED_MEMBER_EPOCH = auto()
    STALE_MEMBER_EPOCH = auto()
    UNRELEASED_INSTANCE_ID = auto()
    UNSUPPORTED_ASSIGNOR = auto()
    INVALID_REGULAR_EXPRESSION = auto()
    UNSUPPORTED_VERSION = auto()


class TimerHandle(Protocol):
    """A timer of `Clock.call_later`."""

    def cancel(self) -> None:
        """Prevent the callback."""


class Waiter(Protocol[T_contra]):
    """The part of `asyncio.Future` that the state machine needs."""

    def done(self) -> bool:
        """Whether it is answered, or its client has disconnected."""

    def set_result(self, result: T_contra, /) -> None:
        """Answer the request."""


class Clock(Protocol):
    """Runs the timers of groups: an asyncio event loop, or a virtual clock in tests."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> TimerHandle:
        """Run `callback` in `delay` seconds."""


@dataclass(frozen=True, slots=True)
class ProtocolChoice:
    """An assignor that a member supports, with its metadata for the leader (opaque bytes)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The sender of a request: member id, and the instance id of a static member (KIP-345)."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """JoinGroup: a request to be a member of the next generation."""

    member: MemberIdentity
    """An empty member id means a new member."""
    protocol_type: str
    """Class of the protocols ("consumer", "connect"), the same for all members."""
    protocols: tuple[ProtocolChoice, ...]
    """The supported assignors in the order of preference."""
    session_timeout: float
    """Seconds without a heartbeat after which the member is removed."""
    rebalance_timeout: float
    """Seconds that a rebalance waits for this member to rejoin."""
    client_id: str = ""
    client_host: str = ""
    require_known_member_id: bool = False
    """A new dynamic member first gets an id, and must join again with it (KIP-394)."""
    can_skip_assignment: bool = False
    """The client understands `JoinResult.skip_assignment` (KIP-814)."""


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member as it is stored, as DescribeGroups shows it, and as the leader sees it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    metadata: bytes
    """The member's metadata for the chosen protocol."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The response to a join: the generation with this member, or an error."""

    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[MemberSnapshot, ...] = ()
    """All members; empty for all but the leader."""
    skip_assignment: bool = False
    """The leader of a stable group must not make a new assignment."""
    error: GroupError | None = None


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """SyncGroup: a request for the member's assignment; the leader's contains all assignments."""

    member: MemberIdentity
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    """(member id, assignment); only the leader's are used."""
    protocol_type: str | None = None
    """Must be the group's if given, as must `protocol_name` (KIP-559)."""
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The response to a sync: the member's own assignment, or an error."""

    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None
    error: GroupError | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as DescribeGroups shows it."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberSnapshot, ...] = ()
    """Without metadata and assignments while the group rebalances."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A generation as it is stored, when the group becomes stable or empty."""

    generation: int
    protocol_type: str
    protocol_name: str | None = None
    leader_id: str | None = None
    members: tuple[MemberSnapshot, ...] = ()
