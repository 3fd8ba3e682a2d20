"""Functions of windows beside those of Arrow: quantiles, and aggregates of one's own.

Quantiles are those of DDSketch (Masson, Rim, Lee, VLDB 2019): values are counted in buckets whose bounds grow
by 2 %, so that a quantile is wrong by at most 1 % of itself. Counts can be added in any order and division,
so a second reading has the same result. The sketches of libraries have not: they choose at random (KLL, REQ),
or merge by distance (t-digest). Those of `ddsketch` could, but take a call of Python for each value; here the
counts are an Arrow table, as other aggregates are.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import StrategyError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ACCURACY: Final = 0.01
_LOG_GAMMA: Final = math.log((1 + _ACCURACY) / (1 - _ACCURACY))
_BEYOND: Final = 40_000
"""Above the number of each bucket, between the smallest and the largest double."""

_QUANTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


class WindowFunction(ABC):
    """An aggregate of one's own for a `Window`: `columns={"spread": ("ms", Spread())}`.

    Each group of a window has a state. How its rows are divided among calls of `add` differs from one reading
    of the log to another, and the result must not: `merge(add(init(), a), add(init(), b))` has to be equal to
    `add(init(), a + b)`, for values in the order of their offsets.

    Example:
        ```python
        import pyarrow as pa
        import pyarrow.compute as pc

        from kmr import Window

        class Spread(Window.Function):
            state = pa.list_(pa.float64())
            result = pa.float64()

            def init(self):
                return []

            def add(self, state, values):
                if values.null_count == len(values):
                    return state
                found = pc.min_max(values)
                return self.merge(state, [found["min"].as_py(), found["max"].as_py()])

            def merge(self, state, other):
                both = [*state, *other]
                return [min(both), max(both)] if both else []

            def finish(self, state):
                return state[1] - state[0] if state else None

        window = Window("1m", time="ts", late="drop", columns={"spread": ("ms", Spread())})
        ```

    Attributes:
        state: the Arrow type of a state; states are kept, and saved on Spark, in a column of it.
        result: the Arrow type of the new column.
    """

    state: ClassVar[pa.DataType]
    result: ClassVar[pa.DataType]

    @abstractmethod
    def init(self) -> Any:
        """Return the state of a group without rows."""

    @abstractmethod
    def add(self, state: Any, values: pa.Array[Any]) -> Any:
        """Return a state with more values of its group, in the order of their offsets, with nulls."""

    @abstractmethod
    def merge(self, state: Any, other: Any) -> Any:
        """Return the state of the values of both; those of `other` came later."""

    @abstractmethod
    def finish(self, state: Any) -> Any:
        """Return the result of a state."""

    def __str__(self) -> str:
        """The name of the class, which names the function in the memory of a query on Spark."""
        return type(self).__name__

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method. Raises StrategyError, with its name, if it fails."""
        try:
            return getattr(self, method)(*arguments)
        except Exception as error:
            raise StrategyError(
                f"Window: {self}.{method} failed: {type(error).__name__}: {error}"
            ) from error

    def states(self, groups: pa.Table, values: pa.ChunkedArray[Any], places: str) -> pa.Array[Any]:
        """Return the state of each group, of the values at its places."""
        whole: Any = values.combine_chunks()
        made = [
            self.call("add", self.call("init"), whole.take(pa.array(at, pa.int64())))
            for at in _places(groups, places)
        ]
        return self._typed(made, self.state, "state")

    def merged(self, groups: pa.Table, states: pa.ChunkedArray[Any], places: str) -> pa.Array[Any]:
        """Return the state of each group, of the states at its places."""
        known = states.to_pylist()
        made = [
            reduce(
                lambda one, other: self.call("merge", one, other), [known[place] for place in at]
            )
            for at in _places(groups, places)
        ]
        return self._typed(made, self.state, "state")

    def finished(self, states: pa.ChunkedArray[Any]) -> pa.Array[Any]:
        """Return the results of states."""
        made = [self.call("finish", state) for state in states.to_pylist()]
        return self._typed(made, self.result, "result")

    def _typed(self, values: list[Any], kind: pa.DataType, name: str) -> pa.Array[Any]:
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise StrategyError(
                f"Window: {self}.{name} is {kind}, and a value is none: {error}"
            ) from error


def _places(groups: pa.Table, places: str) -> list[list[int]]:
    found: Any = groups.column(places).to_pylist()
    return list(found)


def quantile_of(function: object) -> float | None:
    """Return which quantile a function such as `p95` is, from 0 to 1; None of another one."""
    found = _QUANTILE.fullmatch(function) if isinstance(function, str) else None
    return None if found is None else float(found[1]) / 100


def has_quantiles(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers; null is the type of a column without values."""
    types: Any = pa.types
    return any(
        getattr(types, f"is_{each}")(kind) for each in ("integer", "floating", "decimal", "null")
    )


def buckets_of(values: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    """Return the bucket of each number: larger for larger ones, null for nulls and NaN."""
    numbers: Any = values.cast(pa.float64(), safe=False)
    given = numbers.fill_null(math.nan).to_numpy()
    size = np.abs(given)
    is_number = ~np.isnan(given)
    with np.errstate(divide="ignore"):
        logs = np.where(is_number, np.log(np.where(is_number, size, 1.0)), 0.0)
    within = np.clip(np.ceil(logs / _LOG_GAMMA), 1 - _BEYOND, _BEYOND - 1)
    numbered = np.where(size > 0, (within + _BEYOND) * np.sign(given), 0.0)
    return pa.array(np.where(is_number, numbered, 0).astype(np.int64), mask=~is_number)


def quantiles(groups: pa.Table, bucket: str, count: str, share: float) -> pa.Array[Any]:
    """Return a quantile of each group, null without a value, from the lists of its buckets and counts."""
    buckets: Any = groups.column(bucket).combine_chunks()
    counts: Any = groups.column(count).combine_chunks()
    group = np.repeat(np.arange(groups.num_rows), pc.list_value_length(buckets).to_numpy())
    numbers = buckets.flatten().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.lexsort((numbers, group))
    numbers, group, many = numbers[order], group[order], counts.flatten().to_numpy()[order]
    total = np.bincount(group, many, groups.num_rows).astype(np.int64)
    before = np.cumsum(total) - total
    rank = np.floor(share * (total - 1)).astype(np.int64)
    place = np.searchsorted(np.cumsum(many), before + rank, side="right")
    found: NDArray[np.int64] = numbers[np.minimum(place, len(numbers) - 1)]
    power = (np.abs(found) - _BEYOND) * _LOG_GAMMA
    with np.errstate(over="ignore"):
        middle = np.exp(power) * (1 - _ACCURACY)
    values = np.where(found == 0, 0.0, np.sign(found) * middle)
    return pa.array(values, pa.float64(), mask=total == 0)
