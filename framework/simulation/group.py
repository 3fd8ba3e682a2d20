"""A model of a consumer group on a broker.

The rules are those of Kafka's classic protocol: a rebalance begins when a member joins, leaves or is silent
for longer than its session; it ends when all members have joined again, or without those that are late;
then the generation is one higher, and commits of an older one are refused.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Final

from ..errors import CommitFenced, CommitRefused
from .log import LogRange

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

    from ..kafka.consumer import CommitOffset
    from ..record import TopicPartition
    from .checks import Checks
    from .consumer import GroupConsumer
    from .log import LogRecords
    from .world import World

REBALANCE: Final = 20.0


class Offsets:
    """What a coordinator knows of one group: its generation, its members, its offsets.

    Attributes:
        committed: the offset of each partition.
        pending: those of transactions that have not ended, by transactional id.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.members: set[str] = set()
        self.committed: dict[TopicPartition, CommitOffset] = {}
        self.pending: dict[str, dict[TopicPartition, CommitOffset]] = {}

    def commit(
        self, member_id: str, generation: int, offsets: Mapping[TopicPartition, CommitOffset]
    ) -> None:
        """Store offsets. Raises CommitFenced unless the member is one of this generation."""
        self.require(member_id, generation)
        self.committed.update(offsets)

    def add(
        self,
        transactional_id: str,
        member_id: str,
        generation: int,
        offsets: Mapping[TopicPartition, CommitOffset],
    ) -> None:
        """Keep offsets until their transaction ends. Raises as `commit`."""
        self.require(member_id, generation)
        self.pending.setdefault(transactional_id, {}).update(offsets)

    def end(self, transactional_id: str, *, commit: bool) -> None:
        """Store the offsets of a transaction, or forget them."""
        offsets = self.pending.pop(transactional_id, {})
        if commit:
            self.committed.update(offsets)

    def are_stable(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether no open transaction has offsets of these partitions."""
        return not any(at in offsets for offsets in self.pending.values() for at in partitions)

    def require(self, member_id: str, generation: int) -> None:
        """Raise CommitFenced unless the member is one of this generation."""
        if member_id not in self.members:
            raise CommitFenced(f"unknown member {member_id}")
        if generation != self.generation:
            raise CommitFenced(f"generation {generation} is over, this is {self.generation}")


class ModelGroup:
    """The group and its topic.

    Attributes:
        ranges: the offsets that each partition's log has.
        resets: how often tools have moved the offset of each partition.
        undone: partitions whose last commit a late one has undone, as at-least-once allows.
    """

    def __init__(
        self, world: World, log: Mapping[TopicPartition, LogRecords], checks: Checks
    ) -> None:
        self._world = world
        self.checks = checks
        self.log = log
        self.ranges = {partition: LogRange() for partition in log}
        self.undone: set[TopicPartition] = set()
        self.resets: Counter[TopicPartition] = Counter()
        self.offsets = Offsets()
        self._clients: dict[str, GroupConsumer] = {}
        self._joined: dict[str, asyncio.Future[tuple[int, frozenset[TopicPartition]]]] = {}
        self._preparing = False
        self._round = 0
        self._names = 0
        self._deal = 0
        self.assignment: dict[str, frozenset[TopicPartition]] = {}

    def append(self, number: int, count: int) -> None:
        """Append the next records to a partition."""
        partition = sorted(self.log)[number]
        present = self.log[partition].offsets
        index = int(present.searchsorted(self.ranges[partition].end)) + count
        self.ranges[partition].end = int(present[min(index, len(present)) - 1]) + 1
        self._world.note("test", "group", f"{count} records are appended to {partition}")
        for client in self._clients.values():
            client.changed()

    def trim(self, number: int, count: int) -> None:
        """Remove the first `count` records of a partition's log, or all if it has fewer."""
        partition = sorted(self.log)[number]
        present, log = self.log[partition].offsets, self.ranges[partition]
        index = int(present.searchsorted(log.start)) + count
        log.remove_before(min(int(present[index]), log.end) if index < len(present) else log.end)
        self._world.note("test", "group", f"retention removes {partition} below {log.start}")

    def deal(self, number: int) -> None:
        """Begin a rebalance that shuffles the partitions."""
        self._deal = number
        self._begin()

    def join(self, client: GroupConsumer) -> asyncio.Future[tuple[int, frozenset[TopicPartition]]]:
        """Enter a rebalance; the answer is the generation and the partitions."""
        if client.forgets_id or client.member_id not in self.offsets.members:
            client.forgets_id = False
            self._names += 1
            client.member_id = f"{client.name}#{self._names}"
            self.offsets.members.add(client.member_id)
            self._clients[client.member_id] = client
        answer = self._joined[client.member_id] = self._world.loop.create_future()
        self._begin()
        self._complete_if_all(self._round)
        return answer

    def leave(self, member_id: str) -> None:
        """Remove a member, which wanted to or was silent, and begin a rebalance."""
        if member_id in self.offsets.members:
            self._world.note("group", "group", f"{member_id} is no member any more")
            self.offsets.members.discard(member_id)
            self._clients.pop(member_id).notice()
            self._joined.pop(member_id, None)
            self.assignment.pop(member_id, None)
            self._begin()
            self._complete_if_all(self._round)

    def _begin(self) -> None:
        if self._preparing or not self.offsets.members:
            return
        self._preparing = True
        self._round += 1
        self._world.note("group", "group", "a rebalance begins")
        for member_id, client in list(self._clients.items()):
            if member_id not in self._joined:
                client.notice()
        self._world.later(REBALANCE, self._complete, self._round)

    def _complete_if_all(self, number: int) -> None:
        if self._preparing and self._joined.keys() >= self.offsets.members:
            self._world.later(self._world.latency(), self._complete_all, number)

    def _complete_all(self, number: int) -> None:
        if self._joined.keys() >= self.offsets.members:
            self._complete(number)

    def _complete(self, number: int) -> None:
        if not self._preparing or number != self._round:
            return
        for late in sorted(self.offsets.members - self._joined.keys()):
            self._world.note("group", "group", f"{late} is late, and no member any more")
            self.offsets.members.discard(late)
            self._clients.pop(late).notice()
        self._preparing = False
        self.offsets.generation += 1
        self.assignment = self._assign(sorted(self.offsets.members))
        joined, self._joined = self._joined, {}
        for member_id, answer in joined.items():
            partitions = self.assignment.get(member_id, frozenset())
            shown = ", ".join(map(str, sorted(partitions))) or "nothing"
            self._world.note(
                "group", self._clients[member_id].name,
                f"generation {self.offsets.generation}: gets {shown}",
            )  # fmt: skip
            self._world.later(
                self._world.latency(), _answer, answer, self.offsets.generation, partitions
            )

    def _assign(self, members: list[str]) -> dict[str, frozenset[TopicPartition]]:
        rng = random.Random(self._deal)  # noqa: S311  chance that can be repeated
        rng.shuffle(members)
        dealt: dict[str, set[TopicPartition]] = {member: set() for member in members}
        for at, partition in enumerate(sorted(self.log)):
            if members:
                unfair = rng.random() < 0.3
                dealt[rng.choice(members) if unfair else members[at % len(members)]].add(partition)
        return {member: frozenset(partitions) for member, partitions in dealt.items()}

    def commit(
        self, client: GroupConsumer, member_id: str, generation: int,
        offsets: Mapping[TopicPartition, CommitOffset],
    ) -> None:  # fmt: skip
        """Commit for a member, and check what it commits."""
        self.offsets.require(member_id, generation)
        if client.commits_cut:
            self.cut(offsets)
        else:
            self.check(offsets, is_orderly=not client.has_unanswered_commit)
        self.offsets.commit(member_id, generation, offsets)
        self.checks.memory(client.member)

    def commit_part(
        self, client: GroupConsumer, member_id: str, generation: int,
        offsets: Mapping[TopicPartition, CommitOffset],
    ) -> None:  # fmt: skip
        """Commit every other partition. Raises CommitRefused, which names them."""
        some = dict(sorted(offsets.items())[1::2])
        self.commit(client, member_id, generation, some)
        raise CommitRefused("some partitions are refused", frozenset(some), for_good=False)

    def cut(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        """Check a cut that is about to be committed."""
        for partition, entry in offsets.items():
            self.checks.cut(partition, self.offsets.committed.get(partition), entry.offset)

    def check(
        self, offsets: Mapping[TopicPartition, CommitOffset], *, is_orderly: bool = True
    ) -> None:
        """Check offsets that are about to be committed; `is_orderly`: none of the sender's may be late."""
        for partition, entry in offsets.items():
            was = self.offsets.committed.get(partition)
            before = 0 if was is None else was.offset
            self.checks.committed(partition, before, entry.offset, is_orderly=is_orderly)
            (self.undone.add if entry.offset < before else self.undone.discard)(partition)


def _answer(
    answer: asyncio.Future[tuple[int, frozenset[TopicPartition]]],
    generation: int,
    partitions: frozenset[TopicPartition],
) -> None:
    if not answer.done():
        answer.set_result((generation, partitions))
