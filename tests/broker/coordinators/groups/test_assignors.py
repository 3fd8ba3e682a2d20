"""The assignors of the broker: complete, balanced, and with few moves."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from kmr.broker.coordinators.groups.assignors import (
    ASSIGNORS,
    Assignment,
    AssignorInput,
    range_,
    uniform,
)

TOPICS: Final = [UUID(int=number) for number in range(1, 5)]
A, B = TOPICS[:2]

subscriptions = st.dictionaries(
    st.sampled_from("abcdef"), st.sets(st.sampled_from(TOPICS)), min_size=1
)
partitions = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))


def loads(assigned: Assignment) -> list[int]:
    return sorted(map(len, assigned.values()))


@given(subscriptions, partitions, st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_that_has_readers_has_one_of_them(
    members: dict[str, set[UUID]], counts: dict[UUID, int], name: str
) -> None:
    assigned = ASSIGNORS[name](AssignorInput(members, counts), {})
    owned = [each for parts in assigned.values() for each in parts]
    read = {topic for topics in members.values() for topic in topics}
    wanted = [(topic, at) for topic, n in counts.items() if topic in read for at in range(n)]
    assert sorted(owned) == sorted(wanted)
    for member, parts in assigned.items():
        assert {topic for topic, _ in parts} <= members[member]


@example(first=3, then=5, counts=dict(zip(TOPICS, (1, 7, 9, 9), strict=True)))
@given(st.integers(1, 6), st.integers(1, 6), partitions)
def test_members_with_the_same_topics_have_equal_loads_after_others_came_or_left(
    first: int, then: int, counts: dict[UUID, int]
) -> None:
    def group(size: int) -> AssignorInput:
        return AssignorInput({f"m{number}": TOPICS for number in range(size)}, counts)

    before = uniform(group(first), {})
    after = uniform(group(then), before)
    for assigned in (before, after):
        assert loads(assigned)[-1] - loads(assigned)[0] <= 1
    stay = [f"m{number}" for number in range(min(first, then))]
    moved = sum(len(before[member] - after[member]) for member in stay)
    least = sum(max(0, len(before[member]) - loads(after)[-1]) for member in stay)
    assert moved <= least + len(stay)  # a load of one more than the others may change its place
    assert uniform(group(then), after) == after


def test_a_range_is_contiguous_and_the_same_of_each_topic() -> None:
    members = {"x": [A, B], "y": [A, B]}
    assigned = range_(AssignorInput(members, {A: 3, B: 3}), {})
    assert assigned == {
        "x": frozenset({(A, 0), (A, 1), (B, 0), (B, 1)}),
        "y": frozenset({(A, 2), (B, 2)}),
    }
