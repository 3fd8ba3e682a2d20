"""Subscriptions inside the classic protocol: as clients write them, in all versions."""

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from kmr.broker.coordinators.groups.embedded_protocol import subscribed_topics
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
OLDEST = NEWEST[:14]
"""The part of version 0, which is all that some clients send under a newer version."""


def test_what_clients_write_is_read_in_every_version() -> None:
    told = ConsumerProtocolMemberMetadata(0, ["t", "u"], b"x").encode()
    assert subscribed_topics(told) == {"t", "u"}
    for version in range(5):
        for rest in (NEWEST[2:], OLDEST[2:]):
            assert subscribed_topics(bytes([0, version]) + rest) == {"t"}


@pytest.mark.parametrize(
    "broken", [b"", b"\0", OLDEST[:-1], b"\0\0\0\0\0\1\xff\xff", b"\0\0\xff\xff\xff\xff"]
)
def test_what_cannot_be_read_is_refused(broken: bytes) -> None:
    with pytest.raises(MalformedRequest):
        subscribed_topics(broken)
