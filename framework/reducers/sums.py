"""The rows that would overflow a sum. Arrow wraps such a sum, or makes it infinite."""

from __future__ import annotations

import math
import sys
from decimal import Context, Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns.column_types import join_tables
from ..columns.texts import excerpt
from .grouping import group, numbers_of_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_pc: Any = pc
_MARGIN: Final = 1 - 1e-6
"""The part of its type up to which a sum of floats is safe, in whichever steps it is rounded."""

_EXACT: Final = Context(prec=100)


class Bounds(NamedTuple):
    """What the sum of a type can be.

    Attributes:
        kind: the type of the sum.
        low: the least one.
        high: the greatest one.
        exact: a type for values whose sum it can hold.
    """

    kind: pa.DataType
    low: Any
    high: Any
    exact: pa.DataType

    def add(self, total: Any, value: Any) -> Any:
        """Return a sum; it may be larger than the type allows."""
        return _EXACT.add(total, value) if isinstance(value, Decimal) else total + value

    def hold(self, before: Any, value: Any, total: Any) -> bool:
        """Return whether a sum is within the type; one that an infinite value made infinite is."""
        if isinstance(total, float):
            return not math.isinf(total) or math.isinf(value) or math.isinf(before)
        return bool(self.low <= total <= self.high)


@cache
def bounds_of(kind: pa.DataType) -> Bounds | None:
    """Return what the sum of values of a type can be; None: anything."""
    if pa.types.is_signed_integer(kind):
        return Bounds(pa.int64(), -(2**63), 2**63 - 1, pa.decimal128(38, 0))
    if pa.types.is_unsigned_integer(kind):
        return Bounds(pa.uint64(), 0, 2**64 - 1, pa.decimal128(38, 0))
    if pa.types.is_floating(kind):
        most = sys.float_info.max
        return Bounds(pa.float64(), -most, most, pa.float64())
    if pa.types.is_decimal128(kind):
        digits = Decimal((0, (9,) * 38, -kind.scale))
        wide = pa.decimal256(76, kind.scale)
        return Bounds(pa.decimal128(38, kind.scale), -digits, digits, wide)
    if pa.types.is_decimal256(kind):
        digits = Decimal((0, (9,) * 76, -kind.scale))
        return Bounds(pa.decimal256(76, kind.scale), -digits, digits, pa.float64())
    return None


class SumLimits:
    """Finds the rows that would overflow the sum of their group, in the order of the rows.

    What is found depends on that order alone, and not on how the rows are divided among calls: a row that is
    found is not in the sums, those after it are as if it were not there.

    Args:
        keys: the columns of a group.
        sums: the columns that are summed, and what a message calls them.
        group: names a group in a message, by the values of its keys.
    """

    def __init__(
        self,
        keys: Sequence[str],
        sums: Mapping[str, str],
        group: Callable[[Mapping[str, Any]], str],
    ) -> None:
        self._keys, self._sums, self._group = list(keys), dict(sums), group
        self._reached: dict[str, float] = {}  # no group has a sum that is further from 0

    def beyond(self, rows: pa.Table, kept: Callable[[], pa.Table]) -> dict[int, str]:
        """Return the rows that are not to be added, and why.

        Args:
            rows: new rows, with the keys and the columns that are summed.
            kept: returns the sums of all groups so far, in the same columns, one row for each group.
        """
        if not self._sums or self._fit(rows):
            return {}
        sums = kept()
        self._reached = {name: _largest(sums, name) for name in self._sums}
        if self._fit(rows):
            return {}
        self.forget()
        return self._found(rows, sums)

    def forget(self) -> None:
        """Look at all sums again at the next call: there are others than before."""
        self._reached = {}

    def _fit(self, rows: pa.Table) -> bool:
        """Note how far sums can reach with more rows; return whether all of them are certain to fit."""
        reached = {}
        for name in self._sums:
            bounds = bounds_of(rows.schema.field(name).type)
            if bounds is not None:
                reached[name] = (
                    self._reached.get(name, math.inf) + _largest(rows, name) * rows.num_rows
                )
                if reached[name] > float(bounds.high) * _MARGIN:
                    return False
        self._reached |= reached
        return True

    def _found(self, rows: pa.Table, sums: pa.Table) -> dict[int, str]:
        """Add up the rows of each group that may have such a sum, one after the other."""
        before = sums.num_rows
        names = [*self._keys, *self._sums]
        table = rows.select(names)
        if before:
            table = join_tables([sums.select(names), table]).table
        columns = [(name, bounds_of(table.schema.field(name).type)) for name in self._sums]
        summed = [(name, bounds) for name, bounds in columns if bounds is not None]
        doubtful = self._doubtful(table, summed)
        found: dict[int, str] = {}
        for number, places in enumerate(numbers_of_rows(table, self._keys)):
            if doubtful[number]:
                values = table.take(pa.array(places, pa.int64()))
                for place, reason in self._beyond(values, summed):
                    found[places[place] - before] = reason
        return found

    def _doubtful(self, table: pa.Table, summed: Sequence[tuple[str, Bounds]]) -> NDArray[np.bool_]:
        """Return which groups, in the order of `group`, may have a sum that is beyond its type."""
        doubtful = np.zeros(group(table, self._keys, []).num_rows, np.bool_)
        for name, bounds in summed:
            sizes = _pc.abs(_pc.cast(table.column(name), bounds.exact)).cast(
                pa.float64(), safe=False
            )
            at = table.schema.get_field_index(name)
            sums = group(table.set_column(at, name, sizes), self._keys, [(name, "sum")])
            reached = _pc.fill_null(sums.column(f"{name}_sum"), 0.0).to_numpy()
            doubtful |= ~(reached <= float(bounds.high) * _MARGIN)
        return doubtful

    def _beyond(
        self, rows: pa.Table, summed: Sequence[tuple[str, Bounds]]
    ) -> Iterator[tuple[int, str]]:
        """Yield the rows of one group that are not to be added; the first of them may be its sums."""
        totals: dict[str, Any] = {}
        columns = {name: rows.column(name).to_pylist() for name, _ in summed}
        for row in range(rows.num_rows):
            after = dict(totals)
            for name, bounds in summed:
                if (value := columns[name][row]) is None:
                    continue
                total = totals.get(name, 0)
                after[name] = bounds.add(total, value) if name in totals else value
                if not bounds.hold(total, value, after[name]):
                    keys = rows.slice(row, 1).select(self._keys).to_pylist()[0]
                    reason = (
                        f"column {self._sums[name]}: {value} would make the sum {after[name]}, beyond "
                        f"{bounds.kind}, of {self._group(keys)}; cast {self._sums[name]} in the map"
                    )
                    yield row, reason
                    break
            else:
                totals = after


def named(keys: Mapping[str, Any]) -> str:
    """Name a group by the values of its keys."""
    return ", ".join(f"{name}={excerpt(value)}" for name, value in keys.items())


def _largest(rows: pa.Table, name: str) -> float:
    """Return the size of the number that is furthest from 0 and not infinite; 0 without one."""
    if name not in rows.column_names:
        return 0.0
    column: Any = rows.column(name)
    if pa.types.is_decimal(column.type):
        extremes = [each for each in _pc.min_max(column).as_py().values() if each is not None]
        return max((abs(float(each)) for each in extremes), default=0.0)
    values = column.to_numpy()  # nulls are NaN
    far = _furthest(values)
    return far if math.isfinite(far) else _furthest(values[np.isfinite(values)])


def _furthest(values: NDArray[Any]) -> float:
    return max(-float(values.min()), float(values.max())) if len(values) else 0.0
