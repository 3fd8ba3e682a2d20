"""One-line mutations of the worker's protocol, and a process in which one of them is imported.

`python -m tests.framework.simulation.mutations NAME SCHEDULES [SEED]` prints the number of schedules until
one breaks a rule, and the rule; `0` if none does. The file is patched while it is imported, never on the
disk.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

__all__ = ["MUTATIONS", "ROOT", "Mutation", "main"]

ROOT: Final = Path(__file__).parents[3] / "framework"


class Mutation(NamedTuple):
    """In `file`, the only occurrence of `old` becomes `new`.

    Attributes:
        of: the strategies that run the line, where only some of them do.
    """

    file: str
    old: str
    new: str
    of: tuple[str, ...] = ()


_ANNOUNCED: Final = ("clickhouse", "batched into clickhouse", "chain of ranges")
_FAN_OUT: Final = ("fan-out into clickhouse", "fan-out at least once")
_JOINED: Final = ("joined into clickhouse",)
_AT_LEAST_ONCE: Final = (
    "at least once",
    "chain at least once",
    "slow chain at least once",
    "slow maps at least once",
)
_AT_MOST_ONCE: Final = ("at most once",)
_TRANSACTIONS: Final = ("transactions",)
_BRANCHES: Final = ("branches", "branches at least once")
_DISTINCT: Final = (
    "distinct into clickhouse",
    "distinct chain of ranges",
    "distinct at least once",
)
_WINDOWS: Final = ("windows into clickhouse", "windows that overlap", "windows of idle partitions")
_LATE: Final = ("windows that overlap", "windows of idle partitions")
_SESSIONS: Final = ("windows of sessions", "windows of sessions with late rows")
_IDLE: Final = ("windows of idle partitions",)
_CUT: Final = ("clickhouse", "chain of ranges", "at most once", "transactions")
_ORDERED: Final = (*_ANNOUNCED, *_AT_MOST_ONCE)

MUTATIONS: Final[dict[str, Mutation]] = {
    "commits go on between a revocation and the assignment": Mutation(
        "commit.py", "        self._held = True", "        self._held = False"
    ),
    "an announcement is forgotten before its last record": Mutation(
        "commit.py",
        "watermark <= announcement.last:",
        "watermark < announcement.last:",
        of=_ANNOUNCED,
    ),
    "an announcement is committed with the watermark, not with its first offset": Mutation(
        "commit.py",
        "return announced\n        entry.",
        "return CommitOffset(watermark, announcement.metadata)\n        entry.",
        of=_ANNOUNCED,
    ),
    "a range is written although its announcement was refused": Mutation(
        "commit.py",
        "return self._is_acknowledged(partition, announced)",
        "return bool(announced)",
        of=_ANNOUNCED,
    ),
    "a range that was found announced is written without a commit of our own": Mutation(
        "commit.py", "entry.is_found = True", "entry.is_found = False", of=_ANNOUNCED
    ),
    "a range that was announced with others is written again under its own token": Mutation(
        "sinks/planning.py", "shared=shared\n", "shared=''\n", of=_JOINED
    ),
    "the token of several ranges proves that each is there": Mutation(
        "sinks/clickhouse/repeating.py",
        "if insert.shared or (counts and",
        "if not insert.shared and (counts and",
        of=_JOINED,
    ),
    "every committed offset counts as ours": Mutation(
        "commit.py", "return committed == entry.acknowledged or (", "return True or ("
    ),
    "the offset of a fenced commit counts as ours": Mutation(
        "commit.py", "self._distrust_attempts(moved)", "self._distrust_attempts(())"
    ),
    "a commit without an answer may be late": Mutation(
        "commit.py",
        "if self._orders_commits and self._consumer",
        "if False and self._consumer",
        of=_ORDERED,
    ),
    "commits go on while the group is joined anew": Mutation(
        "commit.py",
        "            self.hold()\n            self._fenced",
        "            self._fenced",
        of=_ORDERED,
    ),
    "what was attempted in an earlier membership counts as ours": Mutation(
        "commit.py",
        "self._distrust_attempts(self._partitions)",
        "self._distrust_attempts(())",
        of=_ANNOUNCED,
    ),
    "the announcement of a lost range is not kept while it is replayed": Mutation(
        "commit.py",
        "entry.announce(announcement)\n            entry.is_found = True",
        "entry.is_found = True",
        of=_ANNOUNCED,
    ),
    "a fenced commit is not noticed by a rebalance": Mutation(
        "commit.py", "                self._fenced.set()", "                pass"
    ),
    "a failed commit counts as acknowledged": Mutation(
        "commit.py",
        "                self._report(str(error))\n                await",
        "                self._acknowledge(moved)\n                await",
    ),
    "the ledger goes by the maximum: a gap does not hold the watermark": Mutation(
        "delivery/ledger.py", "if self._starts[0] > self.watermark:", "if False:"
    ),
    "the watermark jumps to the highest settled offset": Mutation(
        "delivery/ledger.py", "self._ends[0] + 1)", "self._ends[-1] + 1)"
    ),
    "acks of an old generation are accepted": Mutation(
        "delivery/ledger.py",
        "return ledger if ledger is not None and ledger.generation == r.generation else None",
        "return ledger",
    ),
    "bytes of dropped partitions stay in the budget": Mutation(
        "delivery/ledger.py",
        "self._on_bytes(-batch.nbytes, -batch.unmapped)\n            self._letters_leave(ledger, 0)",
        "self._on_bytes(0, 0)\n            self._letters_leave(ledger, 0)",
    ),
    "bytes of rows are never given back": Mutation(
        "delivery/ledger.py", "part.nbytes += made", "part.nbytes += 0"
    ),
    "a rebalance does not look for settled offsets above a watermark": Mutation(
        "delivery/ledger.py",
        "return any(map(self._has_records, self._starts, self._ends))",
        "return False",
        of=_AT_LEAST_ONCE,
    ),
    "at most once settles nothing before the write": Mutation(
        "guarantees.py",
        "self.ledgers.settle(ranges)",
        "pass",
        of=_AT_MOST_ONCE,
    ),
    "at most once does not wait for failed records between its rows": Mutation(
        "guarantees.py",
        "await self._wait(buffer, self.ledgers.complete)\n"
        "        async with self._begun(buffer) as has_rows:\n            if not has_rows:\n"
        "                return None\n            ranges",
        "async with self._begun(buffer) as has_rows:\n            if not has_rows:\n"
        "                return None\n            ranges",
        of=_AT_MOST_ONCE,
    ),
    "at most once writes although the commit was refused": Mutation(
        "guarantees.py",
        'if not await self.committer.commit():\n                raise _refused(f"cannot commit',
        'if not (await self.committer.commit() or True):\n                raise _refused(f"cannot commit',
        of=_AT_MOST_ONCE,
    ),
    "no announcement before the write": Mutation(
        "guarantees.py",
        "if not await self.committer.announce(",
        "if None is (",
        of=_ANNOUNCED,
    ),
    "a replayed range is announced as a new one": Mutation(
        "guarantees.py",
        "if self.replayed is not None and ranges[0].first > self.replayed.last:",
        "if self.replayed is not None:",
        of=_ANNOUNCED,
    ),
    "a token without a range": Mutation(
        "guarantees.py",
        "token=token_of(self.group, ranges, generations)",
        "token=f'{self.group}:{self.partition}'",
        of=_ANNOUNCED,
    ),
    "an announced range ends one record too early": Mutation(
        "guarantees.py",
        "last=ranges[-1].last,",
        "last=max(ranges[0].first, ranges[-1].last - 1),",
        of=_ANNOUNCED,
    ),
    "a range is written before earlier failed records are settled": Mutation(
        "guarantees.py",
        "ledger is None or (ledger.watermark or 0) >= ranges[0].first",
        "True",
        of=_ANNOUNCED,
    ),
    "an unexpected duplicate is not checked against the group": Mutation(
        "guarantees.py",
        "if not await self.committer.commit():\n            raise _refused(\n",
        "if False:\n            raise _refused(\n",
        of=_ANNOUNCED,
    ),
    "records settle when the first of two reducers has flushed": Mutation(
        "guarantees.py", "if outcome.forward is None:", "if True:"
    ),
    "rows of lost partitions are written": Mutation(
        "guarantees.py", "buffer.drop_stale(self.ledgers.is_current)", "pass"
    ),
    "the end of a replayed range is not passed on": Mutation(
        "reduce.py",
        "await self._ports.out.send(ReplayEnd())",
        "pass",
        of=_ANNOUNCED,
    ),
    "a flushed buffer is not emptied": Mutation(
        "reduce.py",
        "self._flushing_since = self._trouble = None\n                    buffer.clear()",
        "self._flushing_since = self._trouble = None\n                    pass",
    ),
    "flushes begin during a rebalance": Mutation(
        "guarantees.py", "async with self.gate:", "if True:"
    ),
    "failed records settle with the others": Mutation(
        "map.py", "ranges = subtract_ranges(ranges, rows.ranges)", "pass"
    ),
    "failed records are not sent to the error stage": Mutation(
        "map.py",
        "await self._ports.errors.send(records, stage, is_limited=stage == MAP_STAGE)",
        "pass",
    ),
    "filtered records are not settled": Mutation("map.py", "self._ledgers.settle(ranges)", "pass"),
    "rows that are mapped with those of others are not counted as mapped": Mutation(
        "map_shared.py", "stage.note_mapped(batch, outcome)", "pass"
    ),
    "batches that wait for a full round are forgotten": Mutation(
        "map_shared.py", "        if share.waiting:\n            self._wake(share)", "        pass"
    ),
    "the map does not say where a replayed range ends": Mutation(
        "map.py",
        "await self._ports.out.send(ReplayEnd())",
        "pass",
        of=_ANNOUNCED,
    ),
    "an announced range is not kept apart from what follows": Mutation(
        "map.py",
        "if end is None or batch.last < end:",
        "if True:",
        of=_ANNOUNCED,
    ),
    "a paused partition is not resumed": Mutation("map.py", "self._ports.on_taken()", "pass"),
    "a drain keeps records whose map has not begun": Mutation(
        "map.py", "self._ledgers.give_back(self._ledger, self._mapped_to)", "pass"
    ),
    "a revocation does not hold back commits": Mutation(
        "events.py", "self._committer.hold()", "pass"
    ),
    "a partition that was lost goes on": Mutation(
        "events.py", "pipeline.keep_partitions(kept)", "pass"
    ),
    "a revocation does not wait for flushes": Mutation("events.py", "await quiet()", "pass"),
    "a transaction is committed although a partition of its rows was lost": Mutation(
        "commit.py",
        "if self._held or not self._ledgers.is_current(ranges):",
        "if self._held:",
        of=_TRANSACTIONS,
    ),
    "what became of a commit without an answer is not asked for": Mutation(
        "commit.py",
        "            await self._learn()",
        "            pass",
        of=_TRANSACTIONS,
    ),
    "rows of a transaction that was committed without an answer are sent again": Mutation(
        "guarantees.py",
        "buffer.drop_stale(lambda ranges: not ranges or not self.ledgers.are_settled(ranges))",
        "pass",
        of=_TRANSACTIONS,
    ),
    "a transaction is committed before a record below it is settled": Mutation(
        "guarantees.py",
        "        if not self.ledgers.complete(ranges):",
        "        if False:",
        of=_TRANSACTIONS,
    ),
    "a transaction without an end stays open": Mutation(
        "kafka/transactions.py",
        "            if self._begun:\n                await self._abort()",
        "            pass",
        of=_TRANSACTIONS,
    ),
    "a transaction has no offsets": Mutation(
        "kafka/transactions.py",
        "                if theirs:",
        "                if False:",
        of=_TRANSACTIONS,
    ),
    "announcements of others are not read": Mutation(
        "events.py",
        "announcement = self._replayed(partition, announced.get(partition))",
        "announcement = None",
        of=_ANNOUNCED,
    ),
    "reading begins one record after the committed offset": Mutation(
        "events.py",
        "start = entry.offset if entry is not None",
        "start = entry.offset + 1 if entry is not None",
    ),
    "nothing goes on after an assignment": Mutation(
        "events.py",
        "            await committer.commit()\n        pipeline.resume()",
        "            await committer.commit()\n        pass",
    ),
    "commits are held for ever": Mutation(
        "events.py", "        committer.rejoined()", "        pass"
    ),
    "a shutdown in a rebalance flushes what may belong to others": Mutation(
        "events.py", "self._pipeline.abandon()", "self._pipeline.resume(); self._pipeline.drain()"
    ),
    "rows that were mixed with those of lost partitions are kept": Mutation(
        "pipeline.py", "if dropped and self._maps and self._lanes.mix_partitions:", "if False:"
    ),
    "partitions begin again at their position, not at their watermark": Mutation(
        "pipeline.py",
        "self.start_partition(ledger.partition, mark, look_back=back)",
        "self.start_partition(ledger.partition, ledger.position, look_back=back)",
    ),
    "the lane of a lost partition goes on": Mutation(
        "pipeline.py", "self._lanes.stop(partition)", "pass"
    ),
    "a rebalance does not stop flushes": Mutation(
        "pipeline.py",
        "        self._mapping.close()\n        self._flushing.close()",
        "        self._mapping.close()\n        pass",
    ),
    "the inbox of the error stage is not closed at the end": Mutation(
        "pipeline.py", "        self._errors.close()", "        pass"
    ),
    "a retried range is not looked for in the sink": Mutation(
        "sinks/ranges.py",
        "tried, self._tried = self._tried, True",
        "tried, self._tried = False, True",
        of=_ANNOUNCED,
    ),
    "each attempt of an insert has another token": Mutation(
        "sinks/clickhouse/inserts.py",
        '"insert_deduplication_token": section.token,',
        '"insert_deduplication_token": f"{section.token}{id(body)}",',
    ),
    "rows of a repeated insert are not counted": Mutation(
        "sinks/clickhouse/repeating.py", "if found >= expected or (found and alone):", "if True:"
    ),
    "a full queue does not pause its partition": Mutation(
        "intake/backpressure.py", "self._consumer.pause([batch.topic_partition])", "pass"
    ),
    "the rows of a part stay counted until their whole batch is settled": Mutation(
        "delivery/ledger.py", "if last < part.last:", "if False:", of=_FAN_OUT
    ),
    "the budget is not looked at": Mutation(
        "intake/backpressure.py",
        "self.used + self.unmapped * self._growth >= self.limit",
        "False",
    ),
    "offsets that retention removed are not settled": Mutation(
        "delivery/ledger.py", "        if batch.first > gap:", "        if False:"
    ),
    "the first record after a gap counts as settled": Mutation(
        "delivery/ledger.py",
        "self.settle(gap, batch.first - 1)",
        "self.settle(gap, batch.first)",
    ),
    "batches are taken in during a rebalance": Mutation(
        "intake/intake.py", "ledger is None or not self.is_open:", "ledger is None:"
    ),
    "a range is acknowledged though a branch has not written its part": Mutation(
        "branches/branches.py",
        "        if errors:\n            raise min(",
        "        if len(errors) > 1:\n            raise min(",
        of=_BRANCHES,
    ),
    "branches write under the token of the range, without their names": Mutation(
        "branches/branch.py",
        'token = f"{announced.token}+{self.name}"',
        "token = announced.token",
        of=_BRANCHES,
    ),
    "a branch forgets that its range may be there": Mutation(
        "branches/branch.py",
        "return replace(write, announcement=msgspec",
        "return replace(write, repeated=False, announcement=msgspec",
        of=_BRANCHES,
    ),
    "a memory is not read again": Mutation(
        "memory/remembering.py",
        "self.is_restoring = self._back is not None and begin != self._end",
        "self.is_restoring = False",
        of=_DISTINCT,
    ),
    "an announcement does not say what is remembered": Mutation(
        "guarantees.py",
        "back=None if ledger is None else ledger.look_back(ranges[0].first)",
        "back=None",
        of=_DISTINCT,
    ),
    "a commit does not say what is remembered": Mutation(
        "commit.py",
        "back = None if ledger is None else ledger.look_back(watermark)",
        "back = None",
        of=_DISTINCT,
    ),
    "a memory begins where it is complete at the last record read, not at the committed one": Mutation(
        "memory/distinct_memory.py",
        "at = bisect_right(self._offsets, offset) - 1",
        "at = len(self._offsets) - 1",
        of=_DISTINCT,
    ),
    "a memory begins one mark too late": Mutation(
        "memory/distinct_memory.py",
        "begin = max(0, bisect_right(self._times, self._times[at] - self._within) - 1)",
        "begin = min(at, bisect_right(self._times, self._times[at] - self._within))",
        of=_DISTINCT,
    ),
    "a memory is read again up to the end of its last batch": Mutation(
        "memory/remembering.py",
        "aclosing(self._read(self._partition, position, end))",
        "aclosing(self._read(self._partition, position, end + 1))",
        of=_DISTINCT,
    ),
    "a memory is read again without its last record": Mutation(
        "memory/remembering.py",
        "aclosing(self._read(self._partition, position, end))",
        "aclosing(self._read(self._partition, position, end - 1))",
        of=_DISTINCT,
    ),
    "the event time of a partition goes back": Mutation(
        "memory/distinct_memory.py",
        "reached = np.maximum.accumulate(np.maximum(times, self.time))",
        "reached = np.maximum.accumulate(times)",
        of=_DISTINCT,
    ),
    "rows are looked up that a stopped map has not made": Mutation(
        "map.py",
        "                mapped, letters = await self._memory.distinguish(batch, mapped)",
        "                await self._memory.remember(batch, mapped)\n"
        "                mapped, letters = await self._memory.distinguish(batch, mapped)",
        of=_DISTINCT,
    ),
    "a row without a key is compared": Mutation(
        "memory/distinct_keys.py",
        "chosen = wanted.astype(np.int64)",
        "chosen = np.ones(len(times), np.int64)",
        of=_DISTINCT,
    ),
    "a row of a window that has closed is not late": Mutation(
        "memory/window_state.py",
        "self._window.every + self._lasting <= reached",
        "self._window.every + self._lasting < reached",
        of=_WINDOWS,
    ),
    "windows close without the lateness": Mutation(
        "memory/window_state.py",
        "int(times[found].max()) - window.lateness)",
        "int(times[found].max()))",
        of=_WINDOWS,
    ),
    "a window that ends with the event time stays open, and counts as closed": Mutation(
        "memory/window_state.py",
        "before = self._window.length, to - self._lasting + 1",
        "before = self._window.length, to - self._lasting",
        of=_WINDOWS,
    ),
    "an open window holds its last record, not its first": Mutation(
        "memory/window_state.py",
        "self._firsts.setdefault(start, int(offsets[numbers[row]]))",
        "self._firsts[start] = int(offsets[numbers[row]])",
        of=_WINDOWS,
    ),
    "a window closes with the rows of the next one": Mutation(
        "memory/window_aggregates.py",
        "closes = table.column(START).to_numpy() < before",
        "closes = table.column(START).to_numpy() <= before + 2_000_000",
        of=_WINDOWS,
    ),
    "all that was read settles when a window closes": Mutation(
        "window_stage.py",
        "end = self._read_to + 1 if first is None else first",
        "end = self._read_to + 1",
        of=_WINDOWS,
    ),
    "a restarted worker has no window closed": Mutation(
        "window_stage.py",
        "window.state(partition, begin)",
        "window.state(partition)",
        of=_WINDOWS,
    ),
    "a replay closes what the event time says, not what was announced": Mutation(
        "window_stage.py",
        "to, self._replayed = self._replayed.closed_to, None",
        "to, self._replayed = self._state.level, None",
        of=_WINDOWS,
    ),
    "windows settle before the letters of their rows": Mutation(
        "guarantees.py",
        "            return accepted or not self.ledgers.is_current(ranges)",
        "            return accepted or True",
        of=_WINDOWS,
    ),
    "a letter of a row is named after what was read, not after what was announced": Mutation(
        "reducers/flushing.py",
        "r._replace(first=announced.first, last=announced.last)",
        "r._replace(first=r.last, last=r.last)",
        of=_WINDOWS,
    ),
    "a repeated range has no letters of its refused rows": Mutation(
        "sinks/ranges.py",
        "            return rows.refusals(await _call(self.refused, rows))",
        "            return []",
        of=_LATE,
    ),
    "failed records settle with the windows": Mutation(
        "window_stage.py",
        "merge_ranges([*self._held, *subtract_ranges(rows.ranges, failed)])",
        "merge_ranges([*self._held, *rows.ranges])",
        of=_LATE,
    ),
    "rows are taken before those of an idle window are announced": Mutation(
        "window_stage.py",
        "                await rows.done.wait()",
        "                pass",
        of=_IDLE,
    ),
    "a commit says that no window is closed by the last emission": Mutation(
        "guarantees.py",
        "else last.closes[1]",
        "else last.closes[0]",
        of=_WINDOWS,
    ),
    "an announcement has the times of its first emission only": Mutation(
        "guarantees.py",
        "closed_to=closes[-1][1],",
        "closed_to=closes[0][1],",
        of=_WINDOWS,
    ),
    "an announcement ends with the records that it settles": Mutation(
        "guarantees.py",
        'fields["last"] = held[-1].read_to',
        'fields["last"] = held[-1].ranges[0].first',
        of=_WINDOWS,
    ),
    "a token without the times": Mutation(
        "guarantees.py",
        'fields["token"] += f"/{closes[0][0]}-{closes[-1][1]}"',
        "pass",
        of=_IDLE,
    ),
    "what is read is committed before failed records are settled": Mutation(
        "guarantees.py",
        "await self._wait(buffer, _is_read(self.ledgers, self.partition, buffer))\n            if buffer",
        "if buffer",
        of=_LATE,
    ),
    "a session ends only after more than the gap": Mutation(
        "memory/session_state.py",
        "np.diff(times) >= gap",
        "np.diff(times) > gap",
        of=_SESSIONS,
    ),
    "a row at the event time is late for sessions": Mutation(
        "memory/session_state.py", "= times < reached", "= times <= reached", of=_SESSIONS
    ),
    "sessions are read again with the level of the commit": Mutation(
        "memory/session_state.py",
        "self.level = closed.level",
        "self.level = closed.closed_to",
        of=_SESSIONS,
    ),
    "a commit does not say which windows are closed": Mutation(
        "commit.py",
        "entry.announcement, entry.closed = None, closed",
        "entry.announcement = None",
        of=_WINDOWS,
    ),
    "a range is written once more without asking the group": Mutation(
        "guarantees.py",
        "again = self._announced is not None and self._announced[0] == announcement",
        "again = False",
        of=_ANNOUNCED,
    ),
    "a commit drops the generation that a reset began": Mutation(
        "commit.py",
        "done = Generation(generation, back,",
        "done = Generation(0, back,",
        of=_ANNOUNCED,
    ),
    "an announcement drops the generation that a reset began": Mutation(
        "guarantees.py",
        "generation=generations.get(self.partition, 0),",
        "generation=0,",
        of=_ANNOUNCED,
    ),
    "a token does not contain the generation": Mutation(
        "delivery/announcement.py",
        'at = f"@{generation}" if generation else ""',
        'at = ""',
        of=_ANNOUNCED,
    ),
    "a successor does not read the generation": Mutation(
        "commit.py",
        "generation = found.generation",
        "generation = 0",
        of=_ANNOUNCED,
    ),
    "no generation begins where another tool has moved the offsets": Mutation(
        "commit.py",
        "            generation = next_generation()",
        "            generation = 0",
        of=("branches at least once",),
    ),
    "a cut is committed without a look at the commits that came meanwhile": Mutation(
        "history/cut.py",
        "        plan.refuse_commits({at: entry",
        "        dict({at: entry",
        of=_CUT,
    ),
    "a cut is committed though the group has another member": Mutation(
        "history/cut.py",
        "        if set(plan.histories) - partitions:",
        "        if False:",
        of=_CUT,
    ),
    "an offset that a reset has set to the same place counts as ours": Mutation(
        "commit.py",
        "return committed == entry.acknowledged or (",
        "return getattr(committed, 'offset', 0) == getattr(entry.acknowledged, 'offset', 0) or (",
        of=_ANNOUNCED,
    ),
}


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a patched source."""

    def __init__(self, name: str, path: str, mutation: Mutation) -> None:
        super().__init__(name, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        assert source.count(self._mutation.old) == 1, "it does not fit once: " + repr(
            self._mutation
        )
        return compile(source.replace(self._mutation.old, self._mutation.new), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, whose source is patched."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation
        self._module = "kmr." + mutation.file.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        if fullname != self._module:
            return None
        file = str(ROOT / self._mutation.file)
        return importlib.machinery.ModuleSpec(fullname, _Loader(fullname, file, self._mutation))


def _search(most: int, names: Sequence[str], first: int) -> tuple[int, str]:
    """Run schedules of the named strategies, or of all, in turn until one breaks a rule."""
    from kmr.errors import KmrError
    from kmr.simulation.simulate import Simulator, garbage_is_silent

    from .strategies import STRATEGIES, records_of

    with garbage_is_silent():  # one seed for all strategies, then the next one
        try:
            simulators = [
                Simulator(STRATEGIES[name](), records_of(name)) for name in names or STRATEGIES
            ]
        except KmrError as error:
            return 1, str(error)
        for number in range(most):
            simulator = simulators[number % len(simulators)]
            problems = simulator.run(simulator.generate(first + number // len(simulators))).problems
            if problems:
                return number + 1, problems[0].rule
    return 0, ""


def main(name: str, schedules: str, first: str = "1") -> None:
    """Print what a search with a mutation has found."""
    mutation = MUTATIONS[name]
    sys.meta_path.insert(0, _Finder(mutation))
    began = time.process_time()
    found, rule = _search(int(schedules), mutation.of, int(first))
    print(f"{found} {time.process_time() - began:.1f} s {rule}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
