"""Static members (KIP-345): a restart with the same instance id moves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.membership.types import GroupError, GroupState, JoinResult

if TYPE_CHECKING:
    from tests.broker.membership.conftest import GroupBench


def static_pair(bench: GroupBench) -> tuple[JoinResult, JoinResult]:
    """A stable group of the static members "one", which leads, and "two"."""
    one = bench.join(instance_id="one").value
    bench.sync(one, instance_id="one")
    two = bench.join(instance_id="two")
    again = bench.join(one.member_id, instance_id="one").value
    waiting = bench.sync(two.value, instance_id="two")
    bench.sync(again, {again.member_id: b"1", two.value.member_id: b"2"}, instance_id="one")
    assert waiting.value.assignment == b"2"
    return again, two.value


def test_a_static_member_needs_no_second_join_to_get_its_id(bench: GroupBench) -> None:
    joined = bench.join(instance_id="one", require_known_member_id=True).value
    assert joined.error is None
    assert joined.member_id.startswith("one-")


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance(
    bench: GroupBench,
) -> None:
    one, two = static_pair(bench)
    back = bench.join(instance_id="two").value

    assert back.member_id != two.member_id
    assert (back.generation, back.leader_id) == (two.generation, one.member_id)
    assert bench.heartbeat(one, "one") is None
    assert bench.sync(back, instance_id="two").value.assignment == b"2"
    assert bench.stored[-1].members[1].member_id == back.member_id


def test_the_process_that_a_restart_replaced_is_fenced(bench: GroupBench) -> None:
    _, two = static_pair(bench)
    bench.join(instance_id="two")

    fenced = GroupError.FENCED_INSTANCE_ID
    assert bench.heartbeat(two, "two") is fenced
    assert bench.commit(two, "two") is fenced
    assert bench.sync(two, instance_id="two").value.error is fenced
    assert bench.join(two.member_id, instance_id="two").value.error is fenced
    assert bench.leave(two.member_id, "two") is fenced


def test_a_waiting_join_of_the_replaced_process_is_fenced(bench: GroupBench) -> None:
    _, two = static_pair(bench)
    zombie = bench.join(two.member_id, instance_id="two", protocols={"range": b"new"})
    bench.join(instance_id="two")
    assert zombie.value.error is GroupError.FENCED_INSTANCE_ID


def test_a_restarted_leader_is_told_to_skip_the_assignment(bench: GroupBench) -> None:
    static_pair(bench)
    back = bench.join(instance_id="one").value

    assert back.leader_id == back.member_id
    assert back.skip_assignment
    assert len(back.members) == 2
    assert bench.sync(back, {}, instance_id="one").value.assignment == b"1"


def test_a_restarted_leader_with_an_old_client_is_not_called_the_leader(bench: GroupBench) -> None:
    one, _ = static_pair(bench)
    back = bench.join(instance_id="one", can_skip_assignment=False).value

    assert back.leader_id == one.member_id
    assert (back.skip_assignment, back.members) == (False, ())


def test_a_restart_that_changes_the_chosen_protocol_rebalances(bench: GroupBench) -> None:
    one = bench.join(instance_id="one", protocols={"a": b"", "b": b""}).value
    bench.sync(one, instance_id="one")
    back = bench.join(instance_id="one", protocols={"b": b"", "a": b""}).value
    assert (back.protocol_name, back.generation) == ("b", 2)


def test_a_restart_during_the_assignment_starts_another_rebalance(bench: GroupBench) -> None:
    one, _two = static_pair(bench)
    bench.join(one.member_id, instance_id="one", protocols={"range": b"new"})
    moved = bench.join(instance_id="two")
    assert bench.group.describe().state is GroupState.COMPLETING_REBALANCE

    back = bench.join(instance_id="two")
    assert bench.group.describe().state is GroupState.PREPARING_REBALANCE
    again = bench.join(one.member_id, instance_id="one").value

    assert {member.member_id for member in again.members} == {
        one.member_id,
        back.value.member_id,
    }
    assert bench.heartbeat(moved.value, "two") is GroupError.FENCED_INSTANCE_ID


def test_a_static_member_keeps_its_place_through_a_rebalance_it_missed(bench: GroupBench) -> None:
    one, two = static_pair(bench)
    waiting = bench.join(one.member_id, instance_id="one", rebalance_timeout=5)
    bench.heartbeat(two, "two")
    for _ in range(12):
        bench.clock.advance(5)
        bench.heartbeat(two, "two")
    assert {member.instance_id for member in waiting.value.members} == {"one", "two"}


def test_a_static_member_that_is_silent_loses_its_place_at_the_end_of_its_session(
    bench: GroupBench,
) -> None:
    static_pair(bench)
    dynamic = bench.join()
    bench.clock.advance(10)
    assert [member.instance_id for member in dynamic.value.members] == [None]


def test_a_rebalance_that_nobody_joined_waits_for_the_static_members(bench: GroupBench) -> None:
    one = bench.join(instance_id="one", session_timeout=30, rebalance_timeout=0).value
    bench.sync(one, instance_id="one")
    promised = bench.join(require_known_member_id=True).value
    newcomer = bench.join(promised.member_id, rebalance_timeout=1)
    bench.leave(promised.member_id)
    assert newcomer.value.error is GroupError.UNKNOWN_MEMBER_ID

    bench.clock.advance(29)
    assert bench.group.describe().state is GroupState.PREPARING_REBALANCE
    back = bench.join(one.member_id, instance_id="one", session_timeout=30)
    assert back.value.generation == 2


def test_an_operator_removes_a_static_member_by_its_instance_id(bench: GroupBench) -> None:
    one, _ = static_pair(bench)
    assert bench.leave("", "two") is None
    assert bench.heartbeat(one, "one") is GroupError.REBALANCE_IN_PROGRESS
    assert bench.leave("", "three") is GroupError.UNKNOWN_MEMBER_ID
