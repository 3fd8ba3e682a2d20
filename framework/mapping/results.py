"""The results of map functions as columns: type checks, the offset of each row, failed records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..errors import StrategyError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "NO_OFFSETS",
    "Failure",
    "MapResult",
    "from_columns",
    "from_rows",
    "join",
    "rows_of",
]

NO_OFFSETS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class Failure(NamedTuple):
    """One record that the map function failed on."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class MapResult:
    """The rows and failures of one batch.

    Attributes:
        table: the rows; None when there are none.
        offsets: the offset that each row came from, ascending.
        failures: the records that failed, ascending by offset.
    """

    table: pa.Table | None
    offsets: NDArray[np.int64]
    failures: tuple[Failure, ...] = ()


def from_rows(
    schema: pa.Schema | None,
    rows: list[Mapping[str, Any]],
    offsets: list[int],
    failures: list[Failure],
) -> MapResult:
    """Convert the rows of a per-record function to columns; `offsets` has the record of each row."""
    if not rows:
        return MapResult(None, NO_OFFSETS, tuple(failures))
    try:
        table = _table(rows, schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        rows, offsets, more = _without_misfits(rows, offsets, schema)
        failures = sorted({failure.offset: failure for failure in (*failures, *more)}.values())
        if not rows:
            return MapResult(None, NO_OFFSETS, tuple(failures))
        table = _table(rows, schema)
    return MapResult(table, np.array(offsets, dtype=np.int64), tuple(failures))


def rows_of(function: Callable[..., Any], offset: int, result: object) -> list[Mapping[str, Any]]:
    """Return the rows of one record when the function did not return a plain dict; runs generators.

    Raises:
        StrategyError: the result cannot become rows.
        Exception: the generator raised it.
    """
    if isinstance(result, Mapping):
        return [result]
    if isinstance(result, Iterable) and not isinstance(result, (str, bytes)):
        rows = list(result)
        if all(isinstance(row, Mapping) for row in rows):
            return rows
    raise StrategyError(
        f"map function {_name(function)} returned {type(result).__name__} for offset {offset}; "
        "return a dict, a list of dicts, or None"
    )


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """Convert rows to columns; a key that only some rows have is null in the others."""
    names = dict.fromkeys(chain.from_iterable(rows))
    if schema is not None:
        if unknown := [name for name in names if name not in schema.names]:
            raise StrategyError(f"map returned columns {unknown} that its schema does not have")
        return pa.Table.from_pylist(list(rows), schema=schema)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _without_misfits(
    rows: list[Mapping[str, Any]], origins: list[int], schema: pa.Schema | None
) -> tuple[list[Mapping[str, Any]], list[int], list[Failure]]:
    """Drop records with a value of the wrong type. Without a schema, a column's first value sets its type."""
    types: dict[str, pa.DataType] = {}
    misfits: dict[int, Failure] = {}
    for origin, row in zip(origins, rows, strict=True):
        for name, value in row.items():
            if value is None:
                continue
            try:
                if schema is not None:
                    pa.scalar(value, schema.field(name).type)
                elif name in types:
                    pa.scalar(value, types[name])
                else:
                    types[name] = pa.scalar(value).type
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                misfits[origin] = Failure(origin, f"column {name}: {reason_of(error)}")
    kept = [(o, row) for o, row in zip(origins, rows, strict=True) if o not in misfits]
    return [row for _, row in kept], [o for o, _ in kept], list(misfits.values())


def from_columns(
    function: Callable[..., Any], records: pa.RecordBatch, result: object
) -> MapResult:
    """Check the result of a per-batch function, and find the offset of each row."""
    keep: Any = None
    if isinstance(result, tuple) and len(result) == 2:
        result, keep = result
    if result is None:
        return MapResult(None, NO_OFFSETS)
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise StrategyError(
            f"map function {_name(function)} returned {type(result).__name__}; "
            "return a pyarrow RecordBatch or Table, a pair of that and `keep`, or None"
        )
    table = result if isinstance(result, pa.Table) else pa.Table.from_batches([result])
    if keep is not None:
        source = records.column("offset").to_numpy(zero_copy_only=False)
        offsets = source[np.asarray(keep)]
    elif "offset" in table.column_names:
        offsets = table.column("offset").to_numpy()
    else:
        raise StrategyError(
            f"map function {_name(function)} returned columns without `offset`; keep that column, "
            "or return a pair of the columns and the input row that each row came from"
        )
    if len(offsets) != table.num_rows:
        raise StrategyError(
            f"map function {_name(function)} returned {table.num_rows} rows and {len(offsets)} `keep`"
        )
    if table.num_rows == 0:
        return MapResult(None, NO_OFFSETS)
    return _ordered(function, records, table, offsets)


def _ordered(
    function: Callable[..., Any], records: pa.RecordBatch, table: pa.Table, offsets: NDArray[Any]
) -> MapResult:
    if offsets.dtype.kind not in "iu":
        raise StrategyError(
            f"map function {_name(function)} changed the `offset` column to {offsets.dtype}; "
            "it must hold the offset of the record that each row came from"
        )
    offsets = offsets.astype(np.int64, copy=False)
    if np.any(offsets[1:] < offsets[:-1]):
        order = np.argsort(offsets, kind="stable")
        offsets = offsets[order]
        table = table.take(order)
    source = records.column("offset")
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
    table = pa.concat_tables(tables, promote_options="permissive")
    offsets = np.concatenate([part.offsets for part in parts if part.table is not None])
    return MapResult(table, offsets, failures)


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", function))
