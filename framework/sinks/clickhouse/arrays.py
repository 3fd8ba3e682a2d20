"""Casts of whole Arrow arrays that say which rows they failed for."""

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
    "ColumnType",
    "Mask",
    "Misfit",
    "between",
    "cast_fitting",
    "cast_parts",
    "either",
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
"""A pyarrow array of any type: the stubs want to know the type of the items, which only the data know."""

ColumnType: TypeAlias = Any
"""A ClickHouse type of clickhouse-connect, whose attributes differ from type to type."""

Mask: TypeAlias = "NDArray[np.bool_] | None"
"""True for the rows that do not fit; None when all do."""

_INTEGER = r"^-?\d+$"


class Misfit(TypeError):
    """No value of the Arrow type can become one of the ClickHouse type: the strategy is wrong."""


class Cast(NamedTuple):
    """A column in the form that is sent, and which rows do not fit (None: all do).

    Rows that do not fit have null or some other value in `array`.
    """

    array: Array
    bad: Mask = None


def is_text(kind: pa.DataType) -> bool:
    """Whether values of the type are characters."""
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def either(one: Mask, other: Mask) -> Mask:
    """The rows that are in one mask or the other."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def misfits(fits: Array) -> Mask:
    """The rows where `fits` is false; null fits."""
    if pc.all(fits).as_py() is not False:
        return None
    return ~np.asarray(pc.coalesce(fits, pa.scalar(value=True)), dtype=np.bool_)


def between(array: Array, low: int, high: int) -> Array:
    """Which numbers are in `[low, high]`; both limits must be values of the array's type."""
    above = pc.greater_equal(array, pa.scalar(low, array.type))
    return pc.and_(above, pc.less_equal(array, pa.scalar(high, array.type)))


def cast_parts(array: Array, cast: Callable[[Array], Array]) -> Cast:
    """Apply a cast that raises ArrowInvalid for values that it cannot take; halve to find those."""
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
    """Numbers, and text of digits, as integers that keep their value."""
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
    """An array of lists of any kind as the plain kind.

    Raises:
        Misfit: its values are no lists.
    """
    kind = array.type
    if pa.types.is_list(kind):
        return array
    if (
        pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
    ):
        return pc.cast(array, pa.list_(kind.value_type))
    raise Misfit(f"{kind} is no list")


def offsets_of(lengths: NDArray[Any]) -> Array:
    """Where each list begins, and the last one ends."""
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def lengths_of(lists: Array) -> NDArray[np.int64]:
    """The number of items of each list; 0 for null."""
    lengths = pc.coalesce(pc.list_value_length(lists), pa.scalar(0, pa.int32()))
    return np.array(lengths, dtype=np.int64)


def parents_of(lists: Array) -> NDArray[np.int64]:
    """For each item of all lists, the number of its list."""
    return np.asarray(pc.list_parent_indices(lists), dtype=np.int64)


def lists_with(lists: Array, bad_items: Mask) -> Mask:
    """The lists that do not fit because one of their items does not."""
    if bad_items is None:
        return None
    bad = np.zeros(len(lists), dtype=np.bool_)
    bad[parents_of(lists)[bad_items]] = True
    return bad


def with_items(lists: Array, items: Cast) -> Cast:
    """Lists of the same lengths with other items; a list does not fit if one of its items does not."""
    null = lists.is_null() if lists.null_count else None
    offsets = offsets_of(lengths_of(lists))
    array = pa.ListArray.from_arrays(offsets, items.array, mask=null)
    return Cast(array, lists_with(lists, items.bad))
