"""Announcements as metadata of committed offsets, and the tokens of ranges."""

from __future__ import annotations

import pytest

from kmr.delivery.announcement import Announcement, read_announcement, token_of
from kmr.errors import ConsumerError
from kmr.kafka.consumer import CommitOffset
from kmr.record import Range, TopicPartition

P0 = TopicPartition("t", 0)


def test_an_announcement_is_read_back_from_its_metadata() -> None:
    announcement = Announcement(5, 9, "g:t:0:5-9", "writer", rows=5, chunk=2)
    assert read_announcement(P0, CommitOffset(5, announcement.metadata)) == announcement


@pytest.mark.parametrize("committed", [None, CommitOffset(5), CommitOffset(5, "another client's")])
def test_other_metadata_is_no_announcement(committed: CommitOffset | None) -> None:
    assert read_announcement(P0, committed) is None


def test_metadata_of_a_newer_version_is_refused_with_the_partition_and_a_remedy() -> None:
    with pytest.raises(ConsumerError, match=r"t-0: cannot read .* offset 5 .*newer kmr"):
        read_announcement(P0, CommitOffset(5, '{"kmr":2,"first":5}'))


def test_a_token_depends_only_on_the_span_of_each_partition() -> None:
    whole = [Range("t", 0, 0, 9), Range("u", 1, 3, 3)]
    parts = [Range("u", 1, 3, 3, 7), Range("t", 0, 5, 9), Range("t", 0, 0, 2)]
    assert token_of("g", whole) == token_of("g", parts) == "g:t:0:0-9,u:1:3-3"
    assert token_of("g", whole) != token_of("h", whole)


def test_a_long_token_is_a_hash_of_the_same_offsets() -> None:
    ranges = [Range("t" * 50, number, 0, 9) for number in range(10)]
    token = token_of("g", ranges)
    assert token == token_of("g", reversed(ranges))
    assert token.startswith("g:")
    assert len(token) < 200
