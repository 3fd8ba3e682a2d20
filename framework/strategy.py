"""The strategy that users define: a map, reducers, and the treatment of failed records."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from .arguments import Checked
from .branches.branches import Branches, PerName, as_chain, with_distinct
from .branches.declared import declared, with_chains
from .delivery.error_limit import MOSTLY_FAILED, ErrorLimit
from .delivery.failures import FAILED_SCHEMA
from .errors import StrategyError, reason_of
from .lookups.given import GivenRows, empty_tables
from .lookups.source import TableSource
from .mapping.annotations import (
    check_call,
    check_resources,
    check_result,
    check_row_classes,
    parameters_of,
)
from .mapping.functions import VALUES, schema_of_batch_map, spec_of
from .mapping.inputs import Changes, Inputs, Tombstones
from .mapping.resources import accepted
from .memory.window import Window
from .memory.window_checks import check_windows
from .record import COORDINATES, filled, of_records
from .reducers.aggregate import Aggregate
from .reducers.reducer import ERROR_STAGE
from .reducers.sink import Delivery, Sink, capabilities_of
from .tagged_rows import is_tagged, schemas
from .values.value_format import ValueFormat, require_format

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from .branches.declared import Chain, ChangeChain, Mapped
    from .mapping.functions import MapSpec
    from .memory.distinct import Distinct
    from .reducers.reducer import Reducer

MAP_STAGE: Final = "map"
ERROR_DELIVERY: Final[Delivery] = "at-least-once"
"""The worker's guarantee for failed records. Those of several partitions are flushed together, as they come:
there is no range to announce, so a crash before the commit writes them to `reduce_err` again."""


@dataclass(frozen=True, slots=True)
class TopicMap(metaclass=Checked):
    """The map of one topic, see `Strategy.by_topic`. The attributes are those of `Strategy`.

    Example:
        ```python
        import pyarrow as pa
        from kmr import Json, Strategy, TopicMap
        from kmr.sinks import StreamWriter

        PERSON = pa.schema({"name": pa.string()})

        def by_hand(record):
            return {"name": record.value.decode()}

        strategy = Strategy(
            by_topic={"people": TopicMap(value=Json(PERSON)), "names": TopicMap(map=by_hand)},
            reduce=[StreamWriter("stdout")],
        )
        ```
    """

    map: Callable[..., Any] | None = None
    value: ValueFormat | None = None
    key: ValueFormat | None = None
    tombstones: Tombstones = "drop"
    changes: Changes | None = None


@dataclass(frozen=True)
class Strategy(metaclass=Checked):
    """How the records of topics are processed; the same for both engines.

    Example:
        ```python
        import msgspec
        from kmr import Json, Strategy
        from kmr.sinks import StreamWriter

        class Hit(msgspec.Struct):
            path: str
            status: int

        def errors(hit: Hit) -> Hit | None:
            return hit if hit.status >= 500 else None

        strategy = Strategy(value=Json(Hit), map=errors, reduce=StreamWriter("stdout"))
        ```

    Attributes:
        map: a function that is called with each record and returns a row, several, or None; `map_record`
            gives it options, `map_batch` makes it a function of a batch. Without it, which needs `value=`,
            the columns of the value, and with `key=` those of the key, are the rows.
        reduce: a reducer, or several in a chain: the output of each flush is the input of the next one. The
            first of a chain may be `Distinct`, which drops rows that came before.
        reduce_err: the reducer for failed records. Its rows have the columns of the original records
            plus `reason`, `stage`, `exception`, `traceback` (strings; the last two may be null) and `attempt`
            (int32). Without it, the first record that fails stops the worker. With every `delivery`,
            the worker writes failed records at least once: after a crash it may write them again.
        err_limit: the acceptable number of failed records. The default stops the worker when 95 % of the
            records of a minute failed, and at least 10,000: something else is wrong then than a few records.
            None is any number.
        delivery: the guarantee for each record. None: that of the last reducer, which is `exactly-once`
            for sinks that know ranges (ClickHouse, PostgreSQL, Parquet files, a `RangeWriter` of your own)
            and `at-least-once` for the others. `at-most-once` commits before it writes:
            records that a crash or a failing sink then loses stay lost. With `exactly-once` and
            `at-most-once` each partition has its own copies of the reducers, and their limits hold for
            each copy.
        value: the format of values, such as `Json(Hit)`. The map gets its columns or its objects instead of
            bytes; a value that cannot be decoded is a failed record. None: the map gets the bytes.
        key: the format of keys; its columns replace `key`. A null key is a row of nulls in them. Not with a
            per-record map, which has `record.key`.
        tombstones: what happens to a record whose value is null, with `value=`: `drop` it, as if the map had
            filtered it; map it with `null` in the columns of the value (a per-record map gets None); or
            `fail`: it goes to `reduce_err`.
        changes: `keyed`, for a compacted topic that follows a table: a value is an upsert of a row, a null
            value the delete of the row with the record's key. The rows get a column `op`; a deleted row has
            the columns of the key. It needs `value=` and `key=`. (`Debezium` values are changes themselves.)
        resources: what the map needs and each process opens once, such as a pool of connections: a function
            that returns an async context manager. The map has a parameter named `resources`, which gets
            the value of `async with`. A worker closes them at its end. A process of Spark keeps them until
            Spark kills it. With `executor = "process"` each of the map's processes opens its own, with a
            function that can be pickled; those of an `async def` map are the worker's.
        tables: tables that the map looks things up in, by the names of its parameters: see `Lookup`.
        by_topic: instead of `map`, `value`, `key` and `tombstones`: those of each topic, by its name. All
            topics have the same reducers, so maps that declare their rows must declare the same ones. A
            topic that is read and is not named ends the worker.
        version: the version of the strategy's code; dead letters carry it.

    Raises:
        StrategyError: a part is missing, of the wrong type, or does not fit another part.
    """

    map: Callable[..., Any] | None = None
    reduce: Chain | Mapped = ()
    reduce_err: Reducer | None = None
    err_limit: ErrorLimit | None = MOSTLY_FAILED
    delivery: Delivery | None = None
    value: ValueFormat | None = None
    key: ValueFormat | None = None
    tombstones: Tombstones = "drop"
    resources: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    by_topic: Mapping[str, TopicMap] | None = None
    version: str | None = None
    changes: Changes | None = None
    tables: Mapping[str, TableSource | GivenRows] | None = None
    map_spec: MapSpec = field(init=False, repr=False)
    reducers: tuple[Reducer, ...] = field(init=False, repr=False, compare=False)
    distincts: Mapping[str, Distinct] = field(init=False, repr=False, compare=False)
    _of_topics: Mapping[str, Self] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        of_topics = {} if self.by_topic is None else self._divide(self.by_topic)
        object.__setattr__(self, "_of_topics", of_topics)
        spec = self._spec() if self.by_topic is None else self.parts[0].map_spec
        object.__setattr__(self, "map_spec", spec)
        reducers, distincts = self._chain()
        object.__setattr__(self, "reducers", reducers)
        object.__setattr__(self, "distincts", distincts)
        last = reducers[-1]
        if self.delivery == "exactly-once" and capabilities_of(last).delivery != "exactly-once":
            raise StrategyError(
                f"delivery='exactly-once': {type(last).__name__} cannot recognise a repeated write; "
                "end the chain with a RangeWriter such as ClickHouseWriter, or with "
                "KafkaWriter(delivery='exactly-once'), or use 'at-least-once'"
            )
        self._check_errors()
        check_windows(self)
        self._check_tables()
        if self.by_topic is None and spec.per == "record" and spec.schema is None:
            check_row_classes(self.map, branched=spec.branching is not None)

    @property
    def window(self) -> Window | None:
        """The window before the sink; None without one."""
        return next((each for each in self.reducers if isinstance(each, Window)), None)

    def _table_sources(self) -> list[TableSource]:
        """Return what the tables are made of. Raises StrategyError if one is no table."""
        for name, table in (self.tables or {}).items():
            if not isinstance(table, TableSource | GivenRows):
                raise StrategyError(f"tables={{{name!r}: ...}} must be a Lookup, not {table!r}")
        tables = (self.tables or {}).values()
        return [each.lookup if isinstance(each, GivenRows) else each for each in tables]

    def _check_tables(self) -> None:
        """Check that each table has a map that looks things up in it."""
        for name in self.tables or {}:
            maps = [part.map for part in self.parts if part.map is not None]
            if not any(name in accepted(each, {name: None}) for each in maps):
                raise StrategyError(
                    f"tables= has {name}, but no map has a parameter of that name; add it to the map"
                )

    def with_tables(self, rows: Mapping[str, Iterable[Any]]) -> Self:
        """Return the strategy with given rows in the place of topics and queries, for tests and simulations.

        Args:
            rows: the rows of each table: dicts, or objects of the class of its values, which are there before
                all records; or `Record`s, as the topic has them.

        Raises:
            StrategyError: there is no such table.
        """
        tables = dict(self.tables or {})
        for name, given in rows.items():
            table = tables.get(name)
            if table is None:
                raise StrategyError(
                    f"the strategy has no table {name}, only {', '.join(tables) or 'none'}"
                )
            tables[name] = GivenRows(table.lookup if isinstance(table, GivenRows) else table, given)
        return replace(self, tables=tables)

    def _check_errors(self) -> None:
        """Check what happens to records that fail."""
        errors, limit = self.reduce_err, self.err_limit
        if limit is not None and not isinstance(limit, ErrorLimit):
            raise StrategyError(
                f"err_limit={limit!r} is not a limit: pass ErrorLimit(share=0.1), ErrorLimit(records=100), "
                "or None for no limit"
            )
        if errors is None:
            if limit not in (None, MOSTLY_FAILED):
                raise StrategyError(
                    "err_limit= needs reduce_err=: without it the first failure stops the worker"
                )
            for reducer in (each for chain in self.chains.values() for each in chain):
                if reducer.on_error == "divert":
                    raise StrategyError(
                        f"{type(reducer).__name__}: on_error='divert' needs reduce_err="
                    )
            if any(each.on_duplicate == "dead-letter" for each in self.distincts.values()):
                raise StrategyError("Distinct: on_duplicate='dead-letter' needs reduce_err=")
            return
        if isinstance(errors, list | tuple):
            raise StrategyError("reduce_err= is one reducer, not a list of them")
        as_chain(errors, "reduce_err")
        if errors.on_error == "divert":
            raise StrategyError(
                "reduce_err cannot divert its own errors: use on_error='retry' or on_error='stop'"
            )
        if capabilities_of(errors).commits_offsets:
            raise StrategyError(
                f"reduce_err: {type(errors).__name__} cannot be exactly-once: failed records are "
                "written at least once; remove delivery="
            )

    def _chain(self) -> tuple[tuple[Reducer, ...], Mapping[str, Distinct]]:
        """Return the reducers, and each `Distinct` by its branch ("" without branches)."""
        if isinstance(self.reduce, Mapping | PerName):
            branches, _, distincts = declared(self.reduce, self.parts[0].map)
            return (branches,), distincts
        distinct, chain = with_distinct(self.reduce, "reduce=")
        return chain, {} if distinct is None else {"": distinct}

    def with_chains(self, change: ChangeChain, **others: Any) -> Self:
        """Return the strategy with other chains of reducers, and other attributes.

        Args:
            change: called with the name of a branch ("" without branches) and its reducers.
        """
        return replace(self, reduce=with_chains(self.reduce, change), **others)

    @property
    def chains(self) -> Mapping[str, Sequence[Reducer]]:
        """The chains of reducers by the names of their branches; one named "" if there are no branches."""
        last = self.reducers[-1]
        return last.chains if isinstance(last, Branches) else {"": self.reducers}

    def _spec(self) -> MapSpec:
        """Check the map against `value` and `key`; return how it is called."""
        for name, each in (("value", self.value), ("key", self.key)):
            if each is not None:
                require_format(f"{name}=", each)
        if self.map is None and self.value is None:
            raise StrategyError(
                "a strategy needs map=, value= or both: without a map, the columns of the value are the rows"
            )
        self._check_changes()
        spec = VALUES if self.map is None else spec_of(self.map)
        if isinstance(self.reduce, Mapping | PerName):
            spec = replace(spec, branching=declared(self.reduce, self.map)[1])
        check_resources(self.map, given=self.resources is not None)
        is_timed = any(each.as_of is not None for each in self._table_sources())
        inputs = Inputs(self.value, self.key, self.tombstones, changes=self.changes)
        if spec.per == "record":
            if self.key is not None:
                raise StrategyError(
                    "key= needs a per-batch map or none: a per-record map gets the bytes in record.key"
                )
            parameters = parameters_of(
                self.map, decoded=self.value is not None, tables=self.tables or ()
            )
            check_result(self.map)
            inputs = replace(inputs, parameters=parameters, is_timed=is_timed)
            return replace(spec, inputs=inputs, sink_types={})
        if spec.per == "batch":
            check_call(self.map, "the batch", tables=self.tables or ())
            if "timestamp" in inputs.schema.names and is_timed:
                raise StrategyError(
                    'as_of="record": the value has a field timestamp, which hides that of the record; give '
                    'the field another name (msgspec.field(name="...") keeps that of the encoded value)'
                )
        return replace(spec, inputs=inputs, schema=inputs.schema if spec.per == "value" else None)

    def _check_changes(self) -> None:
        """Check `changes`, and `tombstones` of values that are changes."""
        if self.changes is not None and (self.value is None or self.key is None):
            raise StrategyError(
                "changes='keyed' needs value= and key=: a null value deletes the row that its key names"
            )
        are_changes = self.changes is not None or (self.value is not None and self.value.is_changes)
        if are_changes and (
            self.tombstones == "null" or (self.changes is not None and self.tombstones != "drop")
        ):
            raise StrategyError(
                f"tombstones={self.tombstones!r} has no meaning for changes: leave it out"
            )

    def _divide(self, by_topic: Mapping[str, TopicMap]) -> dict[str, Self]:
        """Return the strategies of the topics. Raises StrategyError if their rows differ."""
        if self.map is not None or self.value is not None or self.key is not None:
            raise StrategyError("by_topic= has the maps and formats: remove map=, value= and key=")
        if not by_topic:
            raise StrategyError("by_topic= is empty: name the topics and their maps")
        found: dict[str, Self] = {}
        declared: dict[str, pa.Schema] = {}
        for topic, part in by_topic.items():
            same = {
                name: getattr(part, name)
                for name in ("map", "value", "key", "tombstones", "changes")
            }
            try:
                found[topic] = replace(self, by_topic=None, **same)
            except StrategyError as error:
                raise StrategyError(f"by_topic[{topic!r}]: {error}") from error
            if (schema := found[topic].row_schema) is not None:
                declared[topic] = schema
        first, *others = declared or [""]
        for topic in others:
            if declared[topic] != declared[first]:
                shown = (f"{each} has {_columns(declared[each])}" for each in (first, topic))
                raise StrategyError(
                    f"by_topic= has maps with different rows ({'; '.join(shown)}): the reducers get the rows "
                    "of all topics; return the same row type, or run two strategies"
                )
        return found

    def of_topic(self, topic: str) -> Self:
        """Return the strategy for the records of a topic, which has no `by_topic`.

        Raises:
            StrategyError: `by_topic` does not name the topic.
        """
        if self.by_topic is None:
            return self
        if topic not in self._of_topics:
            raise StrategyError(
                f"by_topic= does not name topic {topic}, which is read, only "
                f"{', '.join(self._of_topics)}; add it"
            )
        return self._of_topics[topic]

    @property
    def parts(self) -> Sequence[Self]:
        """The strategies of the topics; without `by_topic` the strategy itself."""
        return (self,) if self.by_topic is None else tuple(self._of_topics.values())

    @property
    def row_schema(self) -> pa.Schema | None:
        """The columns of the rows that reach the first reducer; None if they are not known before it runs.

        They are those of the map: its `schema=`, or the class of rows in its return annotation; without a
        map, those of the value and the key. A per-batch map declares nothing: it is called with no rows
        and empty tables, and None is returned where that fails. With `by_topic`: those of the first map
        that declares them.
        """
        if self.by_topic is not None:
            schemas = (part.row_schema for part in self.parts)
            return next((schema for schema in schemas if schema is not None), None)
        spec = self.map_spec
        if spec.branching is not None:
            return spec.branching.schema
        if spec.per != "batch":
            return spec.schema if spec.row_type is None else spec.row_type.schema
        function = self.map
        if function is not None and self.tables:
            function = partial(function, **accepted(function, empty_tables(self.tables)))
        return schema_of_batch_map(function, spec)

    @property
    def has_schema_ids(self) -> bool:
        """Whether values begin with the id of their schema."""
        return any(p.value is not None and p.value.has_schema_ids for p in self.parts)

    @property
    def stages(self) -> dict[str, Reducer]:
        """The reducers by the names of their stages in metrics and logs: `reduce-1`, `reduce-2`, ..."""
        return {
            f"reduce-{number}": reducer for number, reducer in enumerate(self.reducers, start=1)
        }

    @property
    def writers(self) -> dict[str, Reducer]:
        """The last reducers of all chains by the names of their stages: `reduce-2`, `reduce-1 PageView`."""
        stage = list(self.stages)[-1]
        return {f"{stage} {name}".strip(): chain[-1] for name, chain in self.chains.items()}

    def schema_of(self, stage: str, mapped: pa.Schema | None = None) -> pa.Schema | None:
        """Return the columns of the rows that reach a stage; None if they are not known before it runs.

        Args:
            stage: as in `stages` or `writers`, or `reduce-err`.
            mapped: the columns of the rows that the map makes, where it does not declare them.
        """
        if stage == ERROR_STAGE:
            return FAILED_SCHEMA
        stage, _, branch = stage.partition(" ")
        schema = self.row_schema or mapped
        if branch:
            schema = schemas(schema).get(branch) if schema is not None else None
        if schema is not None:
            schema = of_records(schema)
        before = self.reducers[: list(self.stages).index(stage)]
        if branch:
            before = tuple(self.chains[branch][:-1])
        for reducer in before:
            schema = None if schema is None else reducer.schema_after(schema)
        return schema

    def tell_types(self, stage: str, types: Mapping[str, pa.DataType]) -> None:
        """Tell the maps what the sink of a stage stores, by the names of its columns.

        Args:
            stage: as in `writers`; others are left out, and chains in which a reducer makes rows anew.
        """
        branch = stage.partition(" ")[2]
        chain = self.chains.get(branch, ())
        if stage in self.writers and all(reducer.keeps_rows for reducer in chain[:-1]):
            for part in self.parts:
                part.map_spec.sink_types[branch] = types

    @property
    def all_stages(self) -> dict[str, Reducer]:
        """The reducers of `stages`, and `reduce_err` as the last if there is one."""
        return self.stages | ({} if self.reduce_err is None else {ERROR_STAGE: self.reduce_err})

    @property
    def requested_delivery(self) -> Delivery:
        """The strategy's `delivery`, or that of its last reducer."""
        return self.delivery or capabilities_of(self.reducers[-1]).delivery

    @property
    def is_transactional(self) -> bool:
        """Whether exactly once means transactions that commit the input's offsets with the rows."""
        last = capabilities_of(self.reducers[-1])
        return self.requested_delivery == "exactly-once" and last.commits_offsets

    def refuse_loop(self, topics: Container[str], bootstrap_servers: str) -> None:
        """Check that no stage writes to a topic that is read: its records would come back without end.

        Raises:
            StrategyError: names the stage and the topic.
        """
        for stage, reducer in self.all_stages.items():
            if not isinstance(reducer, Sink):
                continue
            topic = reducer.topic_written(bootstrap_servers)
            if topic is not None and topic in topics:
                raise StrategyError(
                    f"{stage}: {type(reducer).__name__} writes to topic {topic}, which is an input of the "
                    "strategy: its records would come back without end; write to another topic"
                )

    def validate(self) -> None:
        """Check the columns that reducers need of the rows, where these are declared.

        Raises:
            StrategyError: names the column that is missing.
        """
        if self.distincts and (rows := self.row_schema) is not None:
            of = schemas(rows) if is_tagged(rows) else {"": rows}
            for name, distinct in self.distincts.items():
                if name in of:
                    distinct.require(of[name])
        for stage, reducer in self.stages.items():
            schema = self.schema_of(stage)
            if isinstance(reducer, Aggregate | Window) and schema is not None:
                places = [field.name for field in filled(schema, COORDINATES.names)]
                try:
                    reducer.require([*schema.names, *places])
                except StrategyError as error:
                    raise StrategyError(f"{stage}: {error}") from error

    def require_pickle(self) -> None:
        """Check that another process can be given the parts that map records.

        Raises:
            StrategyError: names the part that cannot be pickled, and why.
        """
        parts = {
            "map": self.map,
            "by_topic": self.by_topic,
            "resources": self.resources,
            "value": self.value,
            "key": self.key,
        }
        for name, part in parts.items():
            try:
                pickle.loads(pickle.dumps(part))  # noqa: S301  our own bytes
            except Exception as error:
                raise StrategyError(
                    f"executor='process': {name} cannot be pickled ({reason_of(error)}); define its "
                    "functions and classes at the top level of a module, or use executor='thread'"
                ) from error


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
