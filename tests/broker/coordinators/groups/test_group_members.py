"""The members of a group: protocols, identities and the leader."""

from kmr.broker.coordinators.groups.group_members import Member, Members
from kmr.broker.coordinators.groups.group_types import (
    GroupError,
    JoinRequest,
    MemberIdentity,
    ProtocolChoice,
)


def member(name: str, *protocols: str, instance_id: str | None = None) -> Member:
    choices = tuple(ProtocolChoice(each, name.encode()) for each in protocols or ("range",))
    identity = MemberIdentity(name, instance_id)
    return Member.from_request(name, JoinRequest(identity, "consumer", choices, 10.0, 60.0))


def members(*found: Member) -> Members:
    group = Members()
    for each in found:
        group.add(each)
    return group


def test_the_first_member_leads_and_the_next_one_follows() -> None:
    one, two = member("one"), member("two")
    group = members(one, two)
    assert group.leader_id == "one"
    group.remove(one)
    assert (group.leader_id, len(group), "one" in group) == ("two", 1, False)
    group.remove(two)
    assert group.leader_id is None


def test_a_leader_is_elected_among_the_members_that_joined() -> None:
    one, two = member("one"), member("two")
    group = members(one, two)
    assert not group.elect_joined_leader()
    two.awaits_join = True
    assert group.elect_joined_leader()
    assert (group.leader_id, group.all_joined()) == ("two", False)


def test_the_protocol_that_all_support_and_most_prefer_is_chosen() -> None:
    group = members(
        member("one", "range", "sticky"),
        member("two", "sticky", "range"),
        member("three", "only", "sticky", "range"),
    )
    assert group.choose_protocol() == "sticky"


def test_a_member_may_change_its_protocols_only_to_those_of_the_others() -> None:
    one, two = member("one", "range"), member("two", "range")
    group = members(one, two)
    sticky = (ProtocolChoice("sticky", b""),)
    assert not group.share_a_protocol(sticky, but=one)
    group.remove(two)
    assert group.share_a_protocol(sticky, but=one)
    group.set_protocols(one, sticky)
    assert group.choose_protocol() == "sticky"
    assert not group.share_a_protocol((ProtocolChoice("range", b""),), but=None)


def test_a_renamed_static_member_keeps_its_place_and_fences_its_old_id() -> None:
    static = member("old", instance_id="i")
    group = members(static, member("two"))
    group.rename(static, "new")
    assert [each.id for each in group] == ["new", "two"]
    assert group.leader_id == "new"
    assert group.identify(MemberIdentity("new", "i")) is static
    assert group.identify(MemberIdentity("old", "i")) is GroupError.FENCED_INSTANCE_ID
    assert group.identify(MemberIdentity("old")) is GroupError.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_the_longest_timeout() -> None:
    slow = member("slow")
    slow.rebalance_timeout = 90.0
    assert Members().rebalance_timeout() == 0.0
    assert members(member("one"), slow).rebalance_timeout() == 90.0
