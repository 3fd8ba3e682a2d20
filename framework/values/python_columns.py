"""Python values to a column of a known type; a value that does not fit is refused alone."""

from __future__ import annotations

import inspect
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..columns.kinds import is_nested
from ..columns.texts import excerpt
from .foreign import without_missing
from .kept import are_kept, cannot_hold, changed, refused_inside

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOMENT: Final = pa.timestamp("us", tz="UTC")
_INT: Final = pa.int64()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INSTEAD: Final = "return numbers, texts, times, dicts of them, or lists whose items have one type"


def to_column(values: list[Any], kind: pa.DataType, refused: dict[int, str]) -> pa.Array[Any]:
    """Convert values to a column. One that does not fit becomes null, and `refused` gets its reason."""
    kept = are_kept(values, kind)  # the usual case: the classes of values are looked at once
    if not kept:
        values = without_missing(values)
    with suppress(Exception):  # a value may be of any class
        if kind == _MOMENT:  # twice as fast
            spans = [None if each is None else each - _EPOCH for each in values]
            return pa.array(spans, pa.duration("us")).view(kind)
    if not kept:
        refused |= changed(values, kind)
    if not refused:
        with suppress(Exception):
            return pa.array(values, kind)
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
            array: pa.Array[Any] = pa.array([values[row] for row in part], kind)
            array.validate(full=is_nested(array.type))  # of text beside bytes Arrow makes text
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
        return f"the number {excerpt(value)} does not fit int64; declare uint64 or a decimal"
    if kind is None and isinstance(value, timedelta):
        return f"no type of a column holds {excerpt(value)}: it is longer than 292,271 years"
    if kind is None and isinstance(value, Decimal):
        return (
            f"no type of a column holds {excerpt(value)}: it is no number, or has too many digits"
        )
    if kind is None:
        return f"no type of a column holds {excerpt(value)} ({_why(value, error)}); {_INSTEAD}"
    return refused_inside(value, kind) if is_nested(kind) else cannot_hold(kind, value)


def _why(value: Any, error: Exception) -> str:
    """Return why Arrow infers no type, in a few words; the class says it where Arrow knows none of it."""
    text = str(error)
    if isinstance(error, UnicodeEncodeError):
        return "a lone surrogate has no UTF-8 form"
    if "Expected dict key" in text:
        return "the keys of an object are texts"
    if isinstance(value, list):
        return "its items have several types, or one that no column holds"
    return type(value).__name__
