"""The event times of rows, as `Window` and `Distinct` read them.

A record may have none, or one that it cannot have: a single time far in the future would close, or forget,
everything before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from ..record import Batch

NO_TIME: Final = -(2**62)
"""The time of a row that has none, or has one that its record cannot have, as one after the year 148107."""


def require_time(owner: str, name: str, kind: pa.DataType) -> None:
    """Raise StrategyError unless a column of this type has times; `owner` is who reads it."""
    types: Any = pa.types
    if not (types.is_timestamp(kind) or types.is_null(kind)):
        raise StrategyError(
            f"{owner}: time={name!r} is {kind}, not a timestamp; make it one (a datetime) in the map or in "
            "the value's class"
        )


def event_times(
    column: pa.ChunkedArray[Any],
    batches: Iterable[Batch],
    record_times: Callable[[], pa.Array[Any] | pa.ChunkedArray[Any]],
    ahead: int | None,
) -> NDArray[np.int64]:
    """Return event times in microseconds since 1970: `NO_TIME` for a null, or one that is too far ahead.

    They follow from the records alone, so that a second reading decides the same. A timestamp of no clock (of
    type -1, or up to 1970) tells nothing.

    Args:
        column: of timestamps.
        batches: the records of the rows.
        record_times: the timestamps of the rows' records; called only if a time is ahead of the earliest one.
        ahead: how much later than its record's timestamp a time may be, in microseconds; None: any.
    """
    times = _micros(column)
    if ahead is None:
        return times
    lowest = min(map(_lowest, batches), default=-1)
    if not len(times) or lowest < 0 or times.max() - ahead <= lowest:
        return times
    recorded = record_times().cast(pa.int64()).to_numpy()
    return np.where((recorded > 0) & (times - ahead > recorded), NO_TIME, times)


def _micros(column: pa.ChunkedArray[Any]) -> NDArray[np.int64]:
    """Return times in microseconds: `NO_TIME` for a null, and where these are beyond 62 bits."""
    numbers: Any = column.cast(pa.int64())
    if numbers.null_count:
        numbers = numbers.fill_null(NO_TIME)
    times: NDArray[np.int64] = numbers.to_numpy()
    unit = getattr(column.type, "unit", "us")
    if unit == "ns":
        return np.where(times == NO_TIME, NO_TIME, times // 1000)
    factor = {"s": 1_000_000, "ms": 1000}.get(unit, 1)
    most = -NO_TIME // factor
    if len(times) and (times.max() > most or (factor > 1 and times.min() < -most)):
        times = np.where((times > most) | (times < -most), NO_TIME // factor, times)
    return times * factor if factor > 1 else times


def _lowest(batch: Batch) -> int:
    """Return the earliest timestamp of some records; -1 if they are of no clock, or there is none."""
    kinds, times = (_numbers(batch, name) for name in ("timestampType", "timestamp"))
    return -1 if not len(times) or kinds.min(initial=0) < 0 else int(times.min())


def _numbers(batch: Batch, name: str) -> NDArray[np.int64]:
    column: Any = batch.times.column(name)
    if column.null_count:
        column = column.drop_null()
    numbers: NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return numbers
