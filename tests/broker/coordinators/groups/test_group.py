"""The classic group protocol, one rule a test; time is virtual."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kmr.broker.coordinators.groups.group import Group
from kmr.broker.coordinators.groups.group_types import (
    NO_GENERATION,
    GroupError,
    GroupState,
    JoinResult,
    MemberIdentity,
)
from kmr.broker.settings import BrokerSettings

if TYPE_CHECKING:
    from tests.broker.coordinators.conftest import GroupBench


def test_a_single_member_leads_and_gets_its_own_assignment(bench: GroupBench) -> None:
    joined = bench.join().value
    assert joined.error is None
    assert (joined.generation, joined.protocol_name) == (1, "range")
    assert joined.leader_id == joined.member_id
    assert [member.member_id for member in joined.members] == [joined.member_id]

    synced = bench.sync(joined, {joined.member_id: b"all"})

    assert synced.value.assignment == b"all"
    assert bench.group.state is GroupState.STABLE
    assert bench.heartbeat(joined) is None


def test_only_the_leader_gets_the_members_with_their_metadata(bench: GroupBench) -> None:
    first = bench.rebalanced(bench.join())[0]
    second = bench.join(protocols={"range": b"second"})
    assert bench.heartbeat(first) is GroupError.REBALANCE_IN_PROGRESS

    leader = bench.join(first.member_id, protocols={"range": b"first"}).value

    assert [member.metadata for member in leader.members] == [b"first", b"second"]
    assert second.value.members == ()
    assert second.value.leader_id == leader.member_id
    assert second.value.generation == leader.generation == 2


def test_a_follower_waits_for_the_leaders_assignment(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    again, moved = bench.join(leader.member_id), bench.join(follower.member_id)
    waiting = bench.sync(moved.value)
    assert not waiting.done()

    bench.sync(again.value, {leader.member_id: b"L", follower.member_id: b"F"})

    assert waiting.value.assignment == b"F"


def test_a_sync_after_that_of_the_leader_is_answered_at_once(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    again, moved = bench.join(leader.member_id), bench.join(follower.member_id)
    bench.sync(again.value, {follower.member_id: b"F"})

    assert bench.sync(moved.value).value.assignment == b"F"


def test_the_session_of_a_member_that_waited_for_its_assignment_starts_anew(
    bench: GroupBench,
) -> None:
    leader, follower = bench.stable(2)
    moved = bench.join(follower.member_id, protocols={"range": b"new"})
    again = bench.join(leader.member_id).value
    waiting = bench.sync(moved.value)
    for _ in range(4):
        bench.clock.advance(5)
        assert bench.heartbeat(again) is None
    bench.sync(again)
    assert waiting.value.error is None

    bench.clock.advance(9)
    assert bench.heartbeat(again) is None
    bench.clock.advance(2)
    assert bench.heartbeat(again) is GroupError.REBALANCE_IN_PROGRESS


def test_a_new_member_with_a_modern_client_first_gets_an_id(bench: GroupBench) -> None:
    refused = bench.join(require_known_member_id=True).value
    assert refused.error is GroupError.MEMBER_ID_REQUIRED
    assert refused.member_id.startswith("client-")

    joined = bench.join(refused.member_id, require_known_member_id=True).value

    assert joined.error is None
    assert joined.member_id == refused.member_id


def test_a_rebalance_waits_for_a_pending_id_until_its_session_ends(bench: GroupBench) -> None:
    bench.join(require_known_member_id=True, session_timeout=10)
    waiting = bench.join()
    assert not waiting.done()

    bench.clock.advance(10)

    assert waiting.value.generation == 1


def test_leaving_with_a_pending_id_ends_the_wait_for_it(bench: GroupBench) -> None:
    promised = bench.join(require_known_member_id=True).value
    waiting = bench.join()

    assert bench.leave(promised.member_id) is None

    assert waiting.value.error is None
    assert bench.join(promised.member_id).value.error is GroupError.UNKNOWN_MEMBER_ID


def test_an_invented_member_id_is_refused(bench: GroupBench) -> None:
    assert bench.join("unknown").value.error is GroupError.UNKNOWN_MEMBER_ID
    assert bench.leave("unknown") is GroupError.UNKNOWN_MEMBER_ID
    assert bench.leave("") is GroupError.UNKNOWN_MEMBER_ID
    assert bench.group.heartbeat(MemberIdentity("unknown"), 0) is GroupError.UNKNOWN_MEMBER_ID


def test_the_protocol_that_all_support_and_most_prefer_is_chosen(bench: GroupBench) -> None:
    first = bench.rebalanced(bench.join(protocols={"a": b"", "b": b"", "c": b""}))[0]
    second = bench.join(protocols={"c": b"", "b": b""})
    third = bench.join(protocols={"b": b"", "c": b""})
    bench.join(first.member_id, protocols={"a": b"", "b": b"", "c": b""})

    assert second.value.protocol_name == "b"
    assert third.value.protocol_name == "b"


def test_a_member_without_a_common_protocol_is_refused(bench: GroupBench) -> None:
    bench.stable()
    for wrong in (
        bench.join(protocols={"other": b""}),
        bench.join(protocols={}),
        bench.join(protocol_type="connect"),
        bench.join(protocol_type=""),
    ):
        assert wrong.value.error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert bench.group.state is GroupState.STABLE


def test_a_single_member_may_change_its_protocols(bench: GroupBench) -> None:
    (joined,) = bench.stable()
    again = bench.join(joined.member_id, protocols={"sticky": b"", "range": b""}).value
    assert (again.protocol_name, again.generation) == ("sticky", 2)


def test_a_sync_for_another_protocol_is_refused(bench: GroupBench) -> None:
    joined = bench.join().value
    answer = bench.sync(joined, protocol_name="sticky")
    assert answer.value.error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_requests_of_an_old_generation_are_refused(bench: GroupBench) -> None:
    (old,) = bench.stable()
    bench.join(old.member_id, protocols={"range": b"changed"})

    assert bench.heartbeat(old) is GroupError.ILLEGAL_GENERATION
    assert bench.commit(old) is GroupError.ILLEGAL_GENERATION
    assert bench.sync(old).value.error is GroupError.ILLEGAL_GENERATION


def test_a_silent_member_is_removed_at_the_end_of_its_session(bench: GroupBench) -> None:
    leader, _silent = bench.stable(2)
    bench.clock.advance(9)
    assert bench.heartbeat(leader) is None
    bench.clock.advance(1)

    assert bench.heartbeat(leader) is GroupError.REBALANCE_IN_PROGRESS
    alone = bench.join(leader.member_id).value
    assert [member.member_id for member in alone.members] == [leader.member_id]


def test_commits_keep_a_session_alive(bench: GroupBench) -> None:
    (joined,) = bench.stable()
    for _ in range(5):
        bench.clock.advance(9)
        assert bench.commit(joined) is None
    bench.clock.advance(10)
    assert bench.commit(joined) is GroupError.UNKNOWN_MEMBER_ID


def test_a_closed_connection_does_not_remove_the_member_before_its_session_ends(
    bench: GroupBench,
) -> None:
    leader, follower = bench.stable(2)
    lost = bench.join(follower.member_id, protocols={"range": b"new"})
    lost.gone = True
    bench.join(leader.member_id)
    assert len(bench.group.describe().members) == 2

    bench.clock.advance(10)

    assert follower.member_id not in {m.member_id for m in bench.group.describe().members}


def test_a_retried_join_replaces_the_first_one(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    first_try = bench.join(follower.member_id, protocols={"range": b"new"})
    second_try = bench.join(follower.member_id, protocols={"range": b"new"})
    bench.join(leader.member_id)

    assert first_try.value.error is GroupError.REBALANCE_IN_PROGRESS
    assert second_try.value.generation == 3


def test_a_join_repeated_after_a_lost_answer_gets_the_same_generation(bench: GroupBench) -> None:
    joined = bench.join().value
    assert bench.join(joined.member_id).value == joined
    bench.leave(joined.member_id)

    _, follower = bench.stable(2)
    repeated = bench.join(follower.member_id).value

    assert (repeated.generation, repeated.members) == (follower.generation, ())


def test_a_leader_that_joins_again_makes_the_group_rebalance(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    bench.join(leader.member_id)
    assert bench.heartbeat(follower) is GroupError.REBALANCE_IN_PROGRESS


def test_members_that_do_not_rejoin_in_time_are_removed(bench: GroupBench) -> None:
    leader, slow = bench.stable(2)
    waiting = bench.join(leader.member_id, rebalance_timeout=60)
    for _ in range(12):
        bench.clock.advance(4.9)
        assert bench.heartbeat(slow) is GroupError.REBALANCE_IN_PROGRESS
    assert not waiting.done()
    bench.clock.advance(1.3)

    assert len(waiting.value.members) == 1
    assert bench.heartbeat(slow) is GroupError.UNKNOWN_MEMBER_ID


def test_a_member_that_joined_leads_when_the_leader_does_not_come_back(bench: GroupBench) -> None:
    _leader, follower = bench.stable(2)
    waiting = bench.join(follower.member_id, protocols={"range": b"new"})
    bench.clock.advance(10)  # the leader's session
    assert waiting.value.leader_id == follower.member_id


def test_a_leader_that_never_syncs_is_removed_and_the_others_join_again(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    moved = bench.join(follower.member_id, protocols={"range": b"new"})
    stuck = bench.join(leader.member_id, session_timeout=1800).value
    waiting = bench.sync(moved.value)
    bench.clock.advance(59)
    assert not waiting.done()
    bench.clock.advance(1)

    assert waiting.value.error is GroupError.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(stuck) is GroupError.UNKNOWN_MEMBER_ID
    assert bench.join(follower.member_id).value.leader_id == follower.member_id


def test_a_member_that_joins_between_join_and_sync_starts_another_rebalance(
    bench: GroupBench,
) -> None:
    leader, follower = bench.stable(2)
    again, moved = bench.join(leader.member_id), bench.join(follower.member_id)
    waiting = bench.sync(moved.value)

    newcomer = bench.join()

    assert waiting.value.error is GroupError.REBALANCE_IN_PROGRESS
    assert bench.sync(again.value).value.error is GroupError.REBALANCE_IN_PROGRESS
    final = bench.rebalanced(bench.join(leader.member_id), bench.join(follower.member_id), newcomer)
    assert {joined.generation for joined in final} == {4}


def test_a_new_member_whose_client_vanished_is_removed_after_its_join_timeout(
    bench: GroupBench,
) -> None:
    leader, follower = bench.stable(2)
    vanished = bench.join(rebalance_timeout=1000)
    for _ in range(60):
        bench.clock.advance(5)
        bench.heartbeat(leader)
        bench.heartbeat(follower)
    assert vanished.value.error is GroupError.UNKNOWN_MEMBER_ID


def test_the_last_member_leaves_an_empty_group_with_a_new_generation(bench: GroupBench) -> None:
    (joined,) = bench.stable()
    assert bench.leave(joined.member_id) is None
    assert bench.group.state is GroupState.EMPTY
    assert bench.group.is_idle
    assert bench.group.generation == joined.generation + 1
    assert bench.stored[-1].members == ()
    assert bench.clock.pending == 0


def test_the_first_rebalance_waits_for_the_initial_delay(
    make_bench: type[GroupBench],
) -> None:
    bench = make_bench(group_initial_rebalance_delay=3.0)
    first = bench.join()
    bench.clock.advance(2)
    second = bench.join()
    bench.clock.advance(2)
    assert not first.done()  # the second member extended the wait
    bench.clock.advance(2)
    assert first.value.generation == second.value.generation == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout(
    make_bench: type[GroupBench],
) -> None:
    bench = make_bench(group_initial_rebalance_delay=3.0)
    first = bench.join(rebalance_timeout=7)
    for _ in range(7):
        assert not first.done()
        bench.join()
        bench.clock.advance(1)
    assert first.value.generation == 1


def test_a_full_group_refuses_new_members(make_bench: type[GroupBench]) -> None:
    bench = make_bench(group_max_size=2)
    leader, follower = bench.stable(2)
    assert bench.join().value.error is GroupError.GROUP_MAX_SIZE_REACHED
    again = bench.join(leader.member_id)
    bench.join(follower.member_id)
    assert again.value.error is None


def test_a_client_outside_the_group_may_commit_only_while_it_has_no_members(
    bench: GroupBench,
) -> None:
    outside = MemberIdentity("")
    assert bench.group.check_commit(outside, NO_GENERATION) is None
    (joined,) = bench.stable()
    refused = bench.group.check_commit(outside, NO_GENERATION)
    assert refused is GroupError.UNKNOWN_MEMBER_ID
    bench.leave(joined.member_id)
    assert bench.group.check_commit(outside, NO_GENERATION) is None
    stranger = MemberIdentity("stranger")
    assert bench.group.check_commit(stranger, NO_GENERATION) is None
    assert bench.group.check_commit(stranger, 0) is GroupError.UNKNOWN_MEMBER_ID


def test_a_commit_is_accepted_until_the_next_generation_begins(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    bench.join()
    assert bench.group.describe().state is GroupState.PREPARING_REBALANCE
    assert bench.commit(leader) is None

    bench.join(follower.member_id)
    now = bench.join(leader.member_id).value

    assert bench.group.describe().state is GroupState.COMPLETING_REBALANCE
    assert bench.commit(leader) is GroupError.ILLEGAL_GENERATION
    assert bench.commit(now) is GroupError.REBALANCE_IN_PROGRESS


def test_a_description_omits_the_protocol_and_assignments_during_a_rebalance(
    bench: GroupBench,
) -> None:
    leader, follower = bench.stable(2)
    stable = bench.group.describe()
    assert (stable.state, stable.protocol_name) == (GroupState.STABLE, "range")
    assert {m.assignment for m in stable.members} == {
        leader.member_id.encode(),
        follower.member_id.encode(),
    }
    bench.join(leader.member_id)
    moving = bench.group.describe()
    assert (moving.state, moving.protocol_name) == (GroupState.PREPARING_REBALANCE, "")
    assert {m.assignment + m.metadata for m in moving.members} == {b""}


def test_a_restored_group_continues_its_generation(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    restored = Group("g", BrokerSettings(data_dir=Path("unused")), bench.clock, lambda *_: None)
    restored.restore(bench.stored[-1])

    for joined in (leader, follower):
        identity = MemberIdentity(joined.member_id)
        assert restored.heartbeat(identity, joined.generation) is None
        assert restored.check_commit(identity, joined.generation) is None
    assert restored.describe() == bench.group.describe()
    bench.clock.advance(10)
    assert restored.state is GroupState.EMPTY
    assert restored.generation == leader.generation + 1


def test_a_closed_group_answers_all_open_requests(bench: GroupBench) -> None:
    leader, follower = bench.stable(2)
    joining = bench.join()
    bench.group.close(GroupError.COORDINATOR_NOT_AVAILABLE)
    assert joining.value.error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert bench.heartbeat(leader) is GroupError.COORDINATOR_NOT_AVAILABLE
    assert bench.join().value.error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert bench.sync(follower).value.error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert bench.clock.pending == 0


def test_a_dead_group_takes_no_more_requests(bench: GroupBench) -> None:
    joined = bench.stable()[0]
    bench.group.close(GroupError.COORDINATOR_NOT_AVAILABLE)
    assert bench.join().value.error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert bench.heartbeat(joined) is GroupError.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(RuntimeError, match="group g: Dead cannot become Dead"):
        bench.group.close(GroupError.COORDINATOR_NOT_AVAILABLE)
    assert bench.clock.pending == 0


# -- static members (KIP-345): a restart with the same instance id moves no partition -----------


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


def test_a_restarted_leader_may_skip_the_assignment(bench: GroupBench) -> None:
    static_pair(bench)
    back = bench.join(instance_id="one").value

    assert back.leader_id == back.member_id
    assert back.skip_assignment
    assert len(back.members) == 2
    assert bench.sync(back, {}, instance_id="one").value.assignment == b"1"


def test_a_restarted_leader_with_an_old_client_gets_its_old_id_as_leader(bench: GroupBench) -> None:
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


def test_a_rebalance_that_no_member_joined_waits_for_the_static_members(bench: GroupBench) -> None:
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
