"""The classic protocol in a group of KIP-848: what a member is asked for, given and refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from kmr.broker.coordinators.groups.classic_members import ClassicMembers
from kmr.broker.coordinators.groups.consumer_group import ConsumerGroup
from kmr.broker.coordinators.groups.consumer_types import ConsumerHeartbeat, Partitions
from kmr.broker.coordinators.groups.embedded_protocol import read_assignment, write_assignment
from kmr.broker.coordinators.groups.group_types import (
    GroupError,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    ProtocolChoice,
    SyncRequest,
)
from tests.broker.coordinators.conftest import SETTINGS, VirtualClock

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC = UUID(int=1)
TOPICS: Mapping[str, tuple[UUID, int]] = {"t": (TOPIC, 4)}
METADATA = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"
"""A subscription to "t" of version 0."""


def heartbeat(epoch: int, owned: Partitions = frozenset()) -> ConsumerHeartbeat:
    return ConsumerHeartbeat("new", epoch, rebalance_timeout=60.0, topics=("t",), owned=owned)


class Bench:
    """A group with one member of KIP-848, "new", which holds everything; classic ones join it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.topics = dict(TOPICS)
        self.changed = 0
        self.group = ConsumerGroup("g", SETTINGS, self.clock, self.topics.get, self._change)
        self.classic = ClassicMembers(self.group)
        self.group.heartbeat(heartbeat(0))

    def _change(self, _: ConsumerGroup) -> None:
        self.changed += 1

    def beat(self) -> None:
        """A heartbeat of the new member, which gives up what it no longer shall have."""
        member = self.group.members["new"]
        assert self.group.heartbeat(heartbeat(member.epoch, member.assigned)).error is None

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        require_known_member_id: bool = False,
    ) -> JoinResult:
        choices = {"sticky": METADATA} if protocols is None else protocols
        return self.classic.join(
            JoinRequest(
                MemberIdentity(member_id, instance_id),
                protocol_type,
                tuple(ProtocolChoice(*each) for each in choices.items()),
                session_timeout=10.0,
                rebalance_timeout=20.0,
                client_id="c",
                require_known_member_id=require_known_member_id,
            )
        )

    def sync(self, joined: JoinResult, generation: int | None = None, **named: str) -> Any:
        at = joined.generation if generation is None else generation
        return self.classic.sync(SyncRequest(MemberIdentity(joined.member_id), at, (), **named))

    def heartbeat(self, joined: JoinResult) -> GroupError | None:
        return self.classic.heartbeat(MemberIdentity(joined.member_id), joined.generation)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_member_joins_again_when_what_it_shall_have_is_free(bench: Bench) -> None:
    joined = bench.join()
    assert (joined.leader_id, joined.protocol_name) == ("", "sticky")
    assert read_assignment(bench.sync(joined).assignment)[0] == frozenset()
    assert bench.heartbeat(joined) is None
    bench.beat()  # learns what it has to give up
    assert bench.heartbeat(joined) is None
    bench.beat()
    assert bench.heartbeat(joined) is GroupError.REBALANCE_IN_PROGRESS
    again = bench.join(joined.member_id)
    assert again.generation == joined.generation
    assert len(read_assignment(bench.sync(again).assignment)[0]) == 2
    assert bench.heartbeat(again) is None


def test_a_member_is_asked_to_join_again_when_a_topic_has_grown(bench: Bench) -> None:
    joined = bench.join()
    bench.sync(joined)
    bench.topics["t"] = (TOPIC, 8)
    assert bench.heartbeat(joined) is GroupError.REBALANCE_IN_PROGRESS
    assert bench.sync(joined).error is GroupError.REBALANCE_IN_PROGRESS
    again = bench.join(joined.member_id)
    assert again.generation > joined.generation
    assert bench.sync(joined).error is GroupError.ILLEGAL_GENERATION
    assert len(read_assignment(bench.sync(again).assignment)[0]) == 2  # the others are not free yet


def test_a_new_member_is_asked_to_come_back_with_its_id(bench: Bench) -> None:
    told = bench.join(require_known_member_id=True)
    assert told.error is GroupError.MEMBER_ID_REQUIRED
    assert bench.group.size == 1
    joined = bench.join(told.member_id, require_known_member_id=True)
    assert joined.error is None
    assert joined.member_id == told.member_id


@pytest.mark.parametrize("silent", ["sync", "heartbeat", "join"])
def test_a_member_that_is_silent_or_does_not_go_on_is_removed(bench: Bench, silent: str) -> None:
    joined = bench.join()
    if silent != "sync":
        bench.sync(joined)
    if silent == "join":
        bench.topics["t"] = (TOPIC, 8)
    for _ in range(21):
        bench.clock.advance(1)
        bench.beat()
        if silent != "heartbeat" and bench.group.size == 2:
            bench.heartbeat(joined)
    assert list(bench.group.members) == ["new"]
    assert bench.changed == 1
    assert bench.heartbeat(joined) is GroupError.UNKNOWN_MEMBER_ID


def test_a_member_that_goes_on_stays(bench: Bench) -> None:
    joined = bench.join()
    bench.sync(joined)
    for _ in range(60):
        bench.clock.advance(1)
        bench.beat()
        if bench.heartbeat(joined) is GroupError.REBALANCE_IN_PROGRESS:
            joined = bench.join(joined.member_id)
            bench.sync(joined)
    assert {len(each.assigned) for each in bench.group.members.values()} == {2}


def test_members_leave_by_their_id_or_by_their_name(bench: Bench) -> None:
    joined, static = bench.join(), bench.join(instance_id="i")
    leave = bench.classic.leave
    assert leave(MemberIdentity("other")) is GroupError.UNKNOWN_MEMBER_ID
    assert leave(MemberIdentity("", "j")) is GroupError.UNKNOWN_MEMBER_ID
    assert leave(MemberIdentity("other", "i")) is GroupError.FENCED_INSTANCE_ID
    assert leave(MemberIdentity(joined.member_id)) is None
    assert leave(MemberIdentity("", "i")) is None
    assert leave(MemberIdentity("new")) is None
    assert bench.group.size == 0
    assert static.error is None


def test_a_static_member_that_comes_back_fences_the_one_before(bench: Bench) -> None:
    first = bench.join(instance_id="i")
    second = bench.join(instance_id="i")
    assert second.member_id != first.member_id
    identity = MemberIdentity(first.member_id, "i")
    fenced = bench.classic.heartbeat(identity, first.generation)
    assert fenced is GroupError.FENCED_INSTANCE_ID
    assert bench.join(first.member_id, instance_id="i").error is GroupError.FENCED_INSTANCE_ID
    assert bench.join("x", instance_id="j").error is GroupError.UNKNOWN_MEMBER_ID


def test_a_member_that_could_not_go_on_in_a_classic_group_is_refused(bench: Bench) -> None:
    refused = GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert bench.join(protocol_type="connect").error is refused
    assert bench.join(protocols={}).error is refused
    assert bench.join(protocols={"sticky": b"\0"}).error is refused
    first = bench.join(protocols={"sticky": METADATA, "range": METADATA})
    assert bench.join(protocols={"own": METADATA}).error is refused
    assert bench.join(protocols={"range": METADATA}).error is None
    # The second one only shares the range assignor.
    assert bench.join(first.member_id, protocols={"sticky": METADATA}).error is refused
    assert bench.join(first.member_id, protocols={"range": METADATA}).error is None


def test_a_sync_of_another_protocol_and_requests_of_other_members_are_refused(
    bench: Bench,
) -> None:
    joined = bench.join()
    inconsistent = GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert bench.sync(joined, protocol_name="range").error is inconsistent
    assert bench.sync(joined, protocol_type="connect").error is inconsistent
    assert bench.sync(joined, generation=99).error is GroupError.ILLEGAL_GENERATION
    identity = MemberIdentity("new")
    epoch = bench.group.members["new"].epoch
    assert bench.classic.heartbeat(identity, epoch) is GroupError.UNKNOWN_MEMBER_ID
    assert bench.join("new").error is GroupError.UNKNOWN_MEMBER_ID


def test_an_assignment_has_the_version_of_the_subscription(bench: Bench) -> None:
    joined = bench.join(protocols={"sticky": b"\0\1" + METADATA[2:] + b"\0\0\0\0"})
    assert bench.sync(joined).assignment == write_assignment(1, ())
