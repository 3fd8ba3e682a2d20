"""Group the rows of a table, and find the sums that are beyond their type."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_pc: Any = pc
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


def overflows(table: pa.Table, by: Sequence[str], source: str) -> dict[int, str]:
    """Return the groups, by their number in the order of `group`, whose sum is beyond its type, and why.

    Arrow wraps such a sum: that of two large numbers is a negative one.

    Args:
        by: the columns that make a group.
        source: the column that is summed.
    """
    values: Any = table.column(source)
    bounds = _bounds(values.type)
    if bounds is None:
        return {}
    extremes = [each for each in _pc.min_max(values).as_py().values() if each is not None]
    if not extremes or any(map(math.isinf, extremes)):
        return {}
    if max(map(abs, extremes)) * table.num_rows <= bounds.high:
        return {}
    at = table.schema.get_field_index(source)
    exact = group(table.set_column(at, source, values.cast(bounds.exact)), by, [(source, "sum")])
    return {
        number: f"the sum of {source} is {total}, beyond {bounds.kind}; cast {source} in the map"
        for number, total in enumerate(exact.column(f"{source}_sum").to_pylist())
        if total is not None and (total < bounds.low or total > bounds.high)
    }


def require_sums(table: pa.Table, by: Sequence[str], sources: Iterable[str], what: str) -> None:
    """Raise StrategyError, which names `what`, if the sum of a group is beyond its type."""
    for source in sources:
        for reason in overflows(table, by, source).values():
            raise StrategyError(f"{what}: {reason}")


class _Bounds(NamedTuple):
    """What the sum of a type can be.

    Attributes:
        kind: the type of the sum.
        exact: a type for values whose sum it can hold.
    """

    kind: pa.DataType
    low: Any
    high: Any
    exact: pa.DataType


def _bounds(kind: pa.DataType) -> _Bounds | None:
    if pa.types.is_signed_integer(kind):
        return _Bounds(pa.int64(), -(2**63), 2**63 - 1, pa.decimal128(38, 0))
    if pa.types.is_unsigned_integer(kind):
        return _Bounds(pa.uint64(), 0, 2**64 - 1, pa.decimal128(38, 0))
    if pa.types.is_floating(kind):
        return _Bounds(pa.float64(), -sys.float_info.max, sys.float_info.max, pa.float64())
    if pa.types.is_decimal128(kind):
        most = Decimal((0, (9,) * 38, -kind.scale))
        wide = pa.decimal256(76, kind.scale)
        return _Bounds(pa.decimal128(38, kind.scale), -most, most, wide)
    if pa.types.is_decimal256(kind):
        most = Decimal((0, (1,), 76 - kind.scale))
        return _Bounds(pa.decimal256(76, kind.scale), -most, most, pa.float64())
    return None
