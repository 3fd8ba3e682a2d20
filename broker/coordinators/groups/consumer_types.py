"""Requests, results and members of groups of KIP-848, independent of the wire protocol.

Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from .group_types import MEMBER_BYTES, GroupError, TimerHandle, by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

JOIN_EPOCH: Final = 0
STATIC_LEAVE_EPOCH: Final = -2
_DEFAULT_REBALANCE_TIMEOUT: Final = 300.0
_NAME_BYTES: Final = 60  # of a string in memory, without its characters

Partitions = frozenset[tuple[UUID, int]]


class ConsumerGroupState(Enum):
    """The states, with Kafka's names in ConsumerGroupDescribe as values."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat; None means that nothing has changed since the heartbeat before."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: float | None = None
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    matched: tuple[str, ...] | None = None
    """The topics that match the member's expression and that it may see, when they are known anew."""
    matched_at: tuple[int, float] | None = None
    """The version of the topics and the time, in seconds, when they were found."""
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def kept_bytes(self) -> int:
        """The approximate memory, in bytes, of what the member says."""
        names = (
            *(self.member_id, self.instance_id, self.rack_id, self.client_id),
            *(self.regex, self.assignor),
        )
        return MEMBER_BYTES + names_bytes(names) + names_bytes(self.topics or ())

    @property
    def is_full(self) -> bool:
        """Whether it says everything: the client does not know whether its last one arrived."""
        has_topics = self.topics is not None or self.regex is not None
        return self.rebalance_timeout is not None and has_topics and self.owned is not None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResult:
    """The member's epoch, and its assignment if it has changed; or an error."""

    member_id: str = ""
    epoch: int = 0
    assignment: Partitions | None = None
    error: GroupError | None = None


@dataclass(slots=True)
class ConsumerMember:
    """One member."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: float = _DEFAULT_REBALANCE_TIMEOUT
    topics: tuple[str, ...] = ()
    regex: str = ""
    matched: tuple[str, ...] = ()
    assignor: str | None = None
    epoch: int = 0
    """That of the assignment that it has reached; -2: a static member that will come back."""
    previous_epoch: int = 0
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()
    is_waiting: bool = False
    """Whether other members still hold partitions of its target."""
    matched_at: tuple[int, float] = field(default=(-1, 0.0), compare=False)
    """The version of the topics that `matched` was found in, and the time, in seconds."""
    session_timer: TimerHandle | None = field(default=None, compare=False)
    step_timer: TimerHandle | None = field(default=None, compare=False)
    """Of its next step in a rebalance: it has to release partitions."""

    @property
    def subscription(self) -> set[str]:
        """The names of the topics that it reads."""
        return {*self.topics, *self.matched}

    @property
    def kept_bytes(self) -> int:
        """The approximate memory, in bytes, of the member."""
        names = (self.id, self.instance_id, self.rack_id, self.client_id, self.regex, self.assignor)
        return MEMBER_BYTES + names_bytes(names) + names_bytes(self.topics)

    def stop(self) -> None:
        """Cancel the timers."""
        for timer in (self.session_timer, self.step_timer):
            if timer is not None:
                timer.cancel()
        self.session_timer = self.step_timer = None

    def record(self, target: Partitions) -> dict[str, Any]:
        """Return the record to store, with the member's target."""
        return {
            "instance_id": self.instance_id,
            "rack_id": self.rack_id,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "rebalance_timeout": self.rebalance_timeout,
            "topics": self.topics,
            "regex": self.regex,
            "matched": self.matched,
            "assignor": self.assignor,
            "epoch": self.epoch,
            "previous_epoch": self.previous_epoch,
            "is_waiting": self.is_waiting,
            "assigned": _pack(self.assigned),
            "revoking": _pack(self.revoking),
            "target": _pack(target),
        }

    @classmethod
    def from_record(
        cls, member_id: str, stored: Mapping[str, Any]
    ) -> tuple[ConsumerMember, Partitions]:
        """Read what `record` returned."""
        values = dict(stored)
        target = _unpack(values.pop("target"))
        for name in ("assigned", "revoking"):
            values[name] = _unpack(values[name])
        for name in ("topics", "matched"):
            values[name] = tuple(values[name])
        return cls(member_id, **values), target


def names_bytes(names: Iterable[str | None]) -> int:
    """Return about the memory of some names."""
    return sum(_NAME_BYTES + len(each or "") for each in names)


def _pack(partitions: Partitions) -> dict[str, list[int]]:
    return {str(topic): indexes for topic, indexes in by_topic(partitions).items()}


def _unpack(packed: Mapping[str, list[int]]) -> Partitions:
    return frozenset((UUID(topic), index) for topic, each in packed.items() for index in each)
