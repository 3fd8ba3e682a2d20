"""Replaces the sinks of a strategy by models, as far below the reducers as possible.

ClickHouseWriter             its connection: the real writer casts, plans, inserts and counts
any other `RangeWriter`      `has`, `write` and `refused`: the real writer plans and repeats ranges
one that commits offsets     the whole reducer: `ModelTransactionalWriter`, with its limits and policies;
                             the worker's `Transactions` are real, their producer is a model
any other last reducer       the whole reducer: `ModelWriter` with its limits and policies
reduce_err                   the whole reducer
reducers before the last     nothing: they are real
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import anyio

from ..memory.window import Window
from ..record import OFFSET_COLUMNS
from ..reducers.collect import Collecting
from ..reducers.reducer import Reducer, limits_of
from ..reducers.sink import NEW, RowsRefused, Sink, Write, refusals_among
from ..reducers.wrapping import Wrapping
from ..sinks.clickhouse.ddl import column_type
from ..sinks.clickhouse.writer import ClickHouseWriter
from ..sinks.planning import together
from ..sinks.ranges import RangeWriter
from .clickhouse import ModelConnection, ModelTable
from .transactions import ModelTransactionalWriter
from .world import current_member

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from ..record import Rows, TopicPartition
    from ..reducers.reducer import Context
    from ..sinks.planning import RangeRows
    from ..strategy import Strategy
    from .checks import Checks
    from .schedule import Target
    from .sink_checks import SinkChecks
    from .transactions import Coordinator
    from .world import SimulatedMember, World

_TIMEOUT = 6.0
"""Seconds after which a client of a sink gives up a request."""

_writing: ContextVar[RangeRows | None] = ContextVar("the range that is written", default=None)


class StrategyModels:
    """The sinks of one strategy, by the names of its branches, and what their models share.

    Attributes:
        strategies: with models, by the most rows of a flush: members work with copies of their reducers.
    """

    world: World
    checks: Checks
    coordinator: Coordinator

    def __init__(self, tables: Mapping[str, ModelColumns]) -> None:
        self.strategies: dict[int, Strategy] = {}
        self._of_branches = {
            name: BranchModels(self, name, table) for name, table in tables.items()
        }

    def of(self, branch: str) -> BranchModels:
        """Return the sink of a branch; "" without branches."""
        return self._of_branches.setdefault(branch, BranchModels(self, branch, ModelColumns({})))

    def begin(self) -> None:
        """Empty all sinks."""
        for models in self._of_branches.values():
            models.begin()

    def delete(self, partition: TopicPartition, first: int) -> None:
        """Delete the rows of a partition from an offset on, where a sink is a table."""
        for models in self._of_branches.values():
            models.table.delete(partition, first)

    def end(self) -> None:
        """Forget a simulation, so that nothing of it outlives it."""
        del self.world, self.checks, self.coordinator


class ModelColumns(NamedTuple):
    """The columns of a ClickHouse table, and whether the rows of a range can be counted in it."""

    columns: dict[str, str]
    countable: bool = False


class BranchModels:
    """What the models of one branch share; the table and the ranges are new for each schedule.

    Attributes:
        columns: of the ClickHouse table.
        classes: of the models, by the class that they change and how: a class is costly to make, and each
            new one empties the interpreter's caches.
        countable: the rows of a range can be counted in the table.
    """

    def __init__(self, strategy_models: StrategyModels, branch: str, table: ModelColumns) -> None:
        self._of_strategy = strategy_models
        self._branch = branch
        self.columns, self.countable = table
        self.classes: dict[tuple[type, type], type[Any]] = {}
        self.begin()

    def learn(self, schema: pa.Schema) -> None:
        """Make the columns for the rows of a reducer, if they were not known before it ran."""
        if not self.columns:
            self.columns.update(table_columns(schema))

    def begin(self) -> None:
        """Empty the sink."""
        self.table = ModelTable(self.columns)
        self.ranges: set[str] = set()

    @property
    def world(self) -> World:
        """The world of the present simulation."""
        return self._of_strategy.world

    @property
    def checks(self) -> Checks:
        """The rules of the present simulation."""
        return self._of_strategy.checks

    @property
    def sink(self) -> SinkChecks:
        """The rules for the sink of this branch."""
        return self._of_strategy.checks.sinks[self._branch]

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of transactions of the present simulation."""
        return self._of_strategy.coordinator

    def member(self) -> SimulatedMember:
        """Return the member whose code runs."""
        return current_member()


def table_columns(schema: pa.Schema) -> dict[str, str]:
    """Return the columns of a ClickHouse table for rows."""
    return {
        each.name: column_type(
            each.type, nullable=each.nullable and each.name not in OFFSET_COLUMNS
        )
        for each in schema
    }


def with_models(strategy: Strategy, strategy_models: StrategyModels, max_rows: int) -> Strategy:
    """Return a strategy with models instead of its sinks, and with lower limits."""
    if (made := strategy_models.strategies.get(max_rows)) is not None:
        return made

    def modelled(branch: str, chain: Sequence[Reducer]) -> list[Reducer]:
        *before, last = chain
        models = strategy_models.of(branch)
        reduce: list[Reducer] = [
            copy.copy(each) if isinstance(each, Window) else _DroppedRecords(each, models)
            for each in before
        ]
        return [_lower(each, max_rows) for each in (*reduce, _modelled(last, models))]

    errors = strategy.reduce_err
    if errors is not None:
        errors = _lower(ModelWriter(errors, strategy_models.of(""), "errors"), max_rows)
    made = strategy.with_chains(modelled, reduce_err=errors, err_limit=None)
    strategy_models.strategies[max_rows] = made
    return made


def _lower(reducer: Reducer, max_rows: int) -> Reducer:
    reducer.max_rows = min(reducer.max_rows or max_rows, max_rows)
    if reducer.when_full == "flush":
        reducer.max_age = min(reducer.max_age or 1.0, 1.0)
    return reducer


def _of_class(reducer: Reducer, mixin: type, models: BranchModels) -> Any:
    kind = type(reducer)
    if (mixin, kind) not in models.classes:
        models.classes[mixin, kind] = type(kind.__name__, (mixin, kind), {"models": models})
    model = object.__new__(models.classes[mixin, kind])
    vars(model).update(vars(reducer))
    return model


def _modelled(last: Reducer, models: BranchModels) -> Reducer:
    if isinstance(last, ClickHouseWriter):
        writer: Reducer = _of_class(last, _ModelClickHouse, models)
        return writer
    if isinstance(last, RangeWriter):
        ranges: Reducer = _of_class(last, _ModelRanges, models)
        return ranges
    if isinstance(last, Sink) and last.capabilities.commits_offsets:
        return ModelTransactionalWriter(last, models)
    return ModelWriter(last, models, "sink")


class _DroppedRecords(Wrapping):
    """Notes the records that a reducer made no rows of."""

    def __init__(self, inner: Reducer, models: BranchModels) -> None:
        super().__init__(inner)
        self._models = models
        self._seen: tuple[Rows, ...] = ()

    def add(self, rows: Rows) -> None:
        self._seen = (*self._seen, rows)
        super().add(rows)

    def reset(self) -> None:
        self._seen = ()
        super().reset()

    async def flush(self, write: Write = NEW) -> pa.Table | None:
        out = await super().flush(write)
        if out is not None:
            self._models.learn(out.schema)
        if out is None or not out.num_rows:
            for rows in self._seen:
                self._models.sink.drops(rows)
        return out


@contextmanager
def _marked(rows: RangeRows) -> Iterator[None]:
    token = _writing.set(rows)
    try:
        yield
    finally:
        _writing.reset(token)


class _ModelClickHouse(ClickHouseWriter):
    """A `ClickHouseWriter` whose connection is a model."""

    models: BranchModels

    async def _connect(self, target: object) -> ModelConnection:
        return ModelConnection(
            client=cast("Any", None),  # nothing of the base class uses it
            timeout=min(self.timeout, _TIMEOUT),
            models=self.models,
            writing=_writing.get,
        )

    async def write(self, rows: RangeRows) -> Any:
        with _marked(rows):
            return await super().write(rows)

    async def write_together(self, ranges: Sequence[RangeRows]) -> Any:
        with _marked(together(ranges)):
            return await super().write_together(ranges)


class _ModelRanges(RangeWriter):
    """A `RangeWriter` whose sink is a model that keeps each range with its token, or nothing of it."""

    models: BranchModels

    async def open(self, context: Context) -> None:
        await RangeWriter.open(self, context)

    async def close(self) -> None:
        pass

    async def has(self, rows: RangeRows) -> bool:
        models = self.models
        return await models.world.request(
            "", "sink", "has it the range?", lambda: rows.token in models.ranges, OSError
        )

    async def write(self, rows: RangeRows) -> Mapping[int, str]:
        (refused,) = await self.write_together([rows])
        return refused

    async def write_together(self, ranges: Sequence[RangeRows]) -> Sequence[Mapping[int, str]]:
        models, member = self.models, current_member()
        contents = [repr(rows.table.to_pydict()).encode() for rows in ranges]

        def effect() -> None:
            for rows, content in zip(ranges, contents, strict=True):
                models.checks.same(rows.token, content)
                if rows.token not in models.ranges:
                    models.ranges.add(rows.token)
                    models.sink.wrote(member, rows.parts)
            models.checks.memory(member)

        for rows in ranges:
            models.sink.sends(member, rows.parts)
            models.sink.has_asked(member, rows.parts)
        shown = ", ".join(str(r) for rows in ranges for r in rows.ranges)
        with anyio.fail_after(_TIMEOUT):
            await models.world.request("sink", "sink", f"writes {shown}", effect, OSError)
        return [_refused(models, rows.parts) for rows in ranges]

    async def refused(self, rows: RangeRows) -> Mapping[int, str]:
        return _refused(self.models, rows.parts)


def _refused(models: BranchModels, parts: Sequence[Rows]) -> dict[int, str]:
    """Return the rows that the sink refuses, by their number among all parts, with the reasons."""
    found: dict[int, str] = {}
    begin = 0
    for rows in parts:
        found |= {begin + row: reason for row, reason in models.sink.refused(rows).items()}
        begin += len(rows)
    return found


class ModelWriter(Collecting, Sink):
    """A last reducer whose sink takes all rows as often as they are written."""

    def __init__(self, like: Reducer, models: BranchModels, target: Target) -> None:
        super().__init__(**limits_of(like))
        self._models = models
        self._target: Target = target

    def __deepcopy__(self, memo: object) -> Self:
        return copy.copy(self)  # the stage resets the copy

    async def flush(self, write: Write = NEW) -> None:
        models, member, rows = self._models, current_member(), self.rows
        name = "error sink" if self._target == "errors" else "sink"

        def effect() -> None:
            if self._target == "errors":
                models.checks.diverts(member, rows)
            else:
                models.sink.wrote(member, rows)
            models.checks.memory(member)

        if self._target == "sink":
            models.sink.sends(member, rows)
        shown = ", ".join(str(r) for each in rows for r in each.ranges)
        with anyio.fail_after(_TIMEOUT):
            await models.world.request(self._target, name, f"writes {shown}", effect, OSError)
        if self._target == "sink" and (refused := _refused(models, rows)):
            raise RowsRefused(refusals_among(rows, refused))
