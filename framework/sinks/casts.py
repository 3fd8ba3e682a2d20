"""Cast whole Arrow arrays, and report the rows that do not fit; shared by the sinks with typed columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "Array",
    "Cast",
    "Mask",
    "Misfit",
    "between",
    "cast_fitting",
    "cast_parts",
    "either",
    "excerpt",
    "is_list",
    "is_text",
    "lengths_of",
    "lists_of",
    "lists_with",
    "misfits",
    "offsets_of",
    "parents_of",
    "to_integer",
    "with_items",
]

Array: TypeAlias = Any
"""A pyarrow array of any type; the stubs distinguish item types that are only known at run time."""

Mask: TypeAlias = "NDArray[np.bool_] | None"
"""True for the rows that do not fit; None if all fit."""

_INTEGER = r"^-?\d+$"
_EXCERPT = 60


class Misfit(TypeError):
    """No value of the Arrow type fits the column's type: the strategy or the table is wrong."""


class Cast(NamedTuple):
    """A cast column, and the rows that do not fit (None: all fit).

    Rows that do not fit have null or an arbitrary value in `array`.
    """

    array: Array
    bad: Mask = None


def is_text(kind: pa.DataType) -> bool:
    """Return whether the type is text."""
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether the type is one of lists."""
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
    )


def excerpt(value: object) -> str:
    """Return the beginning of a value, for a message."""
    text = repr(value)
    return text if len(text) <= _EXCERPT else text[:_EXCERPT] + "..."


def either(one: Mask, other: Mask) -> Mask:
    """Return the rows that are in one mask or the other."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def misfits(fits: Array) -> Mask:
    """Return the rows where `fits` is false; null fits."""
    if pc.all(fits).as_py() is not False:
        return None
    return ~np.asarray(pc.coalesce(fits, pa.scalar(value=True)), dtype=np.bool_)


def between(array: Array, low: int, high: int) -> Array:
    """Return which numbers are in `[low, high]`; both limits must be values of the array's type."""
    above = pc.greater_equal(array, pa.scalar(low, array.type))
    return pc.and_(above, pc.less_equal(array, pa.scalar(high, array.type)))


def cast_parts(array: Array, cast: Callable[[Array], Array]) -> Cast:
    """Apply a cast that raises ArrowInvalid for values that do not fit; bisect to find them."""
    bad = np.zeros(len(array), dtype=np.bool_)
    parts = []
    todo = [(0, len(array))]
    while todo:
        start, stop = todo.pop()
        part = array.slice(start, stop - start)
        try:
            parts.append(cast(part))
        except pa.ArrowInvalid:
            if stop - start == 1:
                bad[start] = True
                parts.append(cast(pa.nulls(1, array.type)))
            else:
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]
    if len(parts) == 1:
        return Cast(parts[0], bad if bad.any() else None)
    return Cast(pa.concat_arrays(parts), bad)


def cast_fitting(array: Array, fits: Array, to: pa.DataType) -> Cast:
    """Cast the rows that fit; the others become null."""
    bad = misfits(fits)
    if bad is not None:
        array = pc.if_else(pa.array(~bad), array, pa.scalar(None, array.type))
    cast = cast_parts(array, lambda part: pc.cast(part, to))
    return Cast(cast.array, either(bad, cast.bad))


def to_integer(array: Array, to: pa.DataType) -> Cast:
    """Cast numbers, and text of digits, to integers of the same value."""
    if array.type == to:
        return Cast(array)
    if pa.types.is_floating(array.type):
        whole = pc.and_(pc.is_finite(array), pc.equal(pc.round(array), array))
        return cast_fitting(array, whole, to)
    if pa.types.is_integer(array.type):
        (low, high), (lowest, highest) = _limits(to), _limits(array.type)
        return cast_fitting(array, between(array, max(low, lowest), min(high, highest)), to)
    if is_text(array.type):
        return cast_fitting(array, pc.match_substring_regex(array, _INTEGER), to)
    return cast_parts(array, lambda part: pc.cast(part, to))


def _limits(kind: pa.DataType) -> tuple[int, int]:
    width = kind.bit_width
    if pa.types.is_signed_integer(kind):
        return -(2 ** (width - 1)), 2 ** (width - 1) - 1
    return 0, 2**width - 1


def lists_of(array: Array) -> Array:
    """Cast lists of any kind to the plain kind. Raises Misfit: the values are not lists."""
    kind = array.type
    if pa.types.is_list(kind):
        return array
    if is_list(kind):
        return pc.cast(array, pa.list_(kind.value_type))
    raise Misfit(f"{kind} is not a list")


def offsets_of(lengths: NDArray[Any]) -> Array:
    """Return the offset where each list begins, and the end of the last one."""
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def lengths_of(lists: Array) -> NDArray[np.int64]:
    """Return the number of items of each list; 0 for null."""
    lengths = pc.coalesce(pc.list_value_length(lists), pa.scalar(0, pa.int32()))
    return np.array(lengths, dtype=np.int64)


def parents_of(lists: Array) -> NDArray[np.int64]:
    """Return, for each item of `lists.flatten()`, the index of its list; null lists have no items."""
    return np.repeat(np.arange(len(lists)), lengths_of(lists))


def lists_with(lists: Array, bad_items: Mask) -> Mask:
    """Return the lists with an item that does not fit."""
    if bad_items is None:
        return None
    bad = np.zeros(len(lists), dtype=np.bool_)
    bad[parents_of(lists)[bad_items]] = True
    return bad


def with_items(lists: Array, items: Cast) -> Cast:
    """Replace the items of lists; a list with an item that does not fit does not fit."""
    null = lists.is_null() if lists.null_count else None
    offsets = offsets_of(lengths_of(lists))
    array = pa.ListArray.from_arrays(offsets, items.array, mask=null)
    return Cast(array, lists_with(lists, items.bad))
