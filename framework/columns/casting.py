"""A column in another type, with the rows that do not fit; and the steps that all casts are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .kinds import either, without

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .kinds import Array, Mask


class Misfit(TypeError):
    """No value of the Arrow type fits: the message says why."""


class Cast(NamedTuple):
    """A column in another type.

    Attributes:
        array: in rows that do not fit, null or anything.
        bad: the rows that do not fit.
        places: for nested values, the bad rows by the place inside the value: `.user.age`, `[]`.
        cut: the rows with times that lost digits.
    """

    array: Array
    bad: Mask = None
    places: Mapping[str, NDArray[np.bool_]] = {}
    cut: Mask = None


def parts(array: Array, cast: Callable[[Array], Array]) -> Cast:
    """Apply a cast that raises ArrowInvalid for values that do not fit; bisect to find them."""
    bad = np.zeros(len(array), dtype=np.bool_)
    made = []
    todo = [(0, len(array))]
    while todo:
        start, stop = todo.pop()
        part = array.slice(start, stop - start)
        try:
            made.append(cast(part))
        except pa.ArrowInvalid:
            if stop - start == 1:
                bad[start] = True
                made.append(cast(pa.nulls(1, array.type)))
            else:
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]
    if len(made) == 1:
        return Cast(made[0], bad if bad.any() else None)
    return Cast(pa.concat_arrays(made), bad)


def fitting(array: Array, bad: Mask, cast: Callable[[Array], Array]) -> Cast:
    """Make the known bad rows null, cast the others, and find further bad ones among these."""
    made = parts(without(array, bad), cast)
    return Cast(made.array, either(bad, made.bad))


def safely(to: Any) -> Callable[[Array], Array]:
    """Return Arrow's own cast to a type. It raises Misfit where there is none."""

    def cast(array: Array) -> Array:
        try:
            return pc.cast(array, to)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise no_cast(array, to) from error

    return cast


def no_cast(array: Array, to: Any) -> Misfit:
    """Return the error for a type that cannot become another."""
    return Misfit(f"{array.type} cannot become {to}")


def between(array: Array, low: int, high: int) -> Array:
    """Return which integers are in `[low, high]`; the bounds may lie outside the integers' type."""
    lowest, highest = limits(array.type)
    above = pc.greater_equal(array, pa.scalar(min(max(low, lowest), highest), array.type))
    below = pc.less_equal(array, pa.scalar(max(min(high, highest), lowest), array.type))
    return (
        pc.and_(above, below)
        if low <= highest and high >= lowest
        else pc.and_(above, pc.invert(above))
    )


def limits(kind: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest integer of a type."""
    if pa.types.is_signed_integer(kind):
        return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    return 0, 2**kind.bit_width - 1
