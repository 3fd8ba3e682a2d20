"""Tables of other libraries as Arrow tables, and back: Polars, DuckDB, pandas, nanoarrow.

Arrow's PyCapsule interface hands columns over without a copy; no library is imported here before it is used.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .columns.fitting import known_to_kernels
from .columns.reasons import ZONED_TIME_OF_DAY
from .columns.texts import excerpt
from .errors import StrategyError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

Frame = Literal["pyarrow", "polars", "pandas", "duckdb"]
"""What a function of a batch may be called with."""

_INDEX: Final = re.compile(r"__index_level_\d+__")
"""The index of a pandas DataFrame, as a column."""

_TIMES: Final = (datetime, date, time, timedelta)

_KINDS: Final[dict[tuple[str, str], str]] = {
    ("pyarrow", "RecordBatch"): "pyarrow",
    ("pyarrow", "Table"): "table",
    ("polars", "DataFrame"): "polars",
    ("polars", "LazyFrame"): "lazy",
    ("pandas", "DataFrame"): "pandas",
    ("duckdb", "DuckDBPyRelation"): "duckdb",
}
"""By the library and the name of a class in an annotation."""


def kind_of(annotation: object) -> str | None:
    """Return how a batch becomes an object of an annotated class; None if the class is no table."""
    if not isinstance(annotation, type):
        return None
    library = annotation.__module__.partition(".")[0].lstrip("_")
    return _KINDS.get((library, annotation.__name__))


def check_kind(kind: str) -> None:
    """Raise StrategyError unless the kind is known, and its library installed."""
    library = next((library for (library, _), each in _KINDS.items() if each == kind), None)
    if library is None:
        raise StrategyError(
            f"map_batch: input must be pyarrow, polars, pandas or duckdb, not {kind!r}"
        )
    if find_spec(library) is None:
        raise StrategyError(f"map_batch(input={kind!r}) needs {library}: pip install {library}")


def frame_maker(kind: str) -> Callable[[pa.RecordBatch], Any]:
    """Return the function that makes an object of a kind from a batch."""
    match kind:
        case "table":
            return lambda batch: pa.Table.from_batches([batch])
        case "polars" | "lazy":
            polars = import_module("polars")
            if kind == "lazy":
                return lambda batch: polars.from_arrow(batch).lazy()
            return cast("Callable[[pa.RecordBatch], Any]", polars.from_arrow)
        case "pandas":
            return lambda batch: batch.to_pandas()
        case "duckdb":
            # A cursor for each call: maps of several partitions run in several threads.
            return lambda batch: _duckdb().cursor().from_arrow(pa.Table.from_batches([batch]))
        case _:
            return lambda batch: batch


@cache
def _duckdb() -> Any:
    return import_module("duckdb").connect()


def as_table(result: object) -> pa.Table | None:
    """Return a table of any library as an Arrow table, of the types that sinks know; None if it is none.

    Raises:
        Exception: the library's own: a lazy table is computed here.
    """
    if isinstance(result, pa.Table):
        return known_to_kernels(result)
    if isinstance(result, pa.RecordBatch):
        return known_to_kernels(pa.Table.from_batches([result]))
    if not hasattr(result, "__arrow_c_stream__") and type(result).__name__ == "LazyFrame":
        result = result.collect()  # type: ignore[attr-defined]
    if hasattr(result, "__arrow_c_stream__"):
        table = _of_frame(result)
    elif hasattr(result, "__arrow_c_array__"):
        table = pa.Table.from_batches([pa.record_batch(result)])
    else:
        return None
    table = known_to_kernels(table)
    table = table.select([name for name in table.column_names if not _INDEX.fullmatch(name)])
    # Arrow decodes a dictionary only to the type of its values: cast them first.
    for decoded in (False, True):
        fields = [
            pa.field(each.name, _common(each.type, decoded), each.nullable) for each in table.schema
        ]
        table = table.cast(pa.schema(fields))
    return table


def _of_frame(frame: Any) -> pa.Table:
    """Convert a table of another library.

    Raises:
        TypeError: Arrow has no type for a column, or would change a value; it names the column.
        Exception: the library's own.
    """
    library = type(frame).__module__.partition(".")[0].lstrip("_")
    if library == "duckdb":
        return _of_duckdb(frame)
    if library not in ("pandas", "polars"):
        return pa.table(frame)
    for name, kind in zip(frame.columns, map(str, frame.dtypes), strict=True):
        # Arrow takes the addresses of Polars' objects, and the numbers of pandas' periods.
        if kind == "Object" or kind.startswith("period["):
            raise TypeError(f"column {name}: {kind} is no type of a column; return text or times")
        if kind == "object" and (reason := _changed(frame[name])) is not None:
            raise TypeError(f"column {name}: {reason}")
    try:
        return pa.table(frame)
    except Exception:
        for name in frame.columns:
            try:
                pa.table(frame[[name]])
            except Exception as error:
                values = excerpt(list(frame[name]))
                reason = f"column {name} cannot hold {values}: {reason_of(error)}"
                raise TypeError(reason) from error
        raise


def _changed(values: Any) -> str | None:
    """Return what Arrow would change in a pandas column of objects; None if nothing."""
    classes = set(map(type, values))
    times = {of for of in _TIMES if any(issubclass(each, of) for each in classes)}
    if {date, datetime} <= classes:
        return "dates beside times would be dates; return only one"
    if times and not {int, np.int64}.isdisjoint(classes):
        return "numbers beside times would be times; return only one"
    if time in times and any(getattr(each, "tzinfo", None) is not None for each in values):
        return ZONED_TIME_OF_DAY
    if Decimal in classes and any(isinstance(each, Decimal) and each.is_nan() for each in values):
        return "NaN is no decimal; return None for null"
    return None


def _of_duckdb(relation: Any) -> pa.Table:
    """Convert a relation. DuckDB makes bits bytes, infinity a time, and drops the zone of a time of day."""
    for name, kind in zip(relation.columns, map(str, relation.types), strict=True):
        if kind in ("BIT", "TIME WITH TIME ZONE"):
            raise TypeError(f"column {name}: {kind} is no type of a column; cast it to VARCHAR")
    table = pa.table(relation)
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_timestamp(field.type) or pa.types.is_date32(field.type):
            number = pa.int32() if pa.types.is_date32(field.type) else pa.int64()
            most = 2 ** (number.bit_width - 1) - 1
            infinite = pc.is_in(column.cast(number), pa.array([most, -most], number))
            if pc.any(infinite).as_py():
                raise TypeError(f"column {field.name}: a time cannot be infinite")
    return table


def _common(kind: pa.DataType, decoded: bool) -> pa.DataType:
    """Return the common type of the same values: texts as `string`, lists as `list`, no dictionaries."""
    types = pa.types
    if types.is_dictionary(kind):
        values: Any = _common(kind.value_type, decoded)
        return values if decoded else pa.dictionary(pa.int32(), values)
    if types.is_string_view(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_binary_view(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([each.with_type(_common(each.type, decoded)) for each in kind])
    if types.is_map(kind):
        return pa.map_(_common(kind.key_type, decoded), _common(kind.item_type, decoded))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_list_view(kind):
        return pa.list_(kind.value_field.with_type(_common(kind.value_type, decoded)))
    return kind
