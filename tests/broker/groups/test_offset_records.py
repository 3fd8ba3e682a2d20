"""The records of `__consumer_offsets`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.offset_records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from broker.membership.types import GroupSnapshot, MemberSnapshot
from broker.state_records import MalformedRecord

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
seconds = st.integers(0, 2**31 - 1).map(lambda ms: ms / 1000)
members = st.builds(
    MemberSnapshot,
    member_id=names,
    instance_id=names | st.none(),
    client_id=names,
    client_host=names,
    session_timeout=seconds,
    rebalance_timeout=seconds,
    metadata=st.binary(max_size=100),
    assignment=st.binary(max_size=100),
)
groups = st.builds(
    StoredGroup,
    st.builds(
        GroupSnapshot,
        generation=int32,
        protocol_type=names,
        protocol_name=names | st.none(),
        leader_id=names | st.none(),
        members=st.lists(members, max_size=3).map(tuple),
    ),
    int64,
)


@given(
    st.builds(OffsetKey, names, names, int32),
    st.builds(CommittedOffset, int64, int32, names, int64),
)
def test_what_was_committed_is_read_back(key: OffsetKey, committed: CommittedOffset) -> None:
    assert decode_key(encode_offset_key(key)) == key
    assert decode_offset(encode_offset(committed)) == committed


@given(names, groups)
def test_a_generation_is_read_back(group_id: str, group: StoredGroup) -> None:
    assert decode_key(encode_group_key(group_id)) == GroupKey(group_id)
    assert decode_group(encode_group(group)) == group


def test_the_bytes_are_those_of_kafka() -> None:
    assert encode_offset_key(OffsetKey("g", "t", 7)) == bytes.fromhex(
        "0001 0001 67 0001 74 00000007"
    )
    value = encode_offset(CommittedOffset(10, -1, "m", 1_000))
    assert value == bytes.fromhex("0003 000000000000000a ffffffff 0001 6d 00000000000003e8")
    assert encode_group_key("g") == bytes.fromhex("0002 0001 67")
    member = MemberSnapshot("m", None, "c", "h", 10, 60, b"S", b"A")
    group = StoredGroup(GroupSnapshot(3, "consumer", "range", "m", (member,)), 1_000)
    assert encode_group(group) == (
        bytes.fromhex("0003 0008") + b"consumer" + bytes.fromhex("00000003 0005") + b"range"
        + bytes.fromhex("0001 6d 00000000000003e8 00000001")
        + bytes.fromhex("0001 6d ffff 0001 63 0001 68 0000ea60 00002710 00000001 53 00000001 41")
    )  # fmt: skip


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_and_nothing_worse(data: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group):
        try:
            decode(data)
        except MalformedRecord:
            continue


@given(groups, st.data())
def test_a_record_that_is_cut_off_is_refused(group: StoredGroup, data: st.DataObject) -> None:
    whole = encode_group(group)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(MalformedRecord):
        decode_group(part)


def test_a_name_that_is_too_long_cannot_be_stored() -> None:
    with pytest.raises(ValueError, match="32768 bytes"):
        encode_group_key("x" * 32768)
