"""Ids of processes are new each time, and those of a simulation are the same each time."""

import random

from kmr.service.identity import ids_from, new_id


def test_ids_differ_whatever_a_strategy_has_seeded() -> None:
    found = set()
    for _ in range(3):
        random.seed(42)
        found.add(new_id())
    assert len(found) == 3
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in found)


def test_ids_of_a_simulation_follow_from_its_chance() -> None:
    with ids_from(random.Random(7)):
        first = [new_id(), new_id()]
    with ids_from(random.Random(7)):
        assert [new_id(), new_id()] == first
    assert len(set(first)) == 2
    assert new_id() not in first
