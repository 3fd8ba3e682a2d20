"""The plan of a backfill: of each partition the first offset of the history, and the cut where it ends.

The history is read by a group of its own, `GROUP.backfill`. Its committed offsets have the plan in their
metadata, so whoever runs the command again, on any machine, finds it, and how far it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..delivery.announcement import (
    BackfillRange,
    Generation,
    awaits_history,
    handed_over,
    history_group,
    next_generation,
    read_metadata,
    read_up_to,
)
from ..errors import ConsumerError, OffsetOutOfRange, SettingsError
from ..kafka.consumer import CommitOffset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..archives.archive import Archive
    from ..kafka.admin import Admin
    from ..record import TopicPartition

Bound: TypeAlias = "Literal['start', 'end'] | int | Mapping[int, int]"
"""A place in each partition: the start or end of its log, a time in milliseconds since 1970, or offsets by
partition."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What a backfill reads.

    Attributes:
        group: the group of the present, which begins at the cut.
        generation: that of the offsets of both groups.
        histories: first offset and cut of each partition.
        remembers: the strategy remembers records: the group of the present waits for the end of the history.
        sizes: bytes of the histories in the topic, estimated from the sizes of the logs; where a broker tells
            them.
    """

    group: str
    generation: int
    histories: Mapping[TopicPartition, BackfillRange]
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    remembers: bool = False

    @property
    def offsets(self) -> int:
        """How many offsets the history has."""
        return sum(each.offsets for each in self.histories.values())

    @property
    def cut(self) -> dict[TopicPartition, CommitOffset]:
        """The committed offsets with which the group of the present begins."""
        metadata = Generation(self.generation, awaits=self.remembers).metadata
        return {at: CommitOffset(each.until, metadata) for at, each in self.histories.items()}

    @property
    def beginning(self) -> dict[TopicPartition, CommitOffset]:
        """The committed offsets with which the group of the history begins."""
        return {
            at: CommitOffset(each.first, Generation(self.generation, history=each).metadata)
            for at, each in self.histories.items()
        }

    @classmethod
    def of_commits(
        cls, group: str, committed: Mapping[TopicPartition, CommitOffset], topics: Iterable[str]
    ) -> BackfillPlan | None:
        """Return the plan in the committed offsets of `history_group(group)`; None if they have none.

        Raises:
            ConsumerError: a newer version of kmr wrote them.
        """
        wanted = set(topics)
        found = {
            at: history
            for at, entry in sorted(committed.items())
            if at.topic in wanted and (history := read_metadata(at, entry).history) is not None
        }
        if not found:
            return None
        return cls(group, max(read_metadata(at, committed[at]).generation for at in found), found)

    @classmethod
    async def choose(
        cls,
        admin: Admin,
        group: str,
        partitions: Iterable[TopicPartition],
        *,
        begin: Bound,
        end: Bound,
        engine: str,
        archive: Archive | None = None,
        remembers: bool = False,
    ) -> BackfillPlan:
        """Choose the cut of each partition, once.

        Args:
            engine: what reads the history, with what it must have again to go on.
            archive: has records before those of the topic.
            remembers: see `BackfillPlan`.

        Raises:
            OffsetOutOfRange: a place is not in the log, nothing is before the cut, or offsets are in neither
                archive nor topic.
            ConsumerError: no broker answers, or offsets do not name every partition.
            SettingsError: a time cannot be looked up in an archive.
        """
        wanted = sorted(partitions)
        starts, ends = await admin.beginning_offsets(wanted), await admin.end_offsets(wanted)
        reach = starts
        if archive is not None:
            if isinstance(begin, int):
                raise SettingsError(
                    "--from: a time is not looked up in an archive; give offsets (0:1500,1:900), or earliest"
                )
            archived = {at: archive.first(at) for at in wanted}
            reach = {
                at: starts[at] if first is None else min(starts[at], first)
                for at, first in archived.items()
            }
        firsts = await _places(admin, begin, reach, ends, "--from")
        cuts = await _places(admin, end, starts, ends, "--until")
        logs = await admin.log_sizes(wanted)
        histories, sizes = {}, {}
        for at in wanted:
            first, cut = firsts[at], cuts[at]
            if first > cut:
                raise OffsetOutOfRange(
                    f"{at}: --from is offset {first}, after the cut at {cut}; choose an earlier one",
                    at,
                )
            histories[at] = BackfillRange(first, cut, engine)
            if archive is not None:
                archive.require_joined(at, first, cut, starts[at])
            if at in logs:
                read = max(0, cut - max(first, starts[at]))
                sizes[at] = logs[at] * read // max(1, ends[at] - starts[at])
        if (begin, end) != ("start", "end") and firsts == cuts:
            raise OffsetOutOfRange(
                "no partition has a record from --from on and before the cut: nothing would be read. Choose "
                "an earlier --from, or a later --until"
            )
        return cls(group, next_generation(()), histories, sizes, remembers)

    def require_records(
        self,
        committed: Mapping[TopicPartition, CommitOffset],
        starts: Mapping[TopicPartition, int],
        archive: Archive | None,
    ) -> None:
        """Check that the topic or the archive has every record that is not done yet.

        Args:
            committed: the commits of the history's group.
            starts: the first offset of each partition's log.

        Raises:
            OffsetOutOfRange: they lack offsets.
        """
        done = self.done(committed)
        for at, history in self.histories.items():
            first = history.first + done[at]
            if first >= min(starts[at], history.until):
                continue
            if archive is None:
                raise OffsetOutOfRange(
                    f"{at}: offset {first} of the history is not in the topic any more, which begins at "
                    f"{starts[at]}: give --archive, if its records are in Parquet files",
                    at,
                )
            archive.require_joined(at, first, history.until, starts[at])

    def done(self, committed: Mapping[TopicPartition, CommitOffset]) -> dict[TopicPartition, int]:
        """Return how many offsets of each partition are done, by the commits of the history's group."""
        return {
            at: history.done(read_up_to(at, committed[at])) if at in committed else 0
            for at, history in self.histories.items()
        }

    def is_adopted(self, committed: Mapping[TopicPartition, CommitOffset]) -> bool:
        """Return whether the group of the present begins at the cut, by its commits.

        Raises:
            ConsumerError: it has other commits, with which records would be doubled or skipped.
        """
        ours = {at: committed[at] for at in self.histories if at in committed}
        if not ours:
            return False
        wrong = [
            f"{at}: {entry.offset:,} (the cut is {self.histories[at].until:,})"
            for at, entry in ours.items()
            if read_up_to(at, entry) < self.histories[at].until
            or read_metadata(at, entry).generation < self.generation
        ]
        wrong += [f"{at}: nothing" for at in self.histories if at not in ours]
        if wrong:
            raise ConsumerError(
                f"group {self.group} does not begin at the cut of its backfill: its offsets were reset, or "
                f"a worker began without one. It has committed {_some(wrong)}. Stop its workers, take "
                f"its rows out of the table, and delete both groups ({history_group(self.group)} too); "
                "or backfill for a new group"
            )
        return True

    def hand_over(
        self,
        history: Mapping[TopicPartition, CommitOffset],
        present: Mapping[TopicPartition, CommitOffset],
    ) -> dict[TopicPartition, CommitOffset]:
        """Return what the group of the present has to commit when the history is done; nothing if it has.

        Args:
            history: the commits of the history's group.
            present: those of the group of the present.

        Raises:
            ConsumerError: the history is not done.
        """
        if not any(awaits_history(at, present.get(at)) for at in self.histories):
            return {}
        return {at: handed_over(at, history[at]) for at in self.histories}

    def refuse_commits(self, committed: Mapping[TopicPartition, CommitOffset]) -> None:
        """Check that the cut passes no commit of the group.

        Raises:
            ConsumerError: the group has read, or would never read, records on one side of the cut.
        """
        passed = [
            f"{at}: {committed[at].offset:,} (the cut would be {history.until:,})"
            for at, history in self.histories.items()
            if at in committed
        ]
        if passed:
            raise ConsumerError(
                f"group {self.group} has committed offsets, which the cut would pass: {_some(passed)}. What "
                "it has read before is in its table and would be doubled, what is between would be skipped. "
                "Backfill for a new group, into another table; or delete the group if its rows are gone"
            )


def _some(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


async def _places(
    admin: Admin,
    bound: Bound,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    flag: str,
) -> dict[TopicPartition, int]:
    """Return the offset of a bound in each partition."""
    if bound == "start":
        return dict(starts)
    if bound == "end":
        return dict(ends)
    if isinstance(bound, int):
        found = await admin.offsets_for_times(dict.fromkeys(starts, bound))
        return {at: ends[at] if (at_time := found[at]) is None else at_time for at in starts}
    assert not isinstance(bound, str)  # noqa: S101  for the type
    missing = sorted({at.partition for at in starts} ^ set(bound))
    if missing or len({at.topic for at in starts}) > 1:
        raise ConsumerError(
            f"{flag}: offsets must name every partition of one topic, and no other; they differ in partition "
            f"{', '.join(map(str, missing)) or '(there are several topics)'}"
        )
    places = {at: bound[at.partition] for at in starts}
    for at, offset in places.items():
        if not starts[at] <= offset <= ends[at]:
            raise OffsetOutOfRange(
                f"{flag}: {at} has offsets {starts[at]} to {ends[at]} (exclusive), not {offset}", at
            )
    return places
