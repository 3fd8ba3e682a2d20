"""Schedules: what happens to a strategy, and when. Made from a seed, kept as JSON, told in plain words."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


What = Literal[
    "append", "kill", "drain", "sleep", "deal", "fault", "jump", "trim", "reset", "move",
    "cut",
]  # fmt: skip
Target = Literal["", "sink", "errors", "commit", "offsets"]
How = Literal[
    "", "refuse", "part", "lose", "late", "slow", "hang", "torn",
    "kill before", "kill after", "sleep before", "sleep after", "overtaken", "expel",
]  # fmt: skip

LENGTH: Final = 16.0
"""Seconds in which events begin, at most; faults happen until then."""

_HOW: Final[dict[Target, tuple[How, ...]]] = {
    "sink": (
        "refuse", "refuse", "lose", "slow", "hang", "torn",
        "kill before", "kill after", "kill after", "sleep before", "sleep before", "sleep after",
        "overtaken",
    ),
    "errors": ("refuse", "lose", "slow", "hang", "kill before", "kill after"),
    "commit": (
        "refuse", "part", "lose", "late", "late", "slow", "hang", "kill before", "kill after",
        "kill after", "sleep before", "sleep after", "overtaken", "expel",
    ),
    "offsets": ("slow", "sleep before", "sleep after", "overtaken", "kill before"),
}  # fmt: skip


_HAVE_RESETS: Final = 0.2
_HAVE_CUTS: Final = 0.1

_MOST: Final[dict[How, float]] = {"overtaken": 40.0}
"""Seconds after which it is over, where something else is waited for."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happens.

    Attributes:
        at: seconds since the beginning. A fault happens to the first request at or after it.
        what: `append` records to a partition's log; `kill`, `drain` or `sleep` a member; `deal` the
            partitions anew; `fault` of a request; `jump`: nothing runs for a while, then every timer is due;
            `trim`: retention removes the first records of a partition's log; `reset`: all members end, and
            `kmr offsets reset` sets the committed offset of a partition; `move`: another tool sets it; `cut`:
            all members end, and `kmr backfill` commits the ends that the logs have now as the group's start.
        number: the partition of `append`, `trim`, `reset` and `move`; the member of `kill`, `drain` and
            `sleep`; how `deal` shuffles.
        count: the records of `append` and `trim`; those of the log before the offset that is set.
        seconds: how long it lasts; after `kill` and `drain`: until the member starts again.
        target: the requests that a `fault` is for.
        how: what the `fault` does; before `reset`, `move` and `cut` members are killed ("kill before"), sleep
            until the group has no members ("sleep before"), or drain.
    """

    at: float
    what: What
    number: int = 0
    count: int = 0
    seconds: float = 0.0
    target: Target = ""
    how: How = ""

    def __str__(self) -> str:
        return f"{self.at:6.2f} s  {self._words()}"

    def _words(self) -> str:
        lasts = f"for {self.seconds:g} s"
        match self.what:
            case "append":
                return f"{self.count} records are appended to partition {self.number}"
            case "kill":
                return f"member {self.number} is killed, and starts again after {self.seconds:g} s"
            case "drain":
                return f"member {self.number} is drained, and starts again after {self.seconds:g} s"
            case "sleep":
                return f"member {self.number} sleeps {lasts}"
            case "deal":
                return "a rebalance deals the partitions anew"
            case "jump":
                return f"the machine stands still {lasts}"
            case "trim":
                return (
                    f"retention removes the first {self.count} records of partition {self.number}"
                )
            case "reset" | "move":
                who = "kmr" if self.what == "reset" else "another tool"
                return (
                    f"all members {_ENDS[self.how]}, and {who} sets the committed offset of partition "
                    f"{self.number} behind the first {self.count} records"
                )
            case "cut":
                return (
                    f"kmr backfill chooses the present ends as the cut; all members {_ENDS[self.how]}, and "
                    "it commits the cut"
                )
            case "fault":
                return f"next request to {_PLACES[self.target]}: {self._fault()}"

    def _fault(self) -> str:
        lasts = f"for {self.seconds:g} s"
        words: dict[How, str] = {
            "": "nothing",
            "refuse": "it fails, and has no effect",
            "part": "it is refused for some partitions, and has its effect for the others",
            "lose": "it has its effect, but its answer is lost",
            "late": f"its connection is lost, and it has its effect after {self.seconds:g} s",
            "slow": f"it is under way {lasts}",
            "hang": "it is never answered",
            "torn": "the server dies: it knows the token, but has lost the rows",
            "kill before": "its member is killed before the effect",
            "kill after": "its member is killed after the effect",
            "sleep before": f"its member sleeps {lasts}, and the effect comes as late",
            "sleep after": f"its member sleeps {lasts} after the effect",
            "overtaken": "its member sleeps until another one commits, and the effect comes as late",
            "expel": "the group expels the member before it",
        }
        return words[self.how]


_ENDS: Final[dict[How, str]] = {
    "": "are drained", "kill before": "are killed", "sleep before": "sleep for 15 s",
}  # fmt: skip

_PLACES: Final[dict[Target, str]] = {
    "": "",
    "sink": "the sink",
    "errors": "the error sink",
    "commit": "the group (a commit)",
    "offsets": "the group (after an assignment: what is committed)",
}


class Schedule(msgspec.Struct, frozen=True):
    """What one simulation consists of, besides the strategy and the records.

    Attributes:
        seed: of everything that is decided by chance while it runs: latencies, the sizes of fetches.
        members: of the group.
        max_rows: the most rows of a flush; the reducers' own limit if that is lower.
        budget: `inflight_bytes`; 0: more than is ever needed.
        events: in order of time.
        revoke: seconds that a rebalance waits for flushes under way. By default that is longer than a client
            of a sink waits for an answer: so a write that outlasts a rebalance is a schedule by hand.
    """

    seed: int
    members: int
    max_rows: int
    budget: int
    events: tuple[Event, ...]
    revoke: float = 8.0

    @property
    def is_orderly(self) -> bool:
        """Whether partitions move and members are drained, and nothing fails."""
        return all(event.what in ("append", "deal", "drain") for event in self.events)


class _Scope(NamedTuple):
    """What the schedules of a kind have; one of each is chosen.

    Attributes:
        records: the most of a partition.
        lengths: the seconds in which events begin.
        troubles: the events that are no appends.
    """

    records: tuple[int, ...]
    lengths: tuple[float, ...]
    troubles: tuple[int, ...]


_LARGE: Final = _Scope((sys.maxsize,), (LENGTH,), (0, 1, 2, 3, 3, 4, 5, 6))
_SMALL: Final = _Scope((2, 3, 4), (3.0, 6.0, 10.0, LENGTH), (4, 5, 6, 7, 8))


def generate(seed: int, sizes: tuple[int, ...], *, resets: bool = True) -> Schedule:
    """Make the schedule of a seed: about every seventh has all records, the others the first few.

    Few mistakes need many records, but many need several faults, one soon after the other.

    Args:
        sizes: the number of records of each partition.
        resets: whether tools may move committed offsets.
    """
    rng = random.Random(seed)  # noqa: S311  chance that can be repeated
    scope = _LARGE if rng.random() < 0.15 else _SMALL
    members = rng.choice((1, 1, 2, 2, 3))
    length, most = rng.choice(scope.lengths), rng.choice(scope.records)
    events = []
    for number, size in enumerate(sizes):
        left = first = min(size, most)
        while left:
            count = min(left, rng.choice((1, 2, 5, 10, 30)) if rng.random() < 0.7 else left)
            at = 0.0 if left == first else rng.uniform(0, length)
            events.append(Event(round(at, 2), "append", number, count))
            left -= count
    troubles = [
        _trouble(rng, members, len(sizes), length) for _ in range(rng.choice(scope.troubles))
    ]
    if rng.random() < 0.15:  # an orderly one
        troubles = [
            Event(trouble.at, rng.choice(("deal", "drain")), rng.randrange(members), seconds=0.5)
            for trouble in troubles
        ]
    elif resets:
        troubles += _cut(seed) or _resets(seed, sizes, most, length)
    events += troubles
    return Schedule(
        seed,
        members,
        max_rows=rng.choice((2, 3, 5, 8, 20)),
        budget=rng.choice((0, 0, 0, 2_000, 10_000)),
        events=tuple(sorted(events, key=lambda event: event.at)),
    )


def _resets(seed: int, sizes: tuple[int, ...], most: int, length: float) -> list[Event]:
    """Make the resets of a schedule: about every sixth has one or two."""
    rng = random.Random(-seed)  # noqa: S311  of their own: without them the schedule is the same
    if rng.random() >= _HAVE_RESETS:
        return []
    made = []
    for _ in range(rng.choice((1, 1, 2))):
        at, number = rng.uniform(0, length), rng.randrange(len(sizes))
        what: What = rng.choice(("reset", "reset", "move"))
        count = rng.choice((0, 0, rng.randrange(min(sizes[number], most) + 1)))
        how: How = rng.choice(("", "kill before", "sleep before"))
        made.append(Event(round(at, 2), what, number, count, how=how))
        # Faults of the writes before the reset, and one of the first writes after it. Who sleeps through it
        # has a write of each partition that was not acknowledged.
        faults: tuple[How, ...] = ("refuse", "slow", "hang")
        before = (
            [rng.choice(faults) for _ in sizes[:2]]
            if how == "sleep before"
            else [rng.choice(("", "", *faults))]
        )
        after: How = rng.choice(("", "", "lose", "torn", "kill before", "kill after"))
        for then, fault in ((at + 0.01, after), *((max(0.0, at - 0.5), each) for each in before)):
            if fault:
                made.append(Event(round(then, 2), "fault", target="sink", how=fault, seconds=5.0))
    return made


def _cut(seed: int) -> list[Event]:
    """Make the cut of a schedule, which about every tenth has: before the group has committed anything."""
    rng = random.Random(f"cut {seed}")  # noqa: S311  of its own, as those of resets
    if rng.random() >= _HAVE_CUTS:
        return []
    at = round(rng.uniform(0.0, rng.choice((0.3, 1.0, 2.5))), 2)
    made = [Event(at, "cut", how=rng.choice(("", "kill before", "sleep before")))]
    none: tuple[Target, ...] = ()
    targets: tuple[Target, ...] = rng.choice((none, ("commit",), ("offsets",), ("commit",) * 2))
    for target in targets:
        how = rng.choice(_HOW[target])
        seconds = _MOST.get(how, rng.choice((0.5, 2.0, 5.0, 15.0)))
        made.append(
            Event(
                round(max(0.0, at - rng.choice((0.0, 0.5))), 2),
                "fault",
                target=target,
                how=how,
                seconds=seconds,
            )
        )
    return made


def _trouble(rng: random.Random, members: int, partitions: int, length: float) -> Event:
    at = round(rng.uniform(0, length), 2)
    member = rng.randrange(members)
    seconds = rng.choice((0.5, 2.0, 5.0, 15.0, 40.0))
    chance = rng.random()
    if chance < 0.60:
        target: Target = rng.choice(
            ("sink", "sink", "sink", "commit", "commit", "commit", "errors", "offsets")
        )
        how = rng.choice(_HOW[target])
        return Event(at, "fault", target=target, how=how, seconds=_MOST.get(how, seconds))
    if chance < 0.68:
        return Event(at, "kill", member, seconds=min(seconds, 5.0))
    if chance < 0.78:
        return Event(at, "drain", member, seconds=min(seconds, 5.0))
    if chance < 0.84:
        return Event(at, "sleep", member, seconds=seconds)
    if chance < 0.93:
        return Event(at, "deal", rng.randrange(1000))
    if chance < 0.97:
        return Event(at, "trim", rng.randrange(partitions), rng.choice((2, 5, 10, 20)))
    return Event(at, "jump", seconds=seconds)


def write_replay(path: Path, schedule: Schedule) -> None:
    """Write a schedule as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(schedule), indent=2) + b"\n")


def read_replay(path: Path) -> Schedule:
    """Read what `write_replay` wrote. Raises msgspec.DecodeError, OSError."""
    return msgspec.json.decode(path.read_bytes(), type=Schedule)


_MOST_SPENT: Final = 300  # simulations


def shrink(schedule: Schedule, breaks: Callable[[Schedule], bool]) -> Schedule:
    """Remove what is not needed: events by halves, quarters and single ones (delta debugging), then members.

    Args:
        breaks: runs a schedule; returns whether it breaks the same rule.
    """
    spent = 0

    def still(candidate: Schedule) -> bool:
        nonlocal spent
        spent += 1
        return spent <= _MOST_SPENT and breaks(candidate)

    size = len(schedule.events)
    while size >= 1:
        at = 0
        while at < len(schedule.events):
            rest = schedule.events[:at] + schedule.events[at + size :]
            candidate = msgspec.structs.replace(schedule, events=rest)
            if still(candidate):
                schedule = candidate
            else:
                at += size
        size //= 2
    for change in ({"members": 1}, {"members": 2}, {"budget": 0}):
        if any(getattr(schedule, name) > value for name, value in change.items()):
            candidate = msgspec.structs.replace(schedule, **change)
            if still(candidate):
                schedule = candidate
    return _fewer_records(schedule, still)


def _fewer_records(schedule: Schedule, still: Callable[[Schedule], bool]) -> Schedule:
    """Halve the records that are appended, as long as the rule is broken."""
    for at, event in enumerate(schedule.events):
        while event.what == "append" and event.count > 1:
            event = msgspec.structs.replace(event, count=event.count // 2)
            candidate = _with(schedule, at, event)
            if not still(candidate):
                break
            schedule = candidate
    return schedule


def _with(schedule: Schedule, at: int, event: Event) -> Schedule:
    events = (*schedule.events[:at], event, *schedule.events[at + 1 :])
    return msgspec.structs.replace(schedule, events=events)
