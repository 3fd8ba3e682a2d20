"""A large group in virtual time: what its coordinator and its sink are asked, counted from the trace.

The workers are real, and so are their maps, ledgers, announcements and turns. The group, the logs and the
sink are the models of `kmr.simulation`; three things differ from a search for faults: a request takes 2 ms, a
poll returns what all partitions have, and partitions are dealt fairly and stay where they are.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from kmr import Strategy
from kmr.record import TopicPartition
from kmr.simulation import loop, run
from kmr.simulation.consumer import GroupConsumer
from kmr.simulation.group import ModelGroup
from kmr.simulation.schedule import LENGTH, Event, Schedule
from kmr.simulation.simulate import Simulator, garbage_is_silent
from kmr.simulation.world import World
from kmr.sinks import RangeRows, RangeWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kmr.record import Batch, Record
    from kmr.simulation.world import Problem, Step

MAX_AGE: Final = 1.0  # simulations lower it to this
INTERVAL: Final = 0.4  # seconds between two records of a partition
HEARTBEAT: Final = 1.0  # of the model of a group
_LATENCY: Final = 0.002
_SETTLED: Final = 4.0  # seconds after the start that do not count
_GENERATION: Final = re.compile(r"generation (\d+): gets (.*)")


class Anywhere(RangeWriter):
    """A sink that a model replaces.

    Args:
        together: it takes ranges of several partitions in one INSERT.
        turns: INSERTs by age of one worker in a second.
    """

    def __init__(self, *, together: bool, turns: float | None) -> None:
        super().__init__(inserts_per_second=turns)
        self.capabilities = replace(self.capabilities, joins_rows=100_000 if together else 0)

    def may_join(self) -> bool:
        return bool(self.capabilities.joins_rows)

    def has(self, rows: RangeRows) -> bool:
        raise NotImplementedError

    def write(self, rows: RangeRows) -> None:
        raise NotImplementedError


class WideConsumer(GroupConsumer):
    """A member whose polls return what all of its partitions have, as one fetch does."""

    async def poll(self, max_bytes: int | None = None) -> list[Batch]:
        while True:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            ready = [
                at
                for at, position in self._positions.items()
                if at not in self._paused and self._group.ranges[at].answers_at(position)
            ]
            if ready and not self._rebalancing:
                return [self._fetch(at, 10) for at in ready]
            await self._changed.wait()


def _append(self: ModelGroup, number: int, count: int) -> None:
    """Append records, of which only the member with this partition hears."""
    at = TopicPartition("simulated", number)
    offsets, log = self.log[at].offsets, self.ranges[at]
    index = min(int(offsets.searchsorted(log.end)) + count, len(offsets))
    log.end = int(offsets[index - 1]) + 1
    for member_id, partitions in self.assignment.items():
        if at in partitions:
            self._clients[member_id].changed()


def _stay(self: ModelGroup, members: list[str]) -> dict[str, frozenset[TopicPartition]]:
    """Deal the partitions fairly; most stay where they are (KIP-54)."""
    most = -(-len(self.log) // max(1, len(members)))
    dealt: dict[str, list[TopicPartition]] = {
        member: sorted(self.assignment.get(member, ()))[:most] for member in members
    }
    taken = {at for each in dealt.values() for at in each}
    left = [at for at in sorted(self.log) if at not in taken]
    for member in members:
        while left and len(dealt[member]) < most:
            dealt[member].append(left.pop())
    return {member: frozenset(each) for member, each in dealt.items()}


@dataclass(frozen=True, slots=True)
class Counted:
    """What a run has shown; figures are for a second, when all members have their partitions.

    Attributes:
        commits: requests that the coordinator has accepted.
        announced: ranges in their metadata.
        ranges: that were written.
        inserts: in which they were written.
        rebalances: seconds from the beginning of each to the last member's assignment.
        moved: partitions with another owner after it, for each.
    """

    problems: tuple[Problem, ...]
    commits: float
    announced: float
    ranges: float
    inserts: float
    rebalances: tuple[float, ...]
    moved: tuple[int, ...]


class _Wide(Simulator):
    def _calm(self) -> Schedule:
        """Try nothing before: one member would have all partitions."""
        return Schedule(0, 1, max_rows=20, budget=0, events=())


@contextmanager
def _wide() -> Iterator[None]:
    with (
        patch.object(run, "GroupConsumer", WideConsumer),
        patch.object(ModelGroup, "_assign", _stay),
        patch.object(ModelGroup, "append", _append),
        patch.object(World, "latency", lambda _: _LATENCY),
        patch.object(loop, "_MOST_TURNS", 50_000_000),
        garbage_is_silent(),
    ):
        yield


def size_of(record: Record) -> dict[str, int]:
    """Make a row of one column."""
    return {"size": len(record.value or b"")}


def simulate_scale(
    partitions: int,
    workers: int,
    *,
    together: bool,
    turns: float | None = 4.0,
    phases: int = 0,
    max_rows: int = 100_000,
    events: Sequence[Event] = (),
) -> Counted:
    """Run a group for 16 seconds, in which each partition gets a record every `INTERVAL`.

    Args:
        phases: at how many times of an interval partitions get their records; 0: each has a time of its
            own, so that no two flushes of a worker are at the same time.
        max_rows: of a flush.
        events: troubles, such as a member that is killed.
    """
    records, phases = int(LENGTH / INTERVAL), phases or partitions
    strategy = Strategy(map=size_of, reduce=Anywhere(together=together, turns=turns))
    with _wide():
        simulator = _Wide(strategy, [b"x"] * (partitions * records), partitions=partitions)
        appends = [
            Event(INTERVAL * (number + partition % phases / phases), "append", partition, 1)
            for number in range(records)
            for partition in range(partitions)
        ]
        ordered = tuple(sorted((*appends, *events), key=lambda event: event.at))
        schedule = Schedule(1, workers, max_rows=max_rows, budget=0, events=ordered)
        outcome = simulator.run(schedule)
    return _count(outcome.problems, outcome.steps)


def _count(problems: tuple[Problem, ...], steps: tuple[Step, ...]) -> Counted:
    calm = [step for step in steps if _SETTLED <= step.at < LENGTH]
    commits = [each.text for each in calm if each.text.startswith("commits ")]
    accepted = [text for text in commits if ": refused" not in text]
    writes = [each.text for each in calm if each.text.startswith("writes ")]
    seconds = LENGTH - _SETTLED
    rebalances, moved = _rebalances(steps)
    return Counted(
        problems,
        commits=len(accepted) / seconds,
        announced=sum(text.count('"first"') for text in accepted) / seconds,
        ranges=sum(text.count(", ") + 1 for text in writes) / seconds,
        inserts=len(writes) / seconds,
        rebalances=rebalances,
        moved=moved,
    )


def _rebalances(steps: tuple[Step, ...]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    begun, ends, owners, moved = [], {}, {}, {}  # type: ignore[var-annotated]
    for step in steps:
        if step.text == "a rebalance begins":
            begun.append(step.at)
        elif (found := _GENERATION.match(step.text)) is not None:
            number = int(found[1])
            ends[number] = step.at
            for at in found[2].split(", "):
                moved[number] = moved.get(number, 0) + (owners.get(at, step.target) != step.target)
                owners[at] = step.target
    took = tuple(end - at for at, end in zip(begun, ends.values(), strict=False))
    return took, tuple(moved.values())


def main() -> None:
    """Print what sizes show."""
    import sys
    import time

    for size in sys.argv[1:]:
        partitions, workers = map(int, size.split("x"))
        for together in (True, False):
            began = time.process_time()
            found: Any = simulate_scale(
                partitions, workers, together=together, turns=4.0 if together else None, phases=8
            )
            took = time.process_time() - began
            print(f"{size}, together={together}, {took:.0f} s: {found}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
