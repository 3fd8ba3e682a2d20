"""Offsets of a query: their JSON, their limits and parts, and those that a cluster of a table answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import ConsumerError, OffsetOutOfRange
from kmr.kafka.subscription import Subscription
from kmr.record import Range, TopicPartition
from kmr.spark.offsets import (
    OffsetPlanner,
    divide_ranges,
    limit_offsets,
    ranges_between,
    read_offsets,
    show_offsets,
)
from kmr.spark.source_settings import ClientConfig, SourceSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kmr.spark.blocking_client import BlockingClient

offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 12)), st.integers(0, 10**12)
)


@given(offsets)
def test_offsets_survive_their_json(found: dict[TopicPartition, int]) -> None:
    assert read_offsets(show_offsets(found)) == found
    assert str(show_offsets(found)) == str(show_offsets(dict(reversed(found.items()))))


@given(offsets, st.data())
def test_a_limit_moves_every_partition_and_reaches_the_end(
    start: dict[TopicPartition, int], data: st.DataObject
) -> None:
    end = {p: offset + data.draw(st.integers(0, 1000)) for p, offset in start.items()}
    rows = data.draw(st.integers(1, 500))
    for _ in range(10_000):
        until = limit_offsets(start, end, rows)
        ranges = ranges_between(start, until)
        # a share below one offset is rounded up, so that no partition starves
        assert sum(r.last + 1 - r.first for r in ranges) <= rows + len(end)
        assert {r.topic_partition for r in ranges} == {p for p in end if start[p] < end[p]}
        if not ranges:
            break
        start = until
    assert start == end


@given(
    st.lists(st.integers(1, 10_000), max_size=5), st.integers(1, 20), st.sampled_from([None, 128])
)
def test_divided_ranges_are_the_same_offsets(
    sizes: list[int], parts: int, grid: int | None
) -> None:
    ranges = [Range("t", p, 50, 49 + size) for p, size in enumerate(sizes)]
    divided = divide_ranges(ranges, parts, grid=grid)
    whole: dict[int, tuple[int, int]] = {}
    for piece in divided:
        assert piece.first <= piece.last
        first, end = whole.get(piece.partition, (piece.first, piece.first))
        assert end == piece.first
        end = piece.last + 1
        whole[piece.partition] = (first, end)
        assert grid is None or end % grid == 0 or end == 50 + sizes[piece.partition]
    assert whole == {p: (50, 50 + size) for p, size in enumerate(sizes)}


A0, A1, A2, B0 = (*(TopicPartition("a", n) for n in range(3)), TopicPartition("b", 0))


class Cluster:
    """First and end offset of each partition; the offset is the timestamp."""

    def __init__(self, logs: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.logs = logs

    def partitions(self) -> dict[str, tuple[int, ...]]:
        topics: dict[str, tuple[int, ...]] = {}
        for topic, number in self.logs:
            topics[topic] = (*topics.get(topic, ()), number)
        return topics

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {p: self.logs[p][0] for p in partitions}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {p: self.logs[p][1] for p in partitions}


def planner(
    logs: Mapping[TopicPartition, tuple[int, int]],
    *topics: str,
    pattern: str | None = None,
    **settings: Any,
) -> OffsetPlanner:
    named = () if pattern is not None else topics or ("a",)
    made = SourceSettings(
        subscription=Subscription(named, pattern),
        client=ClientConfig(bootstrap_servers="k:9092"),
        group="g",
        **settings,
    )
    return OffsetPlanner(cast("BlockingClient", Cluster(logs)), made)


LOGS = {A0: (5, 10), A1: (0, 3), B0: (0, 1)}


def test_a_subscription_is_topics_or_a_pattern() -> None:
    assert planner(LOGS).partitions() == [A0, A1]
    assert planner(LOGS, pattern="[ab]").partitions() == [A0, A1, B0]
    flights = {TopicPartition("flights", 0): (0, 1)}
    with pytest.raises(ConsumerError, match="flihgts does not exist at k:9092; there is flights"):
        planner(flights, "flihgts").required_partitions()


def test_a_query_begins_at_the_beginning_or_at_the_end_of_each_partition() -> None:
    assert planner(LOGS).first([A0, A1]) == {A0: 5, A1: 0}
    assert planner(LOGS, from_end=True).first([A0, A1]) == {A0: 10, A1: 3}


def test_a_new_partition_begins_at_its_first_offset() -> None:
    assert planner(LOGS).latest({A0: 6}) == {A0: 10, A1: 0}


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({A0: 6, A1: 0, A2: 0}, "partitions are gone: a-2"),
        ({A0: 11, A1: 0}, "a-0 ends at 10, before 11, which was read already"),
        ({A0: 4, A1: 0}, "a-0 begins at 5, after 4, which is next"),
        ({A1: 0}, "a-0 is new and begins at 5, not at 0"),
    ],
)
def test_records_that_are_gone_stop_the_query_unless_loss_is_accepted(
    start: dict[TopicPartition, int], message: str
) -> None:
    with pytest.raises(OffsetOutOfRange, match=message):
        planner(LOGS).latest(start)
    assert set(planner(LOGS, fail_on_data_loss=False).latest(start)) == {A0, A1}


@pytest.mark.parametrize("pattern", [None, "[ac]"])
def test_a_checkpoint_of_another_topic_is_no_data_loss(pattern: str | None) -> None:
    message = (
        "the checkpoint belongs to another topic: it has offsets of b, and the query reads .*a"
    )
    with pytest.raises(ConsumerError, match=message) as caught:
        planner(LOGS, pattern=pattern).latest({B0: 7})
    assert "lost" not in str(caught.value)
    assert planner(LOGS, pattern=pattern, fail_on_data_loss=False).latest({B0: 7}) == {A0: 5, A1: 0}
