"""Checkers: pure functions over a recorded history that say whether a guarantee was kept.

A verdict is `ok`, `violated` (with topic, partition and offsets) or `unknown` (with the reason): what could
not be looked at is never called good.
"""

from __future__ import annotations

from dataclasses import dataclass
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow.compute as pc

from chaos.history import where

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from chaos.history import History

__all__ = [
    "GROUP_CHECKERS",
    "Delivery",
    "Offence",
    "Promise",
    "Result",
    "Verdict",
    "check",
    "check_commits",
    "check_course",
    "check_dead_letters",
    "check_duplicates",
    "check_finished",
    "check_lost",
    "check_memory",
    "check_order",
    "check_phantoms",
    "check_stopped",
    "check_watermark",
]

Verdict = Literal["ok", "violated", "unknown"]
Delivery = Literal["exactly-once", "at-least-once", "at-most-once"]

_MOST_OFFENCES = 50
_OFFSET_BITS = 44  # a key is partition and offset in one number


@dataclass(frozen=True, slots=True)
class Promise:
    """What a group's strategy promises about the records of a topic."""

    group: str
    topic: str
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Offence:
    """Records that break a guarantee: offsets `first` to `last` (inclusive) of a partition."""

    topic: str
    partition: int
    first: int
    last: int
    note: str = ""

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition}[{self.first}..{self.last}]"
        return f"{where} {self.note}".rstrip()


@dataclass(frozen=True, slots=True)
class Result:
    """What a checker found.

    Attributes:
        count: how many records (processes, samples) are concerned; also where that is legal.
        offences: the first of them.
    """

    checker: str
    verdict: Verdict
    detail: str
    count: int = 0
    offences: Sequence[Offence] = ()
    group: str = ""


def check(history: History, promises: Sequence[Promise], *, memory_limit: int) -> list[Result]:
    """Everything that can be said of a run.

    Args:
        memory_limit: bytes that no process may exceed.
    """
    results = [checker(history, promise) for promise in promises for checker in GROUP_CHECKERS]
    return [
        *results,
        check_course(history),
        check_memory(history, memory_limit),
        check_stopped(history),
    ]


def check_course(history: History) -> Result:
    """Every fault had its effect, and the system recovered from it in time."""
    events = history.events
    given_up = where(events, "kind", "given up")["detail"].to_pylist()
    if given_up:
        return Result("course", "violated", "; ".join(map(str, given_up)), len(given_up))
    faults = where(events, "kind", "fault").num_rows
    return Result("course", "ok", f"{faults} faults, and a recovery from each", faults)


def check_lost(history: History, promise: Promise) -> Result:
    """Every acknowledged record is in the sink, or in the error sink."""
    verdict = _Verdict("lost", history, promise)
    if verdict.unknown("rows", "dead"):
        return verdict.result
    acked = _keys(verdict.produced("acked"))
    if not len(acked):
        return verdict.say("unknown", "no record was acknowledged")
    missing = np.setdiff1d(acked, verdict.settled())
    if not len(missing):
        return verdict.say("ok", f"{len(acked):,} acknowledged records are all accounted for")
    if promise.delivery == "at-most-once":
        return verdict.say("ok", f"{len(missing):,} records lost: legal at most once", len(missing))
    return verdict.violated("acknowledged, and neither in the sink nor in the error sink", missing)


def check_duplicates(history: History, promise: Promise) -> Result:
    """No record is in the sink twice."""
    verdict = _Verdict("duplicates", history, promise)
    if verdict.unknown("rows"):
        return verdict.result
    keys, counts = np.unique(_keys(verdict.rows), return_counts=True)
    surplus = int((counts - 1).sum())
    if not surplus:
        return verdict.say("ok", f"{len(keys):,} rows, each record once")
    if promise.delivery == "at-least-once":
        return verdict.say("ok", f"{surplus:,} rows doubled: legal at least once", surplus)
    return verdict.violated("in the sink more than once", keys[counts > 1], surplus)


def check_phantoms(history: History, promise: Promise) -> Result:
    """Every row is a record that was sent, where it was sent to; none of an aborted transaction."""
    verdict = _Verdict("phantoms", history, promise)
    if verdict.unknown("rows"):
        return verdict.result
    keys, ids = _keys(verdict.rows), _column(verdict.rows, "id")
    good = _same(keys, ids, verdict.produced("acked"))
    good |= np.isin(ids, _column(verdict.produced("unknown"), "id"))
    if good.all():
        return verdict.say("ok", f"{len(keys):,} rows, each of a record that was sent")
    return verdict.violated("in the sink, but aborted, or never sent there", np.unique(keys[~good]))


def check_order(history: History, promise: Promise) -> Result:
    """Within a partition, records come to the sink in order: the first time that each comes counts.

    Rows of one INSERT have one time; within it there is no order to see.
    """
    verdict = _Verdict("order", history, promise)
    if verdict.unknown("rows"):
        return verdict.result
    keys, times = _first(_keys(verdict.rows), _column(verdict.rows, "time"))
    early = (times[1:] < times[:-1]) & (_partition(keys[1:]) == _partition(keys[:-1]))
    if not early.any():
        return verdict.say("ok", f"{len(keys):,} records in order within their partitions")
    return verdict.violated("came before a record with a lower offset", keys[1:][early])


def check_watermark(history: History, promise: Promise) -> Result:
    """A committed offset is never past a record that was not settled when it was seen."""
    verdict = _Verdict("watermark", history, promise)
    if verdict.unknown("rows", "dead", "commits"):
        return verdict.result
    commits = verdict.commits
    if not commits.num_rows:
        return verdict.say("unknown", "no committed offset was seen")
    if promise.delivery == "at-most-once":
        return verdict.say("ok", "not promised: at most once commits before it writes")
    acked = np.unique(_keys(verdict.produced("acked")))
    keys, times = _first(verdict.settled(), verdict.settled_times())
    at = np.searchsorted(keys, acked)
    found = (at < len(keys)) & (np.take(keys, at, mode="clip") == acked) if len(keys) else acked < 0
    never = np.iinfo(np.int64).max
    settled = np.full(len(acked), never)
    settled[found] = times[at[found]]
    past: list[NDArray[np.int64]] = []
    for partition in np.unique(_partition(acked)):
        mine = acked[_partition(acked) == partition]
        latest = np.maximum.accumulate(settled[_partition(acked) == partition])
        seen = where(commits, "partition", int(partition))
        passed = np.searchsorted(_offset(mine), _column(seen, "offset"))
        seen_at = _column(seen, "time")
        wrong = (passed > 0) & (latest[np.maximum(passed - 1, 0)] > seen_at)
        for end, moment in zip(passed[wrong], seen_at[wrong], strict=True):
            unsettled = settled[_partition(acked) == partition][:end] > moment
            past.append(mine[:end][unsettled])
    if not past:
        return verdict.say("ok", f"{commits.num_rows:,} committed offsets, none past its records")
    return verdict.violated("committed, and not settled then", np.unique(np.concatenate(past)))


def check_commits(history: History, promise: Promise) -> Result:
    """The committed offset of a partition never goes back."""
    verdict = _Verdict("commits", history, promise)
    if verdict.unknown("commits"):
        return verdict.result
    commits = verdict.commits.sort_by([("partition", "ascending"), ("time", "ascending")])
    if not commits.num_rows:
        return verdict.say("unknown", "no committed offset was seen")
    partitions, offsets = _column(commits, "partition"), _column(commits, "offset")
    back = (np.diff(offsets) < 0) & (np.diff(partitions) == 0)
    if not back.any():
        return verdict.say("ok", f"{commits.num_rows:,} committed offsets, none went back")
    found = [
        Offence(promise.topic, int(p), int(after), int(before) - 1, f"went back from {before}")
        for p, before, after in zip(
            partitions[1:][back], offsets[:-1][back], offsets[1:][back], strict=True
        )
    ]
    return verdict.say("violated", "committed offsets went back", len(found), found)


def check_dead_letters(history: History, promise: Promise) -> Result:
    """The error sink has every poisoned record and no other; the sink has none of them.

    Records of aborted transactions are in neither.
    """
    verdict = _Verdict("dead letters", history, promise)
    if verdict.unknown("rows", "dead"):
        return verdict.result
    acked = verdict.produced("acked")
    poisoned = _keys(acked.filter(pc.field("poison")))
    good = np.setdiff1d(_keys(acked), poisoned)
    aborted = _keys(verdict.produced("aborted"))
    dead, rows = np.unique(_keys(verdict.dead)), np.unique(_keys(verdict.rows))
    for what, keys in (
        ("not poisoned, and in the error sink", np.intersect1d(dead, good)),
        ("aborted, and in the error sink", np.intersect1d(dead, aborted)),
        ("poisoned, and in the sink", np.intersect1d(rows, poisoned)),
    ):
        if len(keys):
            return verdict.violated(what, keys)
    missing = np.setdiff1d(poisoned, dead)
    if len(missing) and promise.delivery != "at-most-once":
        return verdict.violated("poisoned, and not in the error sink", missing)
    return verdict.say("ok", f"{len(dead):,} poisoned records are in the error sink", len(dead))


def check_finished(history: History, promise: Promise) -> Result:
    """After the last fault everything came to its end: the committed offsets are past all records."""
    verdict = _Verdict("finished", history, promise)
    if verdict.unknown("commits"):
        return verdict.result
    acked = _keys(verdict.produced("acked"))
    behind = []
    for partition in np.unique(_partition(acked)):
        last = int(_offset(acked[_partition(acked) == partition]).max())
        seen = where(verdict.commits, "partition", int(partition))
        final = int(_column(seen, "offset").max()) if seen.num_rows else 0
        if final <= last:
            behind.append(Offence(promise.topic, int(partition), final, last, "not committed"))
    if behind:
        records = sum(offence.last - offence.first + 1 for offence in behind)
        return verdict.say("violated", "records were never committed", records, behind)
    return verdict.say("ok", "every partition was worked off to its end")


def check_memory(history: History, limit: int) -> Result:
    """No process grew beyond `limit` bytes."""
    if not history.memory.num_rows:
        return Result("memory", "unknown", "no process was measured")
    peaks = history.memory.group_by("process").aggregate([("bytes", "max")])
    sizes = dict(zip(peaks["process"].to_pylist(), _column(peaks, "bytes_max"), strict=True))
    large = {str(name): int(size) for name, size in sizes.items() if size > limit}
    peak = int(max(sizes.values()))
    if not large:
        return Result("memory", "ok", f"at most {peak / 2**20:,.0f} MiB in a process", peak)
    names = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in sorted(large.items()))
    return Result("memory", "violated", f"more than {limit / 2**20:,.0f} MiB: {names}", len(large))


def check_stopped(history: History) -> Result:
    """Every process ended, when and as it was told to: none by itself, none is left."""
    lines = history.processes.to_pylist()
    if not lines:
        return Result("stopped", "unknown", "no process was started")
    wrong = [
        f"{line['name']} (process {line['pid']}) {_wrong_end(line)}"
        for line in lines
        if _wrong_end(line)
    ]
    if wrong:
        return Result("stopped", "violated", "; ".join(wrong), len(wrong))
    return Result("stopped", "ok", f"{len(lines)} processes ended as they were told to")


def _wrong_end(line: dict[str, Any]) -> str:
    if line["code"] is None:
        return "still runs"
    if line["ending"] == "died":
        return f"ended by itself with exit code {line['code']}"
    allowed = (0,) if line["ready"] else (0, -SIGTERM)  # it had not even begun to listen to signals
    if line["ending"] == "stopped" and line["code"] not in allowed:
        return f"ended with exit code {line['code']} after SIGTERM"
    return ""


GROUP_CHECKERS: tuple[Callable[[History, Promise], Result], ...] = (
    check_lost,
    check_duplicates,
    check_phantoms,
    check_order,
    check_watermark,
    check_commits,
    check_dead_letters,
    check_finished,
)


class _Verdict:
    """One checker's way to its result: the tables of one group, and the words."""

    def __init__(self, checker: str, history: History, promise: Promise) -> None:
        self._checker, self._history, self._promise = checker, history, promise
        self.rows, self.dead, self.commits = (
            self._of_topic(history.group(name, promise.group))
            for name in ("rows", "dead", "commits")
        )
        self.result = self.say("unknown", "")

    def _of_topic(self, table: pa.Table) -> pa.Table:
        return where(table, "topic", self._promise.topic)

    def produced(self, outcome: str) -> pa.Table:
        return where(self._of_topic(self._history.produced), "outcome", outcome)

    def settled(self) -> NDArray[np.int64]:
        return np.concatenate([_keys(self.rows), _keys(self.dead)])

    def settled_times(self) -> NDArray[np.int64]:
        return np.concatenate([_column(self.rows, "time"), _column(self.dead, "time")])

    def unknown(self, *tables: str) -> bool:
        for name in tables:
            reason = self._history.unread.get(f"{name}/{self._promise.group}")
            if reason is not None:
                self.result = self.say("unknown", f"{name} could not be read: {reason}")
                return True
        return False

    def say(
        self, verdict: Verdict, detail: str, count: int = 0, offences: Sequence[Offence] = ()
    ) -> Result:
        return Result(
            self._checker,
            verdict,
            detail,
            count,
            tuple(offences)[:_MOST_OFFENCES],
            self._promise.group,
        )

    def violated(self, detail: str, keys: NDArray[np.int64], count: int | None = None) -> Result:
        number = len(keys) if count is None else count
        offences = _ranges(self._promise.topic, np.sort(keys))
        return self.say("violated", f"{number:,} records {detail}", number, offences)


def _column(table: pa.Table, name: str) -> NDArray[np.int64]:
    column: NDArray[np.int64] = table[name].to_numpy().astype(np.int64)
    return column


def _keys(table: pa.Table) -> NDArray[np.int64]:
    """Partition and offset of each line as one number."""
    return (_column(table, "partition") << _OFFSET_BITS) | _column(table, "offset")


def _partition(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return keys >> _OFFSET_BITS


def _offset(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return keys & ((1 << _OFFSET_BITS) - 1)


def _same(keys: NDArray[np.int64], ids: NDArray[np.int64], acked: pa.Table) -> NDArray[np.bool_]:
    """Which rows have the id that was acknowledged at their offset."""
    if not acked.num_rows:
        return np.zeros(len(keys), dtype=np.bool_)
    acked = acked.sort_by([("partition", "ascending"), ("offset", "ascending")])
    known = _keys(acked)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    same: NDArray[np.bool_] = (known[at] == keys) & (_column(acked, "id")[at] == ids)
    return same


def _first(
    keys: NDArray[np.int64], times: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different keys in order, and the earliest time of each."""
    order = np.lexsort((times, keys))
    distinct, at = np.unique(keys[order], return_index=True)
    return distinct, times[order][at]


def _ranges(topic: str, keys: NDArray[np.int64]) -> list[Offence]:
    """Sorted keys as ranges of consecutive offsets."""
    starts = np.flatnonzero(np.diff(keys, prepend=-2) != 1)
    ends = np.append(starts[1:], len(keys)) - 1
    return [
        Offence(
            topic,
            int(keys[start] >> _OFFSET_BITS),
            int(_offset(keys[start : start + 1])[0]),
            int(_offset(keys[end : end + 1])[0]),
        )
        for start, end in zip(starts[:_MOST_OFFENCES], ends[:_MOST_OFFENCES], strict=True)
    ]
