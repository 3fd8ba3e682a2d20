"""`simulate`: runs a strategy through many schedules, and says what was broken."""

from __future__ import annotations

import gc
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import structlog

from ..chaos.records import columns_of_records, map_all, record_of
from ..errors import StrategyError
from ..mapping.branching import offsets_in
from ..memory.distinct_model import without_duplicates
from ..memory.window_model import WindowsOfLog, with_offsets
from ..record import (
    OFFSET_COLUMNS,
    Batch,
    Record,
    TopicPartition,
    filled,
    with_offset_columns,
)
from ..sinks.clickhouse.writer import ClickHouseWriter
from ..tagged_rows import branches, tagged_schema
from .checks import Expectation
from .log import LogRecords
from .run import UnreadMetrics, run_schedule
from .schedule import Event, Schedule, generate, shrink
from .sinks import ModelColumns, StrategyModels, table_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..mapping.results import MapResult
    from ..memory.window import Window
    from ..strategy import Strategy
    from .run import SimulationOutcome


@dataclass(frozen=True, slots=True)
class Failing:
    """A schedule that breaks a rule, and what happened in it."""

    schedule: Schedule
    outcome: SimulationOutcome


@dataclass(frozen=True, slots=True)
class Simulated:
    """What simulations have shown.

    Attributes:
        schedules: how many ran.
        seconds: their virtual time together.
        failing: the first schedule that broke a rule; None if none did.
    """

    schedules: int
    seconds: float
    failing: Failing | None


class Simulator:
    """Runs a strategy with given records through schedules.

    Args:
        records: as for `simulate`.
        partitions: over how many the values are spread that are no `Record`.

    Raises:
        StrategyError: the strategy cannot be simulated, its map is not deterministic, or its reducers keep
            state from one run to the next.
    """

    def __init__(
        self,
        strategy: Strategy,
        records: Iterable[bytes | str | Mapping[str, Any] | Record | None],
        *,
        topic: str = "simulated",
        partitions: int = 2,
    ) -> None:
        self.strategy = strategy = with_offsets(strategy)
        self.log = _log_of(records, topic, partitions)
        self._metrics = UnreadMetrics()
        with _quiet():
            mapped = {at: self._map(part) for at, part in self.log.items()}
            again = {at: self._map(part) for at, part in self.log.items()}
            for at in self.log:
                _require_same(strategy, at, self.log[at], mapped[at], again[at])
        passing = {
            at: next(without_duplicates(strategy.distincts, [(Batch.of(self.log[at]), result)]))[1]
            for at, result in mapped.items()
        }
        self.expected = _expect(strategy, self.log, passing)
        if any(each.on_duplicate == "dead-letter" for each in strategy.distincts.values()):
            self.expected.refusable.update(
                (at, offset)
                for at, result in mapped.items()
                for offset in np.setdiff1d(result.offsets, passing[at].offsets).tolist()
            )
        if (window := strategy.window) is not None:
            self._expect_windows(window, passing)
        self._records = {at: LogRecords.of(part) for at, part in self.log.items()}
        self.strategy_models = _models_of(strategy, mapped)
        calm = self.run(self._calm())
        if calm.problems:
            raise StrategyError(
                f"without a single fault, {calm.problems[0].rule}: {calm.problems[0].text}"
            )
        for at, diverted in calm.diverted.items():
            self.expected.refusable.update(
                (at, offset) for offset in np.flatnonzero(diverted).tolist()
            )

    def _expect_windows(self, window: Window, mapped: Mapping[TopicPartition, MapResult]) -> None:
        """Expect the windows of the logs; records that are late, or have no valid time, fail."""
        expected, windows = self.expected, {}
        for at, result in mapped.items():
            batch = Batch.of(self.log[at])
            found = windows[at] = WindowsOfLog(window, [(batch, result)])
            invalid = list(found.invalid)
            expected.failed[at][invalid], expected.rows[""][at][invalid] = True, 0
            if window.late == "dead-letter":
                made = np.flatnonzero(expected.rows[""][at]).tolist()
                late = (o for o in made if window.idle is not None or not found.of_record[o])
                expected.refusable.update((at, offset) for offset in late)
        refuses = self.strategy.reduce_err is not None
        self.expected = replace(expected, windows=windows, remembers=True, refuses_rows=refuses)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of records of each partition."""
        return tuple(len(self.log[at]) for at in sorted(self.log))

    def _map(self, records: pa.RecordBatch) -> MapResult:
        ((_, mapped),) = map_all(self.strategy, [Batch.of(records)])
        return mapped

    def _calm(self) -> Schedule:
        appends = tuple(Event(0.0, "append", at, size) for at, size in enumerate(self.sizes))
        return Schedule(0, 1, max_rows=20, budget=0, events=appends)

    def generate(self, seed: int) -> Schedule:
        """Make the schedule of a seed for these records."""
        resets = not self.expected.remembers  # duplicates and windows begin anew elsewhere
        return generate(seed, self.sizes, resets=resets)

    def run(self, schedule: Schedule) -> SimulationOutcome:
        """Run one schedule. Call it where no event loop runs."""
        with _quiet():
            outcome = run_schedule(
                self.strategy,
                self._records,
                schedule,
                self.strategy_models,
                self.expected,
                self._metrics,
            )
        gc.collect(0)  # all that the schedule made, while it is in the processor's caches
        return outcome

    def search(
        self,
        schedules: int,
        seed: int = 1,
        on_run: Callable[[SimulationOutcome], None] = lambda _: None,
    ) -> Simulated:
        """Run the schedules of `schedules` seeds from `seed` on, up to the first that breaks a rule."""
        seconds = 0.0
        with garbage_is_silent():
            for number in range(schedules):
                schedule = self.generate(seed + number)
                outcome = self.run(schedule)
                seconds += outcome.seconds
                on_run(outcome)
                if outcome.problems:
                    return Simulated(number + 1, seconds, Failing(schedule, outcome))
        return Simulated(schedules, seconds, None)

    def shrink(self, failing: Failing) -> Failing:
        """Find a short list of events that breaks the same rule.

        Raises:
            StrategyError: the same schedule does not always break it.
        """
        problem = failing.outcome.problems[0]
        rule = problem.rule

        def breaks(schedule: Schedule) -> bool:
            problems = self.run(schedule).problems
            return bool(problems) and problems[0].rule == rule

        schedule = shrink(failing.schedule, breaks)
        outcome = self.run(schedule)
        if not outcome.problems:
            raise StrategyError(
                f"{problem.rule}: {problem.text} (seed {failing.schedule.seed}); but not when the same "
                "schedule is run again: the strategy keeps state from one run to the next, such as an "
                "attribute of a class or of a module"
            )
        return Failing(schedule, outcome)


def simulate(
    strategy: Strategy,
    records: Iterable[bytes | str | Mapping[str, Any] | Record | None],
    *,
    schedules: int = 200,
    seed: int = 1,
    topic: str = "simulated",
    partitions: int = 2,
) -> Simulated:
    """Run a strategy through schedules of failures, and check what reaches its sinks.

    The map and the reducers are the strategy's own, and so are the worker, its ledgers and commits. The
    consumer group, the brokers and the sinks are models; limits are lowered, so that few records make many
    flushes. Each schedule kills, stops and drains members, moves partitions, and lets requests fail before
    and after their effect.

    Args:
        records: values; text is encoded as UTF-8, a mapping as JSON. They are spread over `partitions`. A
            `Record` has a partition and an offset of its own.
        schedules: how many seeds are tried, from `seed` on.
        topic: of values that are no `Record`.

    Raises:
        AssertionError: a schedule breaks a rule; the message has the seed and the shortest list of events.
        StrategyError: the strategy cannot be simulated, or its map is not deterministic.
    """

    def search() -> Simulated | str:
        simulator = Simulator(strategy, records, topic=topic, partitions=partitions)
        done = simulator.search(schedules, seed)
        if done.failing is None:
            return done
        return describe(simulator.shrink(done.failing), done.failing.schedule.seed)

    def run() -> Simulated | str:
        with garbage_is_silent():
            return search()  # a function: its variables are garbage before the last collection

    # In a thread of its own, so that tests with a running event loop can call it too.
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(run).result()
    if isinstance(found, str):
        raise AssertionError(found)  # noqa: TRY004  a rule is broken
    return found


def describe(failing: Failing, seed: int) -> str:
    """Return the events and the broken rule in plain words, one per line."""
    problem = failing.outcome.problems[0]
    events = (f"    {event}" for event in failing.schedule.events)
    return "\n".join(
        (f"{problem.rule}: {problem.text}", f"seed {seed}, shrunk to these events:", *events)
    )


@contextmanager
def garbage_is_silent() -> Iterator[None]:
    """Collect garbage only after each schedule and at the end, without warnings.

    Processes that are killed close nothing: their streams warn when they are collected.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()  # each collection looks at what the simulations made, and not at every module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                yield
            finally:
                gc.collect()
                gc.unfreeze()
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing: faults are expected here."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(_logger: object, _method: str, _event: object) -> Any:
    raise structlog.DropEvent


def _log_of(
    records: Iterable[bytes | str | Mapping[str, Any] | Record | None], topic: str, partitions: int
) -> dict[TopicPartition, pa.RecordBatch]:
    found: dict[TopicPartition, list[Record]] = defaultdict(list)
    for number, record in enumerate(records):
        if not isinstance(record, Record):
            at = TopicPartition(topic, number % partitions)
            offset = len(found[at]) + len(found[at]) // 10  # every tenth offset has no record
            record = record_of(record, at, offset)
        found[TopicPartition(record.topic, record.partition)].append(record)
    if not found:
        raise StrategyError("there is no record to simulate with")
    return {at: columns_of_records(found[at]) for at in sorted(found)}


def _require_same(
    strategy: Strategy, at: TopicPartition, records: pa.RecordBatch, one: MapResult, two: MapResult
) -> None:
    """Raise StrategyError if two calls of the map with the same records made different rows."""
    first, second = _by_offset(one), _by_offset(two)
    for offset in records.column("offset").to_numpy().tolist():
        if repr(first.get(offset)) != repr(second.get(offset)):
            function = strategy.of_topic(at.topic).map
            name = getattr(function, "__qualname__", repr(function))
            raise StrategyError(
                f"the map {name} is not deterministic: of record {at}[{offset}] it made "
                f"{_short(first.get(offset))}, then {_short(second.get(offset))}. After a crash records are "
                "mapped again: with exactly-once the sink would have a mixture; use no clock, no random "
                "numbers and no state in it"
            )


def _short(rows: object) -> str:
    text = "no rows" if rows is None else repr(rows)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _by_offset(result: MapResult) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    if result.table is not None:
        for offset, row in zip(result.offsets.tolist(), result.table.to_pylist(), strict=True):
            found[offset].append(row)
    for failure in result.failures:
        found[failure.offset].append(("failed", failure.exception))
    return found


def _expect(
    strategy: Strategy,
    log: Mapping[TopicPartition, pa.RecordBatch],
    mapped: Mapping[TopicPartition, MapResult],
) -> Expectation:
    per_row = {name for name, chain in strategy.chains.items() if len(chain) == 1}
    rows: dict[str, dict[TopicPartition, np.ndarray]] = {name: {} for name in strategy.chains}
    failed, exists = {}, {}
    most = 0
    for at, records in log.items():
        offsets = records.column("offset").to_numpy()
        size = int(offsets[-1]) + 1
        result = mapped[at]
        exists[at] = np.zeros(size, dtype=np.bool_)
        exists[at][offsets] = True
        for name in rows:
            rows[name][at] = np.bincount(offsets_in(result, name), minlength=size)
            if name not in per_row:
                rows[name][at] = np.minimum(rows[name][at], 1)
        failed[at] = np.zeros(size, dtype=np.bool_)
        failed[at][[failure.offset for failure in result.failures]] = True
        if result.failures and strategy.reduce_err is None:
            raise StrategyError(
                f"the map fails on record {at}[{result.failures[0].offset}] ({result.failures[0].reason}), "
                "and the strategy has no reduce_err: a worker would stop there. Set reduce_err=, or "
                "leave the record out"
            )
        made = 0 if result.table is None else result.table.nbytes
        most = max(most, records.nbytes + made + len(result.failures) * 4096)
    return Expectation(
        delivery=strategy.requested_delivery,
        rows=rows,
        failed=failed,
        exists=exists,
        per_row=per_row,
        diverts=any(r.on_error == "divert" for chain in strategy.chains.values() for r in chain),
        batch_bytes=most,
        remembers=bool(strategy.distincts),
    )


def _models_of(strategy: Strategy, mapped: Mapping[TopicPartition, MapResult]) -> StrategyModels:
    """Return sinks with a ClickHouse table for the rows that reach each writer."""
    tables = [result.table for result in mapped.values() if result.table is not None]
    writers = zip(strategy.chains, strategy.writers.items(), strict=True)
    return StrategyModels(
        {
            branch: _table(strategy, stage, [_rows_in(table, branch) for table in tables])
            if isinstance(writer, ClickHouseWriter)
            else ModelColumns({})
            for branch, (stage, writer) in writers
        }
    )


def _rows_in(table: pa.Table, branch: str) -> pa.Table:
    if not branch:
        return table
    return next((rows for name, rows, _ in branches(table) if name == branch), pa.table({}))


def _table(strategy: Strategy, stage: str, tables: Sequence[pa.Table]) -> ModelColumns:
    made = None
    if tables:
        made = pa.unify_schemas([each.schema for each in tables], promote_options="permissive")
        branch = stage.partition(" ")[2]
        made = tagged_schema({branch: made}) if branch else made
    schema = strategy.schema_of(stage, made)
    if schema is None:
        return ModelColumns({})
    countable = len(filled(schema, OFFSET_COLUMNS)) == len(OFFSET_COLUMNS)
    return ModelColumns(table_columns(with_offset_columns(schema)), countable=countable)
