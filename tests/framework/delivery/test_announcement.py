"""Announcements as metadata of committed offsets, and the tokens of ranges."""

from __future__ import annotations

import time

import pytest

from kmr.delivery.announcement import (
    Announcement,
    BackfillRange,
    Closed,
    Generation,
    WindowAnnouncement,
    awaits_history,
    handed_over,
    next_generation,
    read_announcement,
    read_metadata,
    read_up_to,
    token_of,
)
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


def test_the_generation_is_read_from_an_announcement_and_from_other_metadata() -> None:
    announcement = Announcement(5, 9, "token", "writer", generation=3)
    for metadata in (announcement.metadata, Generation(3).metadata):
        assert read_metadata(P0, CommitOffset(5, metadata)).generation == 3
    assert read_announcement(P0, CommitOffset(5, Generation(3).metadata)) is None
    with pytest.raises(ConsumerError, match="newer kmr"):
        read_metadata(P0, CommitOffset(5, '{"kmr":3}'))


def test_metadata_of_earlier_versions_is_generation_0_and_generation_0_is_written_as_they_do() -> (
    None
):
    before = '{"kmr":1,"first":5,"last":9,"token":"g:t:0:5-9","writer":"w","rows":5}'
    old = CommitOffset(5, before)
    announcement = Announcement(5, 9, "g:t:0:5-9", "w", rows=5)
    assert read_announcement(P0, old) == announcement
    assert announcement.metadata == before
    assert [read_metadata(P0, at).generation for at in (old, CommitOffset(5), None)] == [0, 0, 0]
    assert Generation(0).metadata == ""


def test_the_next_generation_is_above_all_others_and_is_never_used_again() -> None:
    now = int(time.time() * 1000)
    assert next_generation([]) >= now
    assert next_generation([0, now + 10**6, 5]) == now + 10**6 + 1


def test_a_generation_above_0_is_a_part_of_the_token_of_its_partition() -> None:
    ranges = [Range("t", 0, 0, 9), Range("u", 1, 3, 3)]
    assert token_of("g", ranges, {P0: 7}) == "g:t:0:0-9@7,u:1:3-3"
    assert token_of("g", ranges, {P0: 0}) == "g:t:0:0-9,u:1:3-3"


def test_a_token_depends_only_on_the_span_of_each_partition() -> None:
    whole = [Range("t", 0, 0, 9), Range("u", 1, 3, 3)]
    parts = [Range("u", 1, 3, 3, 7), Range("t", 0, 5, 9), Range("t", 0, 0, 2)]
    assert token_of("g", whole, {}) == token_of("g", parts, {}) == "g:t:0:0-9,u:1:3-3"
    assert token_of("g", whole, {}) != token_of("h", whole, {})


def test_a_long_token_is_a_hash_of_the_same_offsets() -> None:
    ranges = [Range("t" * 50, number, 0, 9) for number in range(10)]
    token = token_of("g", ranges, {})
    assert token == token_of("g", reversed(ranges), {})
    assert token.startswith("g:")
    assert len(token) < 200


def test_open_windows_are_read_when_no_rows_are_announced() -> None:
    history = BackfillRange(0, 100)
    closed = Closed(70, 5, "10s").up_to(100)
    assert (closed.read_to, closed.emitted_to) == (99, 70)
    assert closed.up_to(120).emitted_to == 70
    done = CommitOffset(60, Generation(3, history=history, closed=closed).metadata)
    assert (read_up_to(P0, done), read_up_to(P0, CommitOffset(60))) == (100, 60)
    announced = WindowAnnouncement(60, 99, "token", "writer", generation=3, history=history)
    assert read_up_to(P0, CommitOffset(60, announced.metadata)) == 60
    assert handed_over(P0, done) == CommitOffset(60, Generation(3, closed=closed).metadata)


def test_an_offset_says_whether_a_history_is_awaited() -> None:
    assert awaits_history(P0, CommitOffset(5, Generation(3, awaits=True).metadata))
    for other in (None, CommitOffset(5), CommitOffset(5, Generation(3).metadata)):
        assert not awaits_history(P0, other)
