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
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import StrategyError, as_exception, place_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

_ACCURACY: Final = 0.01
_LOG_GAMMA: Final = math.log((1 + _ACCURACY) / (1 - _ACCURACY))
_BEYOND: Final = 40_000
"""Above the number of each bucket, between the smallest and the largest double."""

FAILED: Final = "kmr failed"
"""The column of the reasons for which functions have no result of a group; null where they have."""

_QUANTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


class WindowFunction(ABC):
    """An aggregate of one's own for a `Window`: `columns={"spread": ("ms", Spread())}`.

    Each group of a window has a state. How its rows are divided among calls of `add` differs from one reading
    of the log to another, and the result must not: `merge(add(init(), a), add(init(), b))` has to be equal to
    `add(init(), a + b)`, for values in the order of their offsets.

    Where a method raises, or returns a value of another type, the row of this group goes to `reduce_err`, as
    a letter of the row. If all of 100 rows or more fail in the same words, the worker ends with them.

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

    def states(self, table: pa.Table, name: str, places: Iterable[Sequence[int]]) -> Made:
        """Return the state of each group, of the values of a column at its places."""
        whole: Any = table.column(name).combine_chunks()

        def state(at: Sequence[int]) -> Any:
            return self._call("add", self._call("init"), whole.take(pa.array(at, pa.int64())))

        return self._each(state, places, self.state, "state")

    def merged(self, table: pa.Table, name: str, places: Iterable[Sequence[int]]) -> Made:
        """Return the state of each group, of the states of a column at its places."""
        known, failed = table.column(name).to_pylist(), failures_in(table)

        def state(at: Sequence[int]) -> Any:
            _require_none_failed(failed[place] for place in at)
            return reduce(partial(self._call, "merge"), [known[place] for place in at])

        return self._each(state, places, self.state, "state")

    def finished(self, table: pa.Table, name: str) -> Made:
        """Return the results of the states of a column."""

        def result(state: Any) -> Any:
            _require_none_failed([state[1]])
            return self._call("finish", state[0])

        states = zip(table.column(name).to_pylist(), failures_in(table), strict=True)
        return self._each(result, states, self.result, "result")

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method. Raises StrategyError, with its name and place, if it fails."""
        try:
            return getattr(self, method)(*arguments)
        except BaseException as raised:  # noqa: BLE001  user code
            error = as_exception(raised)
            raise StrategyError(
                f"Window: {self}.{method} failed: {reason_of(error)} ({place_of(error)})"
            ) from error

    def _each(
        self, make: Callable[[Any], Any], given: Iterable[Any], kind: pa.DataType, name: str
    ) -> Made:
        values: list[Any] = []
        failed: dict[int, str] = {}
        for number, each in enumerate(given):
            values.append(None)
            try:
                values[number] = make(each)
            except StrategyError as error:
                failed[number] = str(error)
        try:
            return Made(pa.array(values, kind), failed)
        except Exception:  # noqa: BLE001  what a value of user code raises
            for number, value in enumerate(values):
                try:
                    pa.array([value], kind)
                except Exception as error:  # noqa: BLE001
                    values[number] = None
                    failed[number] = (
                        f"Window: {self}.{name} is {kind}, and a value is none: {reason_of(error)}"
                    )
        return Made(pa.array(values, kind), failed)


class Made(NamedTuple):
    """What a function made of groups.

    Attributes:
        values: of each group; null where the function failed.
        failed: the groups for which it failed, and why.
    """

    values: pa.Array[Any]
    failed: dict[int, str]

    @property
    def reasons(self) -> pa.Array[Any]:
        """The column `FAILED` of the groups."""
        reasons = [self.failed.get(number) for number in range(len(self.values))]
        return pa.array(reasons, pa.string())


def failures_in(table: pa.Table) -> list[str | None]:
    """Return the column `FAILED` of groups; null of all where they have none."""
    if FAILED not in table.column_names:
        return [None] * table.num_rows
    found: list[str | None] = table.column(FAILED).to_pylist()
    return found


def _require_none_failed(reasons: Iterable[str | None]) -> None:
    for reason in filter(None, reasons):
        raise StrategyError(reason)


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
