"""Checkers: pure functions over a recorded history that say whether a guarantee was kept.

A verdict is `ok`, `violated` (with topic, partition and offsets) or `unknown` (with the reason): what could
not be looked at is never called good.
"""

from __future__ import annotations

from signal import SIGTERM
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from chaos.history import where
from chaos.verdicts import (
    Case,
    Offence,
    Result,
    column,
    first_times,
    keys_of,
    offset_of,
    partition_of,
    same_id,
)
from kmr.service.process_end import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from chaos.history import History
    from chaos.verdicts import Promise


def check(history: History, promises: Sequence[Promise], *, memory_limit: int) -> list[Result]:
    """Everything that can be said of a run.

    Args:
        memory_limit: bytes that no process may exceed.
    """
    results = [
        checker(history, promise) for promise in promises for checker in _checkers_of(promise)
    ]
    return [
        *results,
        check_course(history),
        check_memory(history, memory_limit),
        check_stopped(history),
    ]


def _checkers_of(promise: Promise) -> tuple[Callable[[History, Promise], Result], ...]:
    if not promise.kept:
        return (check_commits, check_finished)
    return (*GROUP_CHECKERS, check_windows) if promise.windows else GROUP_CHECKERS


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
    case = Case("lost", history, promise)
    if case.unknown("rows", "dead"):
        return case.result
    acked = keys_of(case.produced("acked"))
    if not len(acked):
        return case.say("unknown", "no record was acknowledged")
    missing = np.setdiff1d(acked, case.settled())
    if not len(missing):
        return case.say("ok", f"{len(acked):,} acknowledged records are all accounted for")
    if promise.delivery == "at-most-once":
        return case.say("ok", f"{len(missing):,} records lost: legal at most once", len(missing))
    return case.violated("acknowledged, and neither in the sink nor in the error sink", missing)


def check_duplicates(history: History, promise: Promise) -> Result:
    """No record is in the sink twice."""
    case = Case("duplicates", history, promise)
    if case.unknown("rows"):
        return case.result
    keys, counts = np.unique(keys_of(case.rows), return_counts=True)
    surplus = int((counts - 1).sum())
    if not surplus:
        return case.say("ok", f"{len(keys):,} rows, each record once")
    if promise.delivery == "at-least-once":
        return case.say("ok", f"{surplus:,} rows doubled: legal at least once", surplus)
    return case.violated("in the sink more than once", keys[counts > 1], surplus)


def check_phantoms(history: History, promise: Promise) -> Result:
    """Every row is a record that was sent, where it was sent to; none of an aborted transaction."""
    case = Case("phantoms", history, promise)
    if case.unknown("rows"):
        return case.result
    keys, ids = keys_of(case.rows), column(case.rows, "id")
    good = same_id(keys, ids, case.produced("acked"))
    good |= np.isin(ids, column(case.produced("unknown"), "id"))
    if good.all():
        return case.say("ok", f"{len(keys):,} rows, each of a record that was sent")
    return case.violated("in the sink, but aborted, or never sent there", np.unique(keys[~good]))


def check_order(history: History, promise: Promise) -> Result:
    """Within a partition, records come to the sink in order: the first time that each comes counts.

    Rows of one INSERT have one time; within it there is no order to see.
    """
    case = Case("order", history, promise)
    if case.unknown("rows"):
        return case.result
    if not promise.ordered:
        return case.say("ok", "not promised: a flush may be several INSERTs at the same time")
    keys, times = first_times(keys_of(case.rows), column(case.rows, "time"))
    early = (times[1:] < times[:-1]) & (partition_of(keys[1:]) == partition_of(keys[:-1]))
    if not early.any():
        return case.say("ok", f"{len(keys):,} records in order within their partitions")
    return case.violated("came before a record with a lower offset", keys[1:][early])


def check_watermark(history: History, promise: Promise) -> Result:
    """A committed offset is never past a record that was not settled when it was seen."""
    case = Case("watermark", history, promise)
    if case.unknown("rows", "dead", "commits"):
        return case.result
    commits = case.commits
    if not commits.num_rows:
        return case.say("unknown", "no committed offset was seen")
    if promise.delivery == "at-most-once":
        return case.say("ok", "not promised: at most once commits before it writes")
    if not promise.settled:
        return case.say("ok", "not promised: Spark commits records of windows that are open")
    acked = np.unique(keys_of(case.produced("acked")))
    keys, times = first_times(case.settled(), case.settled_times())
    at = np.searchsorted(keys, acked)
    found = (at < len(keys)) & (np.take(keys, at, mode="clip") == acked) if len(keys) else acked < 0
    never = np.iinfo(np.int64).max
    settled = np.full(len(acked), never)
    settled[found] = times[at[found]]
    past: list[NDArray[np.int64]] = []
    for partition in np.unique(partition_of(acked)):
        mine = acked[partition_of(acked) == partition]
        latest = np.maximum.accumulate(settled[partition_of(acked) == partition])
        seen = where(commits, "partition", int(partition))
        passed = np.searchsorted(offset_of(mine), column(seen, "offset"))
        seen_at = column(seen, "time")
        wrong = (passed > 0) & (latest[np.maximum(passed - 1, 0)] > seen_at)
        for end, moment in zip(passed[wrong], seen_at[wrong], strict=True):
            unsettled = settled[partition_of(acked) == partition][:end] > moment
            past.append(mine[:end][unsettled])
    if not past:
        return case.say("ok", f"{commits.num_rows:,} committed offsets, none past its records")
    return case.violated("committed, and not settled then", np.unique(np.concatenate(past)))


def check_commits(history: History, promise: Promise) -> Result:
    """The committed offset of a partition never goes back."""
    case = Case("commits", history, promise)
    if case.unknown("commits"):
        return case.result
    commits = case.commits.sort_by([("partition", "ascending"), ("time", "ascending")])
    if not commits.num_rows:
        return case.say("unknown", "no committed offset was seen")
    partitions, offsets = column(commits, "partition"), column(commits, "offset")
    back = (np.diff(offsets) < 0) & (np.diff(partitions) == 0)
    if not back.any():
        return case.say("ok", f"{commits.num_rows:,} committed offsets, none went back")
    found = [
        Offence(promise.topic, int(p), int(after), int(before) - 1, f"went back from {before}")
        for p, before, after in zip(
            partitions[1:][back], offsets[:-1][back], offsets[1:][back], strict=True
        )
    ]
    return case.say("violated", "committed offsets went back", len(found), found)


def check_dead_letters(history: History, promise: Promise) -> Result:
    """The error sink has every poisoned record and no other; the sink has none of them.

    Records of aborted transactions are in neither.
    """
    case = Case("dead letters", history, promise)
    if case.unknown("rows", "dead"):
        return case.result
    acked = case.produced("acked")
    poisoned = keys_of(acked.filter(pc.field("poison")))
    good = np.setdiff1d(keys_of(acked), poisoned)
    aborted = keys_of(case.produced("aborted"))
    dead, rows = np.unique(keys_of(case.dead)), np.unique(keys_of(case.rows))
    for what, keys in (
        ("not poisoned, and in the error sink", np.intersect1d(dead, good)),
        ("aborted, and in the error sink", np.intersect1d(dead, aborted)),
        ("poisoned, and in the sink", np.intersect1d(rows, poisoned)),
    ):
        if len(keys):
            return case.violated(what, keys)
    missing = np.setdiff1d(poisoned, dead)
    if len(missing) and promise.delivery != "at-most-once":
        return case.violated("poisoned, and not in the error sink", missing)
    return case.say("ok", f"{len(dead):,} poisoned records are in the error sink", len(dead))


def check_finished(history: History, promise: Promise) -> Result:
    """After the last fault everything came to its end: the committed offsets are past all records."""
    case = Case("finished", history, promise)
    if case.unknown("commits"):
        return case.result
    acked = keys_of(case.produced("acked"))
    behind = []
    for partition in np.unique(partition_of(acked)):
        last = int(offset_of(acked[partition_of(acked) == partition]).max())
        seen = where(case.commits, "partition", int(partition))
        final = int(column(seen, "offset").max()) if seen.num_rows else 0
        if final <= last:
            behind.append(Offence(promise.topic, int(partition), final, last, "not committed"))
    if behind:
        records = sum(offence.last - offence.first + 1 for offence in behind)
        return case.say("violated", "records were never committed", records, behind)
    return case.say("ok", "every partition was worked off to its end")


def check_windows(history: History, promise: Promise) -> Result:
    """Each window of a partition and bucket has one row, in the table or as a letter, and only its records.

    That no record is missing, or in two rows, the checkers of records say.
    """
    case = Case("windows", history, promise)
    if case.unknown("windows"):
        return case.result
    windows = case.windows
    if not windows.num_rows:
        return case.say("unknown", "no row of a window was written")
    keys = np.column_stack([column(windows, name) for name in ("partition", "bucket", "start")])
    twice = len(keys) - len(np.unique(keys, axis=0))
    foreign = (column(windows, "first") < column(windows, "start")) | (
        column(windows, "last") >= column(windows, "end")
    )
    if twice or foreign.any():
        wrong = twice + int(foreign.sum())
        what = (
            f"{twice:,} rows of a window that has one, {int(foreign.sum()):,} with foreign records"
        )
        return case.say("violated", what, wrong)
    letters = int(pc.sum(windows["letter"]).as_py() or 0)
    if promise.refuses and not letters:
        return case.say("unknown", "the table has refused no row")
    what = (
        f"{len(keys):,} windows, each once, with records of its time; {letters:,} of them letters"
    )
    return case.say("ok", what, len(keys))


def check_memory(history: History, limit: int) -> Result:
    """No process grew beyond `limit` bytes."""
    if not history.memory.num_rows:
        return Result("memory", "unknown", "no process was measured")
    peaks = history.memory.group_by("process").aggregate([("bytes", "max")])
    sizes = dict(zip(peaks["process"].to_pylist(), column(peaks, "bytes_max"), strict=True))
    large = {str(name): int(size) for name, size in sizes.items() if size > limit}
    peak = int(max(sizes.values()))
    if not large:
        return Result("memory", "ok", f"at most {peak / 2**20:,.0f} MiB in a process", peak)
    names = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in sorted(large.items()))
    return Result("memory", "violated", f"more than {limit / 2**20:,.0f} MiB: {names}", len(large))


def check_stopped(history: History) -> Result:
    """Every process ended by our signal, and none is left."""
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
    return Result("stopped", "ok", f"{len(lines)} processes ended by our signal")


def _wrong_end(line: dict[str, Any]) -> str:
    if line["code"] is None:
        return "still runs"
    if line["ending"] == "died":
        return f"ended without our signal, with exit code {line['code']}"
    if line["ending"] == "late" and line["code"] != ExitCode.DEADLINE_EXCEEDED:
        return f"ended with exit code {line['code']} at its deadline"
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
