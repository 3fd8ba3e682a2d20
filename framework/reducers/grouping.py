"""Group the rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROW: Final = "kmr row"


def has_function(kind: pa.DataType, function: str) -> bool:
    """Return whether values of a type can be aggregated by a function."""
    schema = pa.schema([pa.field("key", pa.int8()), pa.field("value", kind)])
    try:
        group(schema.empty_table(), ["key"], [("value", function)])
    except StrategyError:
        return False
    return True


def group(
    table: pa.Table, by: Sequence[str], aggregations: Sequence[Any], *, in_order: bool = False
) -> pa.Table:
    """Group rows: the columns of `by`, then the aggregations.

    Args:
        aggregations: as for `pyarrow.TableGroupBy.aggregate`.
        in_order: groups come in the order of their first rows; else in any order, which is the same again
            for the same rows.

    Raises:
        StrategyError: a function does not support the type of its column.
    """
    if in_order:
        numbered = _numbered(table)
        groups = group(numbered, by, [*aggregations, (_ROW, "min")])
        return groups.sort_by(f"{_ROW}_min").drop_columns(f"{_ROW}_min")
    try:
        # One thread keeps the order of the rows, which first, last and list need.
        return table.group_by(list(by), use_threads=False).aggregate(list(aggregations))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise StrategyError(
            f"Aggregate: {list(aggregations)} cannot be computed: {error}; the rows are "
            f"{', '.join(f'{field.name} {field.type}' for field in table.schema)}"
        ) from error


def _numbered(table: pa.Table) -> pa.Table:
    return table.append_column(_ROW, pa.array(range(table.num_rows), pa.int64()))


def numbers_of_rows(table: pa.Table, by: Sequence[str]) -> list[list[int]]:
    """Return the numbers of the rows of each group, in the order of `group`."""
    found: list[Any] = group(_numbered(table), by, [(_ROW, "list")])[f"{_ROW}_list"].to_pylist()
    return found
