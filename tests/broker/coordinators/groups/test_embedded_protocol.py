"""Subscriptions and assignments inside the classic protocol: as clients write them, in all versions."""

import pytest
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.coordinators.groups.embedded_protocol import (
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from kmr.broker.protocol.cursor import MalformedRequest

NEWEST = (
    b"\0\3"
    b"\0\0\0\1\0\1t"  # topics
    b"\0\0\0\1u"  # user data
    b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\5"  # owned partitions
    b"\0\0\0\7"  # generation
    b"\0\2r1"
)
"""A subscription of version 3."""


@given(
    version=st.integers(0, 5),
    partitions=st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1))),
)
def test_an_assignment_is_read_as_it_was_written(
    version: int, partitions: frozenset[tuple[str, int]]
) -> None:
    assert read_assignment(write_assignment(version, partitions)) == (partitions, b"")


def test_clients_and_broker_read_what_the_other_one_writes() -> None:
    told = ConsumerProtocolMemberMetadata(0, ["t", "u"], b"x").encode()
    assert read_subscription(told) == Subscription(0, ("t", "u"))
    given = ConsumerProtocolMemberAssignment.decode(write_assignment(0, {("t", 1), ("t", 0)}))
    assert given.assignment == [("t", [0, 1])]
    told = ConsumerProtocolMemberAssignment(0, [("t", [4])], b"own").encode()
    assert read_assignment(told) == (frozenset({("t", 4)}), b"own")
    assert read_assignment(b"") == (frozenset(), b"")


def test_a_newer_version_is_read_as_the_newest_known_one() -> None:
    owned = frozenset({("t", 0), ("t", 5)})
    assert read_subscription(NEWEST) == Subscription(3, ("t",), owned, "r1")
    assert read_subscription(b"\0\4" + NEWEST[2:] + b"more") == Subscription(4, ("t",), owned, "r1")


@pytest.mark.parametrize("broken", [b"", b"\0", NEWEST[:-1], b"\xff\xff" + NEWEST[2:]])
def test_what_cannot_be_read_is_refused(broken: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_subscription(broken)
