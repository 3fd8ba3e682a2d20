"""The words of group coordination, free of the wire protocol: plain frozen dataclasses.

Durations are seconds. A refused request is a result whose `error` is set, never an exception:
refusals are the normal course of a rebalance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol, TypeVar

__all__ = [
    "NO_GENERATION",
    "Clock",
    "GroupDescription",
    "GroupError",
    "GroupOverview",
    "GroupSettings",
    "GroupSnapshot",
    "GroupState",
    "JoinRequest",
    "JoinResult",
    "JoinedMember",
    "MemberDescription",
    "MemberIdentity",
    "MemberSnapshot",
    "ProtocolChoice",
    "SyncRequest",
    "SyncResult",
    "TimerHandle",
    "Waiter",
]

NO_GENERATION = -1
"""The generation that a client names when it uses the group only to store offsets."""

T_contra = TypeVar("T_contra", contravariant=True)


class GroupState(Enum):
    """The states of the classic protocol; the values are Kafka's names in DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupError(Enum):
    """Why a request was refused; the names are those of the protocol's error codes."""

    COORDINATOR_NOT_AVAILABLE = auto()
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_GROUP_PROTOCOL = auto()
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


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What an operator can turn; the names and the defaults are those of Kafka's `group.*`."""

    min_session_timeout: float = 6.0
    """Seconds; a join that asks for less is refused."""
    max_session_timeout: float = 1800.0
    """Seconds; a join that asks for more is refused."""
    initial_rebalance_delay: float = 0.0
    """Seconds that the first rebalance of an empty group waits for more members."""
    new_member_join_timeout: float = 300.0
    """Seconds that a member without a known id may wait in one rebalance; then it must retry."""
    max_size: int = 10_000
    """Members of one group, those that wait for their first join included."""
    offsets_retention: float = 7 * 24 * 3600.0
    """Seconds for which the offsets of a group without members are kept."""
    cleanup_interval: float = 600.0
    """Seconds between two searches for expired offsets."""
    offset_metadata_max_bytes: int = 4096
    """Bytes of the metadata that may be committed with an offset."""


class TimerHandle(Protocol):
    """What `Clock.call_later` returns."""

    def cancel(self) -> None:
        """Make the callback not happen."""


class Waiter(Protocol[T_contra]):
    """The part of `asyncio.Future` that the state machine needs."""

    def done(self) -> bool:
        """Whether it was answered, or its client is gone."""

    def set_result(self, result: T_contra, /) -> None:
        """Answer."""


class Clock(Protocol):
    """Where the timers of groups run; an asyncio event loop is one, tests bring a virtual one."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> TimerHandle:
        """Run `callback` in `delay` seconds."""


@dataclass(frozen=True, slots=True)
class ProtocolChoice:
    """One assignor that a member can run, and what it tells its leader (opaque bytes)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Who sends a request: the member id, and the instance id of a static member (KIP-345)."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A wish to be a member of the group's next generation."""

    member: MemberIdentity
    """An empty member id means a new member."""
    protocol_type: str
    """The class of the protocols ("consumer", "connect"); equal for all members of a group."""
    protocols: tuple[ProtocolChoice, ...]
    """The assignors that the member supports, the one it prefers first."""
    session_timeout: float
    """Seconds without a heartbeat after which the member is removed."""
    rebalance_timeout: float
    """Seconds that a rebalance waits for this member to join again."""
    client_id: str = ""
    client_host: str = ""
    require_known_member_id: bool = False
    """A new dynamic member first gets an id and must come again with it (KIP-394)."""
    can_skip_assignment: bool = False
    """The client understands `JoinResult.skip_assignment` (KIP-814)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """What the leader learns about a member of its generation."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a join: the generation that the member is now part of, or an error."""

    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    """All members; only the leader gets them."""
    skip_assignment: bool = False
    """The leader of a stable group must not make a new assignment."""
    error: GroupError | None = None


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A member of a generation asks for its assignment; the leader brings everybody's."""

    member: MemberIdentity
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    """(member id, assignment); only the leader's count."""
    protocol_type: str | None = None
    """When given, it must be the group's (KIP-559); the same holds for `protocol_name`."""
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a sync: the member's own assignment, or an error."""

    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None
    error: GroupError | None = None


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member as DescribeGroups shows it; the bytes are empty while the group rebalances."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as DescribeGroups shows it."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group as ListGroups shows it, and how many members and which generation it has."""

    group_id: str
    protocol_type: str
    state: GroupState
    members: int
    generation: int


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member as it is stored, so that it outlives a restart of the broker."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    metadata: bytes
    """What the member said for the chosen protocol."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A generation as it is stored: written whenever a group becomes stable or empty."""

    generation: int
    protocol_type: str
    protocol_name: str | None = None
    leader_id: str | None = None
    members: tuple[MemberSnapshot, ...] = ()
