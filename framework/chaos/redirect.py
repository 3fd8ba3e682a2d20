"""A strategy whose sinks are ours: workers run it, and each row says which records it was made of.

ClickHouseWriter     the embedded ClickHouse, a table of its own
KafkaWriter          a topic of the bundled broker
ParquetWriter        a directory of its own
any other RangeWriter, PostgresWriter among them    `ParquetWriter` instead
any other sink       `KafkaWriter` to a topic of the bundled broker instead
reduce_err           `KafkaWriter` to a topic of the bundled broker instead
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow as pa

from ..loading import load_strategy
from ..reducers.reducer import Reducer
from ..sinks.clickhouse.ddl import Layout
from ..sinks.clickhouse.writer import ClickHouseWriter
from ..sinks.kafka.writer import KafkaWriter
from ..sinks.parquet.writer import ParquetWriter
from ..sinks.ranges import RangeWriter

if TYPE_CHECKING:
    from ..record import Rows
    from ..strategy import Strategy

__all__ = ["SOURCE", "Places", "Redirected", "Sink", "redirect", "source_of"]

SOURCE: Final = "kmr_source"
"""The column, or the header, that names the records of a row; see `source_of`."""

Sink = Literal["clickhouse", "kafka", "parquet"]
_STRATEGY: Final = "KMR_CHAOS_STRATEGY"
_PLACES: Final = "KMR_CHAOS_PLACES"
_MAX_AGE: Final = 0.5
_TIMEOUT: Final = 5.0
_CONNECT_TIMEOUT: Final = 60.0
_TRANSACTION_TIMEOUT: Final = 2.0  # below the session timeout of the workers


class Places(msgspec.Struct, frozen=True):
    """Where rows go.

    Attributes:
        clickhouse: the URL of the server.
        table: in it.
        files: the directory of Parquet files.
        rows, errors: topics.
    """

    clickhouse: str = ""
    table: str = "chaos"
    files: str = ""
    rows: str = "chaos-rows"
    errors: str = "chaos-errors"

    def environment(self, strategy: str) -> dict[str, str]:
        """The variables by which a worker finds the strategy at `module:attribute`, and these places."""
        return {_STRATEGY: strategy, _PLACES: msgspec.json.encode(self).decode()}


class Redirected(msgspec.Struct, frozen=True):
    """The strategy that workers run.

    Attributes:
        sink: what its rows are in.
        notes: what is not as in the user's strategy, a sentence each.
    """

    strategy: Any
    sink: Sink
    notes: tuple[str, ...]


def __getattr__(name: str) -> Strategy:
    """`strategy`: the one of this process's environment."""
    if name != "strategy":
        raise AttributeError(name)
    places = msgspec.json.decode(os.environ[_PLACES], type=Places)
    found: Strategy = redirect(load_strategy(os.environ[_STRATEGY]), places).strategy
    return found


def redirect(strategy: Strategy, places: Places) -> Redirected:
    """Return a strategy that writes to these places only, and flushes at least twice a second."""
    *before, last = strategy.reducers
    sink, writer, note = _redirected(strategy, last, places)
    notes = [note]
    errors = strategy.reduce_err
    if errors is not None:
        errors = KafkaWriter(places.errors, max_age=_MAX_AGE)
        notes.append(
            f"reduce_err: a topic of the bundled broker instead of {type(strategy.reduce_err).__name__}"
        )
    if strategy.err_limit is not None:
        notes.append("err_limit: none")
    reduce = [*(_lowered(copy.copy(each)) for each in before), _lowered(writer)]
    changed = replace(strategy, reduce=reduce, reduce_err=errors, err_limit=None)
    return Redirected(changed, sink, tuple(notes))


def source_of(rows: Rows) -> list[str]:
    """Return for each row the records that it was made of.

    `topic:partition:offset` where it was made of one. Where reducers made the rows: all ranges as
    `topic:partition:first-last`, separated by commas, and `#` with the number of the row.
    """
    if rows.offsets is not None:
        topic, partition = rows.ranges[0].topic_partition
        return [f"{topic}:{partition}:{offset}" for offset in rows.offsets.tolist()]
    ranges = ",".join(f"{r.topic}:{r.partition}:{r.first}-{r.last}" for r in rows.ranges)
    return [f"{ranges}#{number}" for number in range(len(rows))]


def _redirected(strategy: Strategy, last: Reducer, places: Places) -> tuple[Sink, Reducer, str]:
    name = type(last).__name__
    if isinstance(last, ClickHouseWriter):
        return "clickhouse", _clickhouse(strategy, last, places), f"{name}: the embedded ClickHouse"
    if isinstance(last, KafkaWriter):
        return "kafka", _kafka(last, places), f"{name}: a topic of the bundled broker"
    if isinstance(last, ParquetWriter):
        files: Any = _named(last)
        files.url, files.filesystem = places.files, None
        return "parquet", files, f"{name}: a directory of this run"
    if isinstance(last, RangeWriter):
        limits = _limits(last)
        limits["max_age"] = limits["max_age"] or _MAX_AGE
        stand_in = ParquetWriter(places.files, delivery=last.capabilities.delivery, **limits)  # type: ignore[arg-type]
        note = f"{name}: Parquet files instead, because it cannot be redirected; its own code did not run"
        return "parquet", _named(stand_in), note
    note = f"{name}: a topic instead, because it cannot be redirected; its own code did not run"
    return "kafka", _kafka(KafkaWriter(places.rows, **_limits(last)), places), note


def _clickhouse(strategy: Strategy, last: ClickHouseWriter, places: Places) -> Reducer:
    writer: Any = _named(last)
    declared = strategy.schema_of(list(strategy.stages)[-1])
    if isinstance(last.create, pa.Schema):
        declared = last.create
    own = pa.field(SOURCE, pa.string(), nullable=False)
    writer.url, writer.database, writer.table = places.clickhouse, None, places.table
    writer.client = {}
    writer.timeout = min(last.timeout, _TIMEOUT)
    writer.connect_timeout = _CONNECT_TIMEOUT
    if last.columns is not None:
        writer.columns = (*last.columns, SOURCE)
    # No engine, TTL or partitions: each of them may remove rows, or refuse those of random values.
    writer.layout = Layout(last.layout.order_by, None, None, None, None)
    if declared is None:  # the columns are added as they come
        writer.create, writer.evolve, writer.extra_columns = pa.schema([own]), "add", "error"
        writer.layout = Layout((SOURCE,), None, None, None, None)
    else:
        writer.create = declared.append(own)
    return writer  # type: ignore[no-any-return]


def _kafka(last: KafkaWriter, places: Places) -> Reducer:
    writer: Any = _named(last)
    writer.topic, writer.bootstrap_servers = places.rows, None
    writer.headers = {**last.headers, SOURCE: SOURCE}
    writer.transaction_timeout = min(last.transaction_timeout, _TRANSACTION_TIMEOUT)
    if getattr(last.value, "has_schema_ids", False):
        writer.value = "json"  # no schema is registered for a trial
    return writer  # type: ignore[no-any-return]


def _limits(like: Reducer) -> dict[str, Any]:
    return {
        "max_rows": like.max_rows,
        "max_bytes": like.max_bytes,
        "max_age": like.max_age,
        "on_shutdown": like.on_shutdown,
    }


def _lowered(reducer: Reducer) -> Reducer:
    if reducer.when_full == "flush":
        reducer.max_age = min(reducer.max_age or _MAX_AGE, _MAX_AGE)
    return reducer


class _Named(Reducer):
    """Adds the column `SOURCE` to the rows of the class beside it."""

    def add(self, rows: Rows) -> None:
        """See `Reducer.add`."""
        names: Any = pa.array(source_of(rows), pa.string())
        table = rows.table.append_column(pa.field(SOURCE, pa.string(), nullable=False), [names])
        super().add(replace(rows, table=table))  # type: ignore[safe-super]

    def __reduce_ex__(self, protocol: object) -> Any:
        # Its class is made at run time, so it is found again by the class of the user.
        return _again, (type(self).__bases__[1], self.__dict__)


@cache
def _named_class(kind: type) -> type:
    return type(kind.__name__, (_Named, kind), {})


def _again(kind: type, state: dict[str, Any]) -> Any:
    made: Any = object.__new__(_named_class(kind))
    made.__dict__.update(state)
    return made


def _named(reducer: Reducer) -> Reducer:
    named: Reducer = _again(type(reducer), copy.copy(reducer).__dict__)
    return named
