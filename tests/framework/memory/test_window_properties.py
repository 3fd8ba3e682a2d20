"""Any cut of a log into runs, with kills around writes, gives each window's row once, and complete.

Each run is a real worker on the same log and the same committed offsets; the sink remembers tokens, as
ClickHouse does. The model computes the windows of the whole log, and knows neither batches nor workers.
The time of the event loop moves when no task is ready.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr import Distinct, Strategy, Window, map_record
from kmr.record import Record, TopicPartition
from kmr.service.logs import only_warnings
from kmr.service.threads import without_threads
from kmr.settings import Settings
from kmr.simulation.loop import SimulationLoop
from kmr.simulation.run import UnreadMetrics
from kmr.sinks import RangeWriter
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, batch_of
from kmr.worker import Worker
from tests.examples import examples

if TYPE_CHECKING:
    from kmr.sinks import RangeRows

P0 = TopicPartition("t", 0)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LENGTH, LATENESS, WITHIN = 10, 4, 30
GAP, LONGEST, CORRECT = 5, 12, 8
KINDS: dict[str, dict[str, Any]] = {
    "tumbling": {"length": LENGTH},
    "hopping": {"length": LENGTH, "every": LENGTH // 2},
    "sessions": {"session": GAP, "max": LONGEST},
    "corrected": {"length": LENGTH, "late": "reemit", "correct": CORRECT},
}

Key = tuple[int, str]
Rows = Counter[tuple[int, int, str, int, tuple[int, ...]]]

# Seconds after the event before it, a group and a key. None fails in the map, -1 makes no row.
steps = st.one_of(st.integers(0, 6), st.integers(0, 6), st.integers(-12, 12))
events = st.tuples(steps, st.sampled_from("ab"), st.integers(0, 9))
values = st.one_of(events, events, st.sampled_from([None, -1]))
runs = st.lists(
    st.tuples(
        st.lists(st.lists(values, min_size=2, max_size=8), min_size=1, max_size=4),
        st.sampled_from(
            ["drain", "kill", "kill before a write", "kill after a write", "rebalance"]
        ),
        st.sampled_from([0.0, 0.2, 0.6, 1.2, 3.0]),  # seconds until then
    ),
    min_size=2,
    max_size=6,
)


@map_record
def parse(record: Record) -> dict[str, Any] | None:
    if record.value == b"fails":
        raise ValueError("fails")
    if record.value is None or record.value == b"skip":
        return None
    second, group, *key = record.value.decode().split()
    time = BEGIN + timedelta(seconds=int(second))
    return {"ts": time, "g": group, "k": "".join(key), "o": record.offset}


def encode(value: Any) -> bytes:
    if value is None:
        return b"fails"
    return b"skip" if value == -1 else " ".join(map(str, value)).encode()


def after(log: list[Any], steps: list[Any]) -> list[Any]:
    """Return the events that follow a log, with their seconds in place of those since the one before."""
    second = next((value[0] for value in reversed(log) if isinstance(value, tuple)), 0)
    made: list[Any] = []
    for value in steps:
        if isinstance(value, tuple):
            second = max(0, second + value[0])
        made.append((second, *value[1:]) if isinstance(value, tuple) else value)
    return made


def passing(log: list[Any]) -> list[Any]:
    """Return the log with -1 in place of duplicates."""
    last: dict[int, int] = {}
    now, passed = -(10**9), []
    for value in log:
        is_new = not isinstance(value, tuple)
        if isinstance(value, tuple):
            now = max(now, value[0])
            is_new = now - last.get(value[2], -(10**9)) >= WITHIN
            last[value[2]] = now
        passed.append(value if is_new else -1)
    return passed


def model(log: list[Any], every: int, correct: int = 0) -> Rows:
    """Return the rows of all windows that the log closes."""
    windows: dict[Key, list[int]] = defaultdict(list)
    level = -(10**9)
    for offset, value in enumerate(log):
        if isinstance(value, tuple):
            second, group = value[:2]
            for start in range(second // every * every, second - LENGTH, -every):
                if start + LENGTH + correct > level:
                    windows[start, group].append(offset)
            level = max(level, second - LATENESS)
    closed = {key: found for key, found in windows.items() if key[0] + LENGTH <= level}
    return Counter((s, s + LENGTH, group, len(o), tuple(o)) for (s, group), o in closed.items())


def sessions(log: list[Any]) -> Rows:
    """Return the rows of all sessions that the log closes, and of the parts of long ones."""
    taken: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    level, rows = 0, Rows()
    for offset, value in enumerate(log):
        if isinstance(value, tuple) and value[0] >= level:
            taken[value[1]].append((value[0], offset))
            level = max(level, value[0] - LATENESS)
    for group, of_group in taken.items():
        of_group.sort()
        begins = [i for i, (t, _) in enumerate(of_group) if not i or t - of_group[i - 1][0] >= GAP]
        for session in (of_group[i:j] for i, j in pairwise([*begins, None])):
            first, over = session[0][0], session[-1][0] + GAP
            is_long = over - first > LONGEST
            length = LONGEST if is_long else 10**9
            for cell in sorted({time // length for time, _ in session}):
                part = [row for row in session if row[0] // length == cell]
                end = min(part[-1][0] + GAP, (cell + 1) * length)
                if (max(end, first + LONGEST) if is_long else end) <= level:
                    offsets = sorted(offset for _, offset in part)
                    rows[part[0][0], end, group, len(offsets), tuple(offsets)] += 1
    return rows


def model_of(kind: str, log: list[Any]) -> Rows:
    if kind == "sessions":
        return sessions(log)
    return model(log, KINDS[kind].get("every", LENGTH), KINDS[kind].get("correct", 0))


class Table:
    """Rows by the tokens of their inserts, and what kills the worker around the next write."""

    def __init__(self) -> None:
        self.rows: Rows = Counter()
        self.tokens: set[str] = set()
        self.positions: dict[Key, tuple[bytes, Any]] = {}
        self.dies = ""
        self.dead = anyio.Event()

    def write(self, rows: RangeRows) -> None:
        if rows.token in self.tokens:
            return
        self.tokens.add(rows.token)
        for row in rows.table.to_pylist():
            times = (row["window_start"], row["window_end"])
            start, end = (round((time - BEGIN).total_seconds()) for time in times)
            found = (start, end, row["g"], row["n"], tuple(row["offsets"]))
            if "position" in row:
                self._replace(found, row["position"])
            self.rows[found] += 1

    def _replace(self, row: tuple[int, int, str, int, tuple[int, ...]], position: bytes) -> None:
        """Remove the row that another one corrects."""
        before, old = self.positions.get((row[0], row[2]), (b"", row))
        assert position > before or row == old
        self.positions[row[0], row[2]] = position, row
        del self.rows[old]


class TableWriter(RangeWriter):
    replaces_by = ("window_start", "g")

    def __init__(self, table: Table) -> None:
        super().__init__(max_age=0.5)
        self.table = table

    def __deepcopy__(self, memo: object) -> Self:
        other = copy.copy(self)
        other.reset()
        return other

    async def has(self, rows: RangeRows) -> bool:
        return rows.token in self.table.tokens

    async def write(self, rows: RangeRows) -> None:
        await self._die("kill before a write")
        self.table.write(rows)
        await self._die("kill after a write")

    async def _die(self, moment: str) -> None:
        if self.table.dies == moment:
            self.table.dead.set()
            await anyio.sleep_forever()

    async def refused(self, rows: RangeRows) -> dict[int, str]:
        return {}


def strategy_of(table: Table, letters: Journal, kind: str, *, distinct: bool) -> Strategy:
    window = Window(
        **({"late": "drop"} | KINDS[kind]),
        time="ts",
        by=["g"],
        columns={"n": ("*", "count"), "offsets": ("o", "list")},
        lateness=LATENESS,
        keyed=True,
    )
    return Strategy(
        map=parse,
        reduce=[
            *([Distinct("k", WITHIN, time="ts")] if distinct else []),
            window,
            TableWriter(table),
        ],
        reduce_err=MemoryWriter(letters, max_age=0.1),
        err_limit=None,
    )


async def run_all(
    schedule: list[tuple[list[list[Any]], str, float]], kind: str, *, distinct: bool
) -> tuple[Rows, Counter[int], list[Any]]:
    table, letters, metrics = Table(), Journal(), UnreadMetrics()
    consumer, log = MemoryConsumer(), list[Any]()
    for batches, end, rest in [*schedule, ([], "drain", 6.0)]:
        before, consumer = consumer, MemoryConsumer()
        consumer.log, consumer._committed = before.log, before._committed
        table.dies, table.dead = end, anyio.Event()
        worker = Worker(
            strategy_of(table, letters, kind, distinct=distinct),
            Settings(topics=("t",), group="g", executor="inline", commit_interval=1.0),
            consumer=consumer,
            metrics=metrics,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await consumer.started.wait()
            await consumer.rebalance([P0])
            for steps in batches:
                batch = after(log, steps)
                consumer.put(batch_of("t", 0, len(log), [encode(value) for value in batch]))
                log += batch
                await anyio.sleep(0.3)
                if end == "rebalance":
                    await consumer.rebalance([P0])
            await anyio.sleep(rest)
            if end in ("drain", "rebalance"):
                worker.shutdown("done")
            else:
                tasks.cancel_scope.cancel()
    failed = Counter(row["offset"] for row in letters.rows())
    return table.rows, failed, log


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(90), deadline=None)
@given(runs, st.booleans())
def test_any_cut_into_runs_gives_each_row_of_a_window_once_and_complete(
    kind: str, schedule: list[tuple[list[list[Any]], str, float]], distinct: bool
) -> None:
    async def run() -> tuple[Rows, Counter[int], list[Any]]:
        with without_threads(), only_warnings():
            return await run_all(schedule, kind, distinct=distinct)

    rows, failed, log = anyio.run(run, backend_options={"loop_factory": SimulationLoop})
    assert rows == model_of(kind, passing(log) if distinct else log)
    assert set(failed) == {offset for offset, value in enumerate(log) if value is None}
