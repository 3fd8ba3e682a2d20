"""Server-side assignors of KIP-848: which member reads which partition.

Both are pure functions of the subscriptions; `uniform` also of the assignment before. Source: KIP-848,
"Server-side assignors". Differs from Kafka: `uniform` ignores racks, since there is one node.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

Assignment = dict[str, frozenset[tuple[UUID, int]]]
"""The (topic id, partition) pairs of each member."""


class AssignorInput:
    """The members with the topics that they read, and the number of partitions of each topic.

    Members that read the same topics should have the same collection: it is looked at once.
    """

    def __init__(
        self, members: Mapping[str, Collection[UUID]], partitions: Mapping[UUID, int]
    ) -> None:
        self.members = members
        """In the order in which `range_` counts them."""
        self.partitions = partitions
        alike: dict[int, list[str]] = {}
        for member, topics in members.items():
            alike.setdefault(id(topics), []).append(member)
        places = {member: at for at, member in enumerate(members)}
        groups: dict[UUID, list[int]] = {topic: [] for topic in sorted(partitions)}
        for group, (first, *_) in alike.items():
            for topic in members[first]:
                if topic in groups:
                    groups[topic].append(group)
        shared: dict[tuple[int, ...], list[str]] = {}
        self.readers: dict[UUID, list[str]] = {}
        """The members that read each topic, in their order; topics of the same members share the list."""
        for topic, found in groups.items():
            key = tuple(found)
            readers = shared.get(key)
            if readers is None:
                readers = sorted(
                    (each for group in key for each in alike[group]), key=places.__getitem__
                )
                shared[key] = readers
            self.readers[topic] = readers


def range_(given: AssignorInput, before: Assignment) -> Assignment:
    """Give each member one range of each topic, the same of topics with the same readers."""
    assigned: dict[str, set[tuple[UUID, int]]] = {member: set() for member in given.members}
    for topic, readers in given.readers.items():
        if not readers:
            continue
        each, more = divmod(given.partitions[topic], len(readers))
        start = 0
        for at, member in enumerate(readers):
            end = start + each + (at < more)
            assigned[member].update((topic, index) for index in range(start, end))
            start = end
    return {member: frozenset(parts) for member, parts in assigned.items()}


class _Loads:
    """Finds the member with the fewest partitions among the readers of a topic."""

    def __init__(self, given: AssignorInput, assigned: dict[str, set[tuple[UUID, int]]]) -> None:
        self._assigned = assigned
        heaps: dict[int, list[tuple[int, str]]] = {}
        self._heap: dict[UUID, list[tuple[int, str]]] = {}
        self._heaps_of: dict[str, list[list[tuple[int, str]]]] = {each: [] for each in assigned}
        for topic, readers in given.readers.items():
            heap = heaps.get(id(readers))
            if heap is None:
                heap = heaps[id(readers)] = [(len(assigned[member]), member) for member in readers]
                heapq.heapify(heap)
                for member in readers:
                    self._heaps_of[member].append(heap)
            self._heap[topic] = heap

    def changed(self, member: str) -> None:
        entry = (len(self._assigned[member]), member)
        for heap in self._heaps_of[member]:
            heapq.heappush(heap, entry)

    def least(self, topic: UUID) -> str | None:
        heap = self._heap[topic]
        while heap:
            load, member = heap[0]
            if load == len(self._assigned[member]):
                return member
            heapq.heappop(heap)  # an older load
        return None


def _kept(given: AssignorInput, before: Assignment) -> dict[str, set[tuple[UUID, int]]]:
    """Return what each member had, and may still read."""
    kept: dict[str, set[tuple[UUID, int]]] = {member: set() for member in given.members}
    taken: set[tuple[UUID, int]] = set()
    for member, wanted in given.members.items():
        for partition in before.get(member, ()):
            topic, index = partition
            is_readable = topic in wanted and index < given.partitions.get(topic, 0)
            if is_readable and partition not in taken:
                kept[member].add(partition)
                taken.add(partition)
    return kept


def uniform(given: AssignorInput, before: Assignment) -> Assignment:
    """Make the members' numbers of partitions as equal as subscriptions allow; move as few as possible."""
    assigned = _kept(given, before)
    taken = set().union(*assigned.values())
    loads = _Loads(given, assigned)

    def give(partition: tuple[UUID, int], member: str) -> None:
        assigned[member].add(partition)
        loads.changed(member)

    # Topics with few readers first: their partitions have the least choice.
    for topic in sorted(given.readers, key=lambda each: (len(given.readers[each]), each)):
        for index in range(given.partitions[topic]):
            if (topic, index) not in taken and (least := loads.least(topic)) is not None:
                give((topic, index), least)
    moved = True
    while moved:  # each move makes two loads more equal: it ends
        moved = False
        fewest = min(map(len, assigned.values()), default=0)
        rest = {
            member: sorted(parts)
            for member, parts in assigned.items()
            if len(parts) > fewest + 1  # the others keep their partitions
        }
        fullest = [(-len(parts), member) for member, parts in rest.items()]
        heapq.heapify(fullest)
        while fullest:  # from this member first: another one might get back what it gave
            member = heapq.heappop(fullest)[1]
            while rest[member]:
                partition = rest[member].pop()
                least = loads.least(partition[0])
                if least is not None and len(assigned[member]) > len(assigned[least]) + 1:
                    assigned[member].remove(partition)
                    loads.changed(member)
                    give(partition, least)
                    heapq.heappush(fullest, (-len(assigned[member]), member))
                    moved = True
                    break
    return {member: frozenset(parts) for member, parts in assigned.items()}


DEFAULT_ASSIGNOR: Final = "uniform"
ASSIGNORS: Final[dict[str, Callable[[AssignorInput, Assignment], Assignment]]] = {
    DEFAULT_ASSIGNOR: uniform,
    "range": range_,
}
"""By the names that clients ask for."""
