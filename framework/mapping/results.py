"""The results of map functions as columns: type checks, the offset of each row, failed records."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from ..columns.column_types import join_tables
from ..columns.kinds import null_rows, twice, whole
from ..columns.texts import excerpt
from ..errors import StrategyError, as_exception, reason_of, storable, traceback_of, type_of
from ..frames import as_table
from ..record import OFFSET_MARK, RECORD_OFFSET, decoded_bytes
from ..values.python_columns import to_column
from ..values.row_classes import fields_of, is_row_class
from ..values.schemas import RowType
from .undeclared import undeclared

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from numpy.typing import NDArray

    from ..record import Batch

NO_OFFSETS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class Failure(NamedTuple):
    """One record that the map function failed on.

    Attributes:
        exception: the class of the exception, with its module; None if there was none.
        traceback: where it was raised (`kmr.errors.traceback_of`).
    """

    offset: int
    reason: str
    attempts: int = 1
    exception: str | None = None
    traceback: str | None = None

    @classmethod
    def of(cls, offset: int, error: BaseException, attempts: int = 1) -> Self:
        """Describe an exception of the map function."""
        return cls(offset, reason_of(error), attempts, type_of(error), traceback_of(error))


@dataclass(frozen=True, slots=True)
class MapResult:
    """The rows and failures of one batch.

    Attributes:
        table: the rows; None when there are none.
        offsets: the offset that each row came from, ascending.
        failures: the records that failed, ascending by offset.
        rest: the first offset that was not mapped, because the map was stopped (`kmr.mapping.stop`); None
            if all were.
        retries: the number of calls that were repeated.
        places: as those of `Rows`.
        seconds: how long the call took in its thread; None: it was not measured there.
    """

    table: pa.Table | None
    offsets: NDArray[np.int64]
    failures: tuple[Failure, ...] = ()
    rest: int | None = None
    retries: int = 0
    places: pa.Table | None = None
    seconds: float | None = None

    def filtered(self, records: int) -> int:
        """Return how many of so many records made no row and did not fail."""
        offsets = self.offsets
        with_rows = len(offsets) and 1 + np.count_nonzero(offsets[1:] != offsets[:-1])
        return records - int(with_rows) - len(self.failures)


def from_rows(
    schema: RowType | pa.Schema | None,
    rows: list[Any] | dict[str, list[Any]],
    offsets: Sequence[int] | NDArray[np.int64],
    failures: list[Failure],
    sink_types: Mapping[str, pa.DataType] = {},
    *,
    alike: bool = False,
) -> MapResult:
    """Convert the rows of a per-record function to columns; `offsets` has the record of each row.

    A key that only some rows have is null in the others. A record with a value that does not fit its column
    fails, with all of its rows. A column's type is that of the schema, a null in a column that is not
    nullable does not fit; without a schema, the values of the batch decide together
    (`kmr.columns.column_types`).

    Args:
        rows: dicts, or objects whose attributes are the columns; without a schema also the values by column.
        sink_types: what the sink stores, by the names of its columns (`kmr.mapping.sink_types`).
        alike: all rows are known to be objects of the class of `schema`.
    """
    if not rows:
        return MapResult(None, NO_OFFSETS, tuple(failures))
    misfits: dict[int, str] = {}
    if schema is not None and isinstance(rows, list):
        table = typed_table(schema, rows, misfits, alike=alike)
        refuse_nulls(table, misfits)
        return kept_records(table, np.array(offsets, dtype=np.int64), misfits, failures)
    values = rows if isinstance(rows, dict) else _values_of(rows, misfits)
    table = pa.table(
        {
            name: _column(some, name, None, misfits, sink_types.get(name))
            for name, some in values.items()
        }
    )
    mapped = kept_records(table, np.array(offsets, dtype=np.int64), misfits, failures)
    if misfits and mapped.table is not None and isinstance(rows, list):
        failed = {failure.offset for failure in mapped.failures}
        kept = [row for row, offset in zip(rows, offsets, strict=True) if offset not in failed]
        names = _columns_of(_dicts(kept, {}), None, {})
        mapped = replace(mapped, table=mapped.table.select(names))
    return mapped


def typed_table(
    schema: RowType | pa.Schema, rows: list[Any], misfits: dict[int, str], *, alike: bool = False
) -> pa.Table:
    """Convert rows to declared columns; values that do not fit become null, and get a reason in `misfits`.

    Call `refuse_nulls` for the columns that are not nullable.

    Args:
        alike: as that of `from_rows`.
    """
    if isinstance(schema, RowType) and (alike or set(map(type, rows)) == {schema.instances}):
        if schema.instances is dict:
            _columns_of(rows, schema.schema, misfits)
        columns, refused = schema.to_columns(rows)
        misfits.update(refused)
        return pa.Table.from_batches([columns])
    declared = schema.schema if isinstance(schema, RowType) else schema
    values = same_keys(rows, declared.names)
    if values is None:
        dicts = _dicts(rows, misfits)
        names = _columns_of(dicts, declared, misfits)
        values = {name: [row.get(name) for row in dicts] for name in names}
    if isinstance(schema, RowType):
        in_order = (values[name] for name in declared.names)
        return pa.Table.from_batches([schema.from_values(in_order, misfits)])
    kinds = {field.name: field.type for field in declared}
    return pa.table(
        {name: _column(some, name, kinds[name], misfits) for name, some in values.items()},
        schema=declared,
    )


def _values_of(rows: list[Any], misfits: dict[int, str]) -> dict[str, list[Any]]:
    """Return the values of each column; None where a row does not have the key."""
    if (values := same_keys(rows)) is not None:
        return values
    dicts = _dicts(rows, misfits)
    return {name: [row.get(name) for row in dicts] for name in _columns_of(dicts, None, misfits)}


def same_keys(rows: list[Any], names: list[str] | None = None) -> dict[str, list[Any]] | None:
    """Return the values by key of dicts that all have the same keys, all of them text; else None.

    Args:
        names: the keys; None: those of the first row.
    """
    if set(map(type, rows)) != {dict}:
        return None
    names = list(rows[0]) if names is None else names
    is_plain_text = all(type(name) is str for name in names)
    if names and is_plain_text and set(map(len, rows)) == {len(names)}:
        with suppress(KeyError):  # else all rows have these keys
            return {name: list(map(itemgetter(name), rows)) for name in names}
    return None


def _dicts(rows: list[Any], misfits: dict[int, str]) -> list[Mapping[str, Any]]:
    """Return rows as dicts; one whose fields cannot be read is empty, and gets a reason in `misfits`."""
    dicts: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows):
        try:
            dicts.append(row if isinstance(row, Mapping) else fields_of(row))
        except BaseException as error:  # noqa: BLE001  a property of the user's may raise anything
            misfits[number] = reason_of(as_exception(error))
            dicts.append({})
    return dicts


def refuse_nulls(table: pa.Table, misfits: dict[int, str]) -> None:
    """Give a reason to each row that has a null in a column that is not nullable."""
    for field, column in zip(table.schema, table.columns, strict=True):
        if not field.nullable and (null := null_rows(whole(column))) is not None:
            for row in np.flatnonzero(null).tolist():
                misfits.setdefault(row, f"column {field.name}: null, but it is not nullable")


def _columns_of(
    rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None, misfits: dict[int, str]
) -> list[str]:
    """Return the names of all columns; rows that have no columns, or others, get a reason in `misfits`."""
    names: dict[Any, None] = dict.fromkeys(chain.from_iterable(rows))
    known = None if schema is None else set(schema.names)
    wrong = {name: reason for name in names if (reason := _no_column(name, known)) is not None}
    if wrong or known is None:
        for number, row in enumerate(rows):
            reason = next((wrong[name] for name in row if name in wrong), None)
            if reason is not None or (not row and known is None):
                misfits.setdefault(number, reason or "the row has no columns")
    return [name for name in names if name not in wrong] if schema is None else list(schema.names)


def _no_column(name: Any, known: Container[str] | None) -> str | None:
    """Return why a key of a row is not the name of a column; None if it is."""
    if not isinstance(name, str):
        kind = type(name).__name__
        return f"the row has the key {excerpt(name)} ({kind}); keys are names of columns: make them text"
    if storable(name) != name:
        return f"the row has the key {storable(name)}, which has no UTF-8 form"
    if known is not None and name not in known:
        return f"the row has the column {name}, which the map does not declare"
    return None


def _column(
    values: list[Any],
    name: str,
    kind: pa.DataType | None,
    misfits: dict[int, str],
    sink_type: pa.DataType | None = None,
) -> pa.Array[Any]:
    """Convert the values of one column; those that do not fit become null, and get a reason in `misfits`."""
    refused: dict[int, str] = {}
    if kind is None:
        column = undeclared(values, name, refused, misfits, sink_type)
    else:
        column = to_column(values, kind, refused)
    misfits.update({row: f"column {name}: {reason}" for row, reason in refused.items()})
    return column


def kept_records(
    table: pa.Table,
    offsets: NDArray[np.int64],
    misfits: Mapping[int, str],
    failures: Iterable[Failure],
    places: pa.Table | None = None,
) -> MapResult:
    """Drop the records that have a row in `misfits`, and add them to the failed ones."""
    if not misfits:
        return MapResult(table, offsets, tuple(failures), places=places)
    failed = {failure.offset: failure for failure in failures}
    for row, reason in misfits.items():
        offset = int(offsets[row])
        failed.setdefault(offset, Failure(offset, reason))
    kept = ~np.isin(offsets, list(failed))
    return MapResult(
        table.filter(pa.array(kept)) if kept.any() else None,
        offsets[kept],
        tuple(failed[offset] for offset in sorted(failed)),
        places=None if places is None else places.filter(pa.array(kept)),
    )


def rows_of(result: object, *, named: bool = False) -> list[Any]:
    """Return the rows of one record when the function did not return one of the usual class; runs generators.

    Args:
        named: a row may be a pair of a row and the name of its branch.

    Raises:
        TypeError: the result cannot become rows. The record fails alone: other records may have others.
        Exception: the generator raised it.
    """
    if type(result) is list and all(map(is_plain, set(map(type, result)))):
        return result
    is_row = _is_named_row if named else _is_row
    if is_row(result):
        return [_as_dict(result)]
    if isinstance(result, Iterable) and not isinstance(result, (str, bytes)):
        # A generator may fill one dict anew for each row.
        rows = [row.copy() if type(row) is dict else row for row in result]
        if all(map(is_row, rows)):
            return list(map(_as_dict, rows))
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the map returned a coroutine: await it, or make the map `async def`")
    of_one = (
        "a pair of a row and a name, or a list of rows and pairs" if named else "a list of rows"
    )
    raise TypeError(
        f"the map returned {_kind(result)}; "
        f"return a row (a dict, a Struct, a dataclass or a pydantic model), {of_one}, or None"
    )


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _as_dict(row: Any) -> Any:
    """Read the user's own kind of mapping here, where an exception fails its record alone."""
    return dict(row) if isinstance(row, Mapping) and type(row) is not dict else row


def _is_row(result: object) -> bool:
    cls: Any = type(result)
    return _has_rows(cls)


@lru_cache(maxsize=256)
def _has_rows(cls: type) -> bool:
    return issubclass(cls, Mapping) or is_row_class(cls)


@lru_cache(maxsize=256)
def is_plain(cls: type) -> bool:
    """Return whether objects of a class are rows as they are."""
    return cls is dict or (is_row_class(cls) and not issubclass(cls, Mapping))


def _is_named_row(result: object) -> bool:
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], str):
        return _is_row(result[0])
    return _is_row(result)


def tables_of(
    function: Callable[..., Any], result: object, *, named: bool
) -> dict[str, tuple[pa.Table | None, Any]]:
    """Return what a per-batch function returned, by the names of branches; see `columns_of`.

    Args:
        named: the strategy has branches; else the one table has the name "".

    Raises:
        StrategyError: it returned no table, or one without a name.
    """
    if not named:
        return {"": columns_of(function, result)}
    if result is None:
        return {}
    if not isinstance(result, Mapping) or not all(isinstance(name, str) for name in result):
        raise StrategyError(
            f"map function {_name(function)} returned {type(result).__name__}; the strategy has branches, so "
            'return a dict of tables by the names of their branches: {"page_views": table}'
        )
    return {name: columns_of(function, table) for name, table in result.items()}


def columns_of(function: Callable[..., Any], result: object) -> tuple[pa.Table | None, Any]:
    """Return the table that a per-batch function returned, and its `keep`, which may be None.

    Raises:
        StrategyError: it returned no table.
        Exception: of the library that computes a lazy table.
    """
    keep: Any = None
    if isinstance(result, tuple) and len(result) == 2:
        result, keep = result
    if result is None:
        return None, None
    table = as_table(result)
    if table is None:
        raise StrategyError(
            f"map function {_name(function)} returned {type(result).__name__}; "
            "return a table of pyarrow, Polars, DuckDB or pandas, a pair of that and `keep`, or None"
        )
    if (name := twice(table.schema)) is not None:
        raise StrategyError(
            f"map function {_name(function)} returned two columns {name}; rename one of them"
        )
    return table, keep


def from_columns(
    function: Callable[..., Any], records: pa.RecordBatch, table: pa.Table | None, keep: Any
) -> MapResult:
    """Find the record of each row that a per-batch function returned."""
    if table is None:
        return MapResult(None, NO_OFFSETS)
    if keep is not None:
        offsets = records.column(RECORD_OFFSET).to_numpy()[
            _input_rows(function, keep, len(records))
        ]
    elif RECORD_OFFSET in table.column_names:
        offsets = table.column(RECORD_OFFSET).to_numpy()
    elif (marked := _marked(table)) is not None:
        offsets = table.column(marked).to_numpy()
    else:
        raise StrategyError(
            f"map function {_name(function)} returned columns without `{RECORD_OFFSET}`, which names the "
            "record of each row; keep that column (it is not written), or return a pair of the columns and "
            "the input row that each row came from"
        )
    if (marked := _marked(table)) is not None:
        table = table.set_column(marked, "offset", table.column(marked))
    if RECORD_OFFSET in table.column_names:
        table = table.drop_columns([RECORD_OFFSET])
    if len(offsets) != table.num_rows:
        raise StrategyError(
            f"map function {_name(function)} returned {table.num_rows} rows and {len(offsets)} `keep`"
        )
    if len(offsets) == 0:
        return MapResult(None, NO_OFFSETS)
    mapped = _ordered(function, records, table, offsets)
    if not table.num_columns:
        raise StrategyError(
            f"map function {_name(function)} returned rows without columns; return their columns, or None "
            "when every record is filtered"
        )
    return mapped


def _marked(table: pa.Table) -> int | None:
    """Return the number of the column `offset` that came with the batch, if the function has kept it."""
    found = [at for at, field in enumerate(table.schema) if field.metadata == OFFSET_MARK]
    return found[0] if found else None


def _input_rows(function: Callable[..., Any], keep: Any, count: int) -> NDArray[Any]:
    """Check `keep`: the numbers of input rows, or a mask of them."""
    try:
        rows = np.asarray(keep)
    except ValueError:  # lists of several lengths
        rows = np.array(None)
    if rows.dtype == np.bool_ and rows.shape == (count,):
        return np.flatnonzero(rows)
    if rows.size == 0:
        return np.empty(0, dtype=np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise StrategyError(
            f"map function {_name(function)} returned `keep` of shape {rows.shape} and type {rows.dtype}; "
            f"return the number of an input row, 0 to {count - 1}, for each output row"
        )
    if wrong := rows[(rows < 0) | (rows >= count)].tolist():
        raise StrategyError(
            f"map function {_name(function)} returned {wrong[0]} in `keep`; "
            f"its batch has the rows 0 to {count - 1}"
        )
    return rows


def _ordered(
    function: Callable[..., Any], records: pa.RecordBatch, table: pa.Table, offsets: NDArray[Any]
) -> MapResult:
    if offsets.dtype.kind not in "iu":
        raise StrategyError(
            f"map function {_name(function)} changed the column `{RECORD_OFFSET}` to {offsets.dtype}; "
            "it must hold the offset of the record that each row came from"
        )
    offsets = offsets.astype(np.int64, copy=False)
    if np.any(offsets[1:] < offsets[:-1]):
        order = np.argsort(offsets, kind="stable")
        offsets = offsets[order]
        table = table.take(order)
    source = records.column(RECORD_OFFSET)
    first, last = source[0].as_py(), source[len(records) - 1].as_py()
    if offsets[0] < first or offsets[-1] > last:
        raise StrategyError(
            f"map function {_name(function)} returned rows of offsets {offsets[0]} to {offsets[-1]}, "
            f"but its batch holds {first} to {last}"
        )
    return MapResult(table, offsets)


def join(parts: Sequence[MapResult]) -> MapResult:
    """Join the results of the parts of one batch, in order."""
    if len(parts) == 1:
        return parts[0]
    tables = [part.table for part in parts if part.table is not None]
    failures = tuple(sorted(chain.from_iterable(part.failures for part in parts)))
    if not tables:
        return MapResult(None, NO_OFFSETS, failures)
    joined = join_tables(tables)
    offsets = np.concatenate([part.offsets for part in parts if part.table is not None])
    found = [part.places for part in parts if part.table is not None and part.places is not None]
    places = pa.concat_tables(found) if found else None
    return kept_records(joined.table, offsets, joined.misfits, failures, places)


def bytes_made(batch: Batch, mapped: MapResult, records: pa.RecordBatch | None = None) -> int:
    """Return the memory that a mapped batch takes beyond its `nbytes`, which the columns of its records are.

    Whole buffers count, each once, and those that the rows share with the records do not: rows that are a
    slice or a selection of the records cost nothing, one row of a large column costs the column.

    Args:
        records: of the batch, if they were decoded together with others; None: `batch.records`.
    """
    records = batch.records if records is None else records
    made = max(0, decoded_bytes(records) - batch.nbytes)
    if (table := mapped.table) is None:
        return made
    sizes = {
        buffer.address: buffer.size
        for column in table.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None
    }
    ours = {
        buffer.address
        for column in records.columns
        for buffer in column.buffers()
        if buffer is not None
    }
    shared = sum(size for address, size in sizes.items() if address in ours)
    return made + int(table.get_total_buffer_size()) - shared + mapped.offsets.nbytes


def _name(function: object) -> str:
    function = getattr(function, "func", function)  # of a partial with its resources
    return str(getattr(function, "__qualname__", function))
