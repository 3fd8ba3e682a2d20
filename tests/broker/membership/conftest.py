"""A group on a virtual clock: nothing waits, nothing sleeps."""

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pytest

from broker.membership.group import Group
from broker.membership.types import (
    GroupError,
    GroupSettings,
    GroupSnapshot,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    ProtocolChoice,
    SyncRequest,
    SyncResult,
)

T = TypeVar("T")


@dataclass(eq=False)
class Timer:
    """A callback that waits for its time."""

    callback: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class VirtualClock:
    """Time that passes only when a test says so."""

    now: float = 0.0
    _due: list[tuple[float, int, Timer]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._due, (self.now + delay, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass; timers that are due run in order, also those that other timers start."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, timer = heapq.heappop(self._due)
            if not timer.cancelled:
                timer.callback()
        self.now = end

    @property
    def pending(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self._due)


class Answer(Generic[T]):
    """Where a request's answer arrives; a second answer is an error."""

    def __init__(self) -> None:
        self._results: list[T] = []
        self.gone = False
        """The client's connection is closed: nobody reads the answer."""

    def done(self) -> bool:
        return self.gone or bool(self._results)

    def set_result(self, result: T, /) -> None:
        assert not self.done()
        self._results.append(result)

    @property
    def value(self) -> T:
        assert self._results, "not answered yet"
        return self._results[0]


class GroupBench:
    """A group with the requests of its members in short form."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.clock = VirtualClock()
        self.stored: list[GroupSnapshot] = []
        self.group = Group(
            "g",
            settings or GroupSettings(),
            self.clock,
            lambda _, generation: self.stored.append(generation),
        )

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_timeout: float = 10.0,
        rebalance_timeout: float = 60.0,
        require_known_member_id: bool = False,
        can_skip_assignment: bool = True,
    ) -> Answer[JoinResult]:
        answer: Answer[JoinResult] = Answer()
        choices = {"range": b"topics"} if protocols is None else protocols
        self.group.join(
            JoinRequest(
                member=MemberIdentity(member_id, instance_id),
                protocol_type=protocol_type,
                protocols=tuple(ProtocolChoice(*choice) for choice in choices.items()),
                session_timeout=session_timeout,
                rebalance_timeout=rebalance_timeout,
                client_id="client",
                client_host="host",
                require_known_member_id=require_known_member_id,
                can_skip_assignment=can_skip_assignment,
            ),
            answer,
        )
        return answer

    def sync(
        self,
        joined: JoinResult,
        assignments: dict[str, bytes] | None = None,
        instance_id: str | None = None,
        protocol_name: str | None = None,
    ) -> Answer[SyncResult]:
        answer: Answer[SyncResult] = Answer()
        self.group.sync(
            SyncRequest(
                member=MemberIdentity(joined.member_id, instance_id),
                generation=joined.generation,
                assignments=tuple((assignments or {}).items()),
                protocol_name=protocol_name,
            ),
            answer,
        )
        return answer

    def heartbeat(self, joined: JoinResult, instance_id: str | None = None) -> GroupError | None:
        return self.group.heartbeat(
            MemberIdentity(joined.member_id, instance_id), joined.generation
        )

    def leave(self, member_id: str, instance_id: str | None = None) -> GroupError | None:
        return self.group.leave(MemberIdentity(member_id, instance_id))

    def commit(self, joined: JoinResult, instance_id: str | None = None) -> GroupError | None:
        identity = MemberIdentity(joined.member_id, instance_id)
        return self.group.check_commit(identity, joined.generation)

    def rebalanced(self, *answers: Answer[JoinResult]) -> list[JoinResult]:
        """Sync all members of a complete generation; the leader gives each its own id."""
        joined = [answer.value for answer in answers]
        followers = [each for each in joined if each.member_id != each.leader_id]
        (leader,) = (each for each in joined if each.member_id == each.leader_id)
        synced = [(each, self.sync(each)) for each in followers]
        plan = {member.member_id: member.member_id.encode() for member in leader.members}
        synced.append((leader, self.sync(leader, plan)))
        for each, answer in synced:
            assert answer.value.assignment == each.member_id.encode()
        return joined

    def stable(self, members: int = 1) -> list[JoinResult]:
        """Make a stable group of so many dynamic members; the first one leads."""
        first = self.rebalanced(self.join())[0]
        others = [self.join() for _ in range(members - 1)]
        if not others:
            return [first]
        return self.rebalanced(self.join(first.member_id), *others)


@pytest.fixture
def bench() -> GroupBench:
    return GroupBench()


@pytest.fixture
def make_bench() -> type[GroupBench]:
    return GroupBench
