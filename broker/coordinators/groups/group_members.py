"""The members of one group: their protocols, open requests, sessions, and the leader."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from .group_types import (
    MEMBER_BYTES,
    GroupError,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    MemberSnapshot,
    ProtocolChoice,
    SyncResult,
    TimerHandle,
    Waiter,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_ID_PREFIX: Final = 249


def new_member_id(request: JoinRequest) -> str:
    """Return an id for a member that has none yet; its beginning says whose it is."""
    return f"{(request.member.instance_id or request.client_id)[:_MAX_ID_PREFIX]}-{uuid4()}"


def metadata_bytes(protocols: Iterable[ProtocolChoice]) -> int:
    """Return the bytes of the names and metadata of protocols."""
    return sum(len(each.name) + len(each.metadata) for each in protocols)


@dataclass(slots=True, eq=False)
class Member:
    """One member, its open requests and its session timer."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: tuple[ProtocolChoice, ...]
    assignment: bytes = b""
    is_new: bool = False
    """Waits in its first rebalance without knowing its id, so it cannot heartbeat."""
    awaits_join: bool = False
    """Has joined the current rebalance, even if its connection has closed since."""
    join_waiter: Waiter[JoinResult] | None = None
    sync_waiter: Waiter[SyncResult] | None = None
    session_timer: TimerHandle | None = None

    @classmethod
    def from_request(cls, member_id: str, request: JoinRequest) -> Member:
        """Create a new member from its join request."""
        return cls(
            id=member_id,
            instance_id=request.member.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout=request.session_timeout,
            rebalance_timeout=request.rebalance_timeout,
            protocols=request.protocols,
            is_new=True,
        )

    @classmethod
    def from_snapshot(cls, stored: MemberSnapshot, protocol_name: str) -> Member:
        """Restore a stored member; it has only the chosen protocol."""
        return cls(
            id=stored.member_id,
            instance_id=stored.instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout=stored.session_timeout,
            rebalance_timeout=stored.rebalance_timeout,
            protocols=(ProtocolChoice(protocol_name, stored.metadata),),
            assignment=stored.assignment,
        )

    @property
    def kept_bytes(self) -> int:
        """The approximate memory, in bytes, of the member."""
        names = len(self.client_id) + len(self.instance_id or "")
        return MEMBER_BYTES + names + len(self.assignment) + metadata_bytes(self.protocols)

    @property
    def may_be_silent(self) -> bool:
        """Whether the member waits for others and need not heartbeat."""
        return not self.is_new and (self.awaits_join or self.sync_waiter is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not support it."""
        return next((p.metadata for p in self.protocols if p.name == protocol_name), b"")

    def wait_join(self, waiter: Waiter[JoinResult]) -> None:
        """Wait for the next generation; a retry replaces the earlier request."""
        self._answer_join(JoinResult(self.id, error=GroupError.REBALANCE_IN_PROGRESS))
        self.join_waiter = waiter
        self.awaits_join = True

    def wait_sync(self, waiter: Waiter[SyncResult]) -> None:
        """Wait for the assignment; a retry replaces the earlier request."""
        self.answer_sync(SyncResult(error=GroupError.REBALANCE_IN_PROGRESS))
        self.sync_waiter = waiter

    def answer_join(self, result: JoinResult) -> None:
        """Answer the open join request."""
        self.awaits_join = False
        self.is_new = False
        self._answer_join(result)

    def answer_sync(self, result: SyncResult) -> None:
        """Answer the open sync request."""
        waiter, self.sync_waiter = self.sync_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(result)

    def dismiss(self, error: GroupError) -> None:
        """Answer all open requests with `error` and stop the session timer."""
        self.answer_join(JoinResult("", error=error))
        self.answer_sync(SyncResult(error=error))
        self.stop_session()

    def stop_session(self) -> None:
        """Stop the session timer."""
        if self.session_timer is not None:
            self.session_timer.cancel()
            self.session_timer = None

    def snapshot(self, protocol_name: str | None) -> MemberSnapshot:
        """Return the member as it is stored."""
        return MemberSnapshot(
            member_id=self.id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout=self.session_timeout,
            rebalance_timeout=self.rebalance_timeout,
            metadata=self.metadata(protocol_name),
            assignment=self.assignment,
        )

    def _answer_join(self, result: JoinResult) -> None:
        waiter, self.join_waiter = self.join_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(result)


class Members:
    """The members of a group in the order of their first join; the first one leads."""

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._by_instance: dict[str, Member] = {}
        self._supporters: Counter[str] = Counter()
        self.leader_id: str | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._by_id.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def of_instance(self, instance_id: str | None) -> Member | None:
        """Return the static member with this instance id, if there is one."""
        return None if instance_id is None else self._by_instance.get(instance_id)

    def identify(self, identity: MemberIdentity) -> Member | GroupError:
        """Return the sender of a request, or the error if it is not a member."""
        if identity.instance_id is not None:
            static = self._by_instance.get(identity.instance_id)
            if static is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if static.id != identity.member_id:
                return GroupError.FENCED_INSTANCE_ID
        return self._by_id.get(identity.member_id, GroupError.UNKNOWN_MEMBER_ID)

    def add(self, member: Member) -> None:
        """Add a member whose id is new."""
        self._by_id[member.id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member
        self._supporters.update(_names(member.protocols))
        if self.leader_id is None:
            self.leader_id = member.id

    def remove(self, member: Member) -> None:
        """Remove a member; if it led, the next one leads."""
        del self._by_id[member.id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._supporters.subtract(_names(member.protocols))
        self._supporters += Counter()  # drops names without supporters
        if self.leader_id == member.id:
            self.leader_id = next(iter(self._by_id), None)

    def rename(self, member: Member, new_id: str) -> None:
        """Give a static member that lost its id a new one, in its old place."""
        self._by_id = {
            (new_id if known is member else known.id): known for known in self._by_id.values()
        }
        if self.leader_id == member.id:
            self.leader_id = new_id
        member.id = new_id

    def set_protocols(self, member: Member, protocols: tuple[ProtocolChoice, ...]) -> None:
        """Replace the protocols of a member."""
        self._supporters.subtract(_names(member.protocols))
        member.protocols = protocols
        self._supporters.update(_names(protocols))
        self._supporters += Counter()

    def share_a_protocol(self, protocols: Iterable[ProtocolChoice], but: Member | None) -> bool:
        """Whether all members (except `but`) support one of `protocols`."""
        own = _names(but.protocols) if but is not None else frozenset()
        others = len(self) - (but is not None)
        return any(self._supporters[p.name] - (p.name in own) == others for p in protocols)

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all support."""
        votes = Counter(
            next(p.name for p in member.protocols if self._supporters[p.name] == len(self))
            for member in self
        )
        return votes.most_common(1)[0][0]

    def elect_joined_leader(self) -> bool:
        """Choose a leader that has joined the rebalance; False if no member has."""
        if self.leader_id is not None and self._by_id[self.leader_id].awaits_join:
            return True
        joined = next((member for member in self if member.awaits_join), None)
        if joined is not None:
            self.leader_id = joined.id
        return joined is not None

    def all_joined(self) -> bool:
        """Whether every member has joined the rebalance."""
        return all(member.awaits_join for member in self._by_id.values())

    def rebalance_timeout(self) -> float:
        """Return the longest rebalance timeout of a member, in seconds."""
        return max((m.rebalance_timeout for m in self._by_id.values()), default=0.0)


def _names(protocols: Iterable[ProtocolChoice]) -> frozenset[str]:
    return frozenset(p.name for p in protocols)
