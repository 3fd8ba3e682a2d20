"""Python values to a column of a known type; a value that does not fit is refused alone."""

from __future__ import annotations

import inspect
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..columns.fitting import fit
from ..columns.kinds import either, with_leaves
from ..columns.texts import excerpt
from ..errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOMENT: Final = pa.timestamp("us", tz="UTC")
_INT: Final = pa.int64()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INSTEAD: Final = "return numbers, texts, times, dicts of them, or lists whose items have one type"


def to_column(values: list[Any], kind: pa.DataType, refused: dict[int, str]) -> pa.Array[Any]:
    """Convert values to a column. One that does not fit becomes null, and `refused` gets its reason."""
    with suppress(Exception):  # a value may be of any class
        if kind == _MOMENT:  # twice as fast
            spans = [None if each is None else each - _EPOCH for each in values]
            return pa.array(spans, pa.duration("us")).view(kind)
    wide, fine = with_leaves(kind, _wide_float), with_leaves(kind, _wide)
    if fine != wide and not any(map(_has_number, values)):  # a number of a time is in its unit
        wide = fine
    if pa.types.is_date(kind):  # Arrow keeps the day of a datetime
        for row, each in enumerate(values):
            if isinstance(each, datetime) and each.time() != time():
                refused.setdefault(row, f"{kind} cannot hold {excerpt(each)}")
    if wide != kind:  # Arrow makes infinity of what a narrow float cannot hold, and cuts times
        cast = fit(to_column(values, wide, refused), kind)
        wrong = either(cast.bad, cast.cut)
        for row in () if wrong is None else np.flatnonzero(wrong).tolist():
            refused.setdefault(row, f"{kind} cannot hold {excerpt(values[row])}")
        found: pa.Array[Any] = cast.array
        return found
    with suppress(Exception):
        return pa.array(values, kind)
    return what_fits(values, kind, refused)


def _has_number(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_number, value.values()))
    return isinstance(value, int) or (
        isinstance(value, list | tuple) and any(map(_has_number, value))
    )


def _wide_float(kind: Any) -> Any:
    return pa.float64() if pa.types.is_floating(kind) else kind


def _wide(kind: Any) -> Any:
    """Return the widest float for a float, and a time of microseconds, as Python's, for a coarser one."""
    if getattr(kind, "unit", None) not in ("s", "ms"):
        return _wide_float(kind)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def what_fits(values: list[Any], kind: pa.DataType, refused: dict[int, str]) -> pa.Array[Any]:
    """Convert the values that are not refused; one that does not fit is refused, too, and becomes null."""
    for _ in convert(
        values, [row for row in range(len(values)) if row not in refused], kind, refused
    ):
        pass
    return pa.array([None if at in refused else each for at, each in enumerate(values)], kind)


def convert(
    values: list[Any], rows: list[int], kind: pa.DataType | None, refused: dict[int, str]
) -> Iterator[tuple[list[int], pa.Array[Any]]]:
    """Convert the values of some rows, bisecting them; `refused` gets those that cannot be converted."""
    todo = [rows]
    while todo:
        part = todo.pop()
        try:
            array = pa.array([values[row] for row in part], kind)
        except Exception as error:  # noqa: BLE001
            if len(part) == 1:
                refused[part[0]] = _reason(values[part[0]], kind, error)
            else:
                middle = len(part) // 2
                todo += [part[middle:], part[:middle]]
        else:
            yield part, array


def _reason(value: Any, kind: pa.DataType | None, error: Exception) -> str:
    """Say what to do about a value that Arrow refuses."""
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine; await it, and make the map `async def`"
    if isinstance(value, int) and not -(2**63) <= value < 2**63 and (kind is None or kind == _INT):
        return f"the number {value} does not fit 64 bits; declare uint64 or a decimal"
    if kind is None and isinstance(value, Decimal | timedelta):
        return (
            f"no type of a column holds {excerpt(value)}: it is no number, or has too many digits"
        )
    if kind is None and type(value).__module__ != "builtins":
        name = type(value).__name__
        return f"{name} is no type of a column; {_INSTEAD}"
    if kind is None:
        return f"no type of a column holds {excerpt(value)} ({reason_of(error)}); {_INSTEAD}"
    return reason_of(error)
