"""Columns as numbers and booleans: of the same value, or not at all."""

from __future__ import annotations

from decimal import Context, Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .casting import Cast, between, fitting, limits, no_cast, parts, safely
from .kinds import either, is_text, mask_of, rows_unless, rows_where, without

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .kinds import Array, Mask


_MOST_DIGITS: Final = 76
_INTEGER: Final = r"^[+-]?[0-9]+$"
_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_NOT_ZERO: Final = r"^[+-]?[0.]*[1-9]"
_FLOAT: Final = rf"(?i)^[+-]?(inf|infinity|nan)$|{_NUMBER}"

DIGITS: Final = {16: 11, 32: 24, 64: 53}
"""By the width of a float: the binary digits of the whole numbers that it has without a gap."""


def to_integer(array: Array, to: Any) -> Cast:
    """Cast whole numbers, booleans, text of digits, and spans in their unit."""
    kind = array.type
    if pa.types.is_integer(kind):
        return fitting(array, rows_unless(between(array, *limits(to))), safely(to))
    if pa.types.is_floating(kind):
        array = array.cast(pa.float64())
        low, high = limits(to)
        # 2.0**64 is the first float that a uint64 has not; float(2**64 - 1) is that one, too
        inside = pc.and_(
            pc.greater_equal(array, pa.scalar(float(low))),
            pc.less(array, pa.scalar(float(high + 1))),
        )
        whole = pc.and_(inside, pc.equal(pc.floor(array), array))
        return fitting(array, rows_unless(whole), lambda part: part.cast(to, safe=False))
    if is_text(kind):
        return fitting(
            array, rows_unless(pc.match_substring_regex(array, _INTEGER)), _after_plus(to)
        )
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return parts(array, safely(to))
    if pa.types.is_duration(kind):  # as ClickHouse's tables have them
        return to_integer(array.cast(pa.int64()), to)
    raise no_cast(array, to)


def _after_plus(to: Any) -> Callable[[Array], Array]:
    return lambda part: pc.cast(pc.utf8_ltrim(part, characters="+"), to)


def to_float(array: Array, to: Any) -> Cast:
    """Cast numbers, and text of numbers, to the nearest number.

    Whole numbers must keep their value, also as text and decimals. What is finite stays so, and what is not 0
    does not become 0.
    """
    kind = array.type
    if pa.types.is_integer(kind):
        digits = DIGITS[to.bit_width]
        if kind.bit_width > digits:
            exact = 2**digits
            large = rows_unless(between(array, -exact, exact))
            if large is not None:
                return _exact_floats(array, to, large)
        return Cast(array.cast(to, safe=False))
    if is_text(kind):
        odd = rows_unless(pc.match_substring_regex(array, _FLOAT))
        made = fitting(array, odd, _after_plus(pa.float64()))
        finite = pc.invert(pc.match_substring_regex(array, r"(?i)inf"))
        overflown = rows_where(pc.and_(finite, pc.is_inf(made.array)))
        some = pc.match_substring_regex(array, _NOT_ZERO)
        lost = rows_where(pc.and_(some, pc.equal(made.array, pa.scalar(0.0))))
        narrow = to_float(made.array, to)
        bad = either(either(made.bad, overflown), either(lost, narrow.bad))
        return Cast(narrow.array, either(bad, _changed(array, narrow.array)))
    if pa.types.is_decimal(kind):
        # Arrow's own cast of 0.0185 is not the nearest float
        made = to_float(array.cast(pa.string()).cast(pa.float64()), to)
        return made._replace(bad=either(made.bad, _changed(array, made.array)))
    if not pa.types.is_floating(kind):
        return parts(array, safely(to))
    wide = array.cast(pa.float64())
    made = wide.cast(to, safe=False)
    if to.bit_width >= kind.bit_width:
        return Cast(made)
    back, zero = made.cast(pa.float64()), pa.scalar(0.0)
    lost = pc.and_(pc.is_inf(back), pc.invert(pc.is_inf(wide)))
    lost = pc.or_(lost, pc.and_(pc.equal(back, zero), pc.not_equal(wide, zero)))
    return Cast(made, rows_where(lost))


def _changed(numbers: Array, made: Array) -> Mask:
    """Mark whole numbers, as text without an exponent or as decimals, that are no float."""
    exact = float(2 ** DIGITS[made.type.bit_width])
    large = rows_where(pc.greater_equal(pc.abs(made.cast(pa.float64())), pa.scalar(exact)))
    if large is None:
        return None
    rows = [row for row in np.flatnonzero(large).tolist() if _differs(numbers[row], made[row])]
    return mask_of(rows, len(made)) if rows else None


def _differs(number: Any, nearest: Any) -> bool:
    text, of_float = str(number.as_py()), nearest.as_py()
    if not isfinite(of_float) or (is_text(number.type) and "e" in text.lower()):
        return False
    value = Decimal(text)
    return value == value.to_integral_value() and value != Decimal(of_float)


def _exact_floats(array: Array, to: Any, large: NDArray[np.bool_]) -> Cast:
    """Find the integers that are no float: large ones with too many digits."""
    made = array.cast(to, safe=False)
    bad = large.copy()
    for row in np.flatnonzero(large).tolist():
        bad[row] = made[row].as_py() != array[row].as_py()
    return Cast(made, bad if bad.any() else None)


def to_bool(array: Array, to: Any) -> Cast:
    """Cast 0 and 1, and the texts of booleans."""
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        one_or_zero = pc.or_(
            pc.equal(array, pa.scalar(0, kind)), pc.equal(array, pa.scalar(1, kind))
        )
        return fitting(array, rows_unless(one_or_zero), safely(to))
    return parts(array, safely(to))


def to_decimal(array: Array, to: Any) -> Cast:
    """Cast numbers, and text of numbers, that have no more digits than the type."""
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        # Arrow refuses the whole column unless the type has room for the widest integer
        room = pa.decimal256(min(76, 20 + max(0, to.scale)), min(56, max(0, to.scale)))
        return parts(
            array.cast(pa.int64()) if pa.types.is_boolean(kind) else array,
            lambda part: pc.cast(pc.cast(part, room), to),
        )
    if pa.types.is_floating(kind):
        # the shortest text of a float has its value: 1.1 is 1.1, though the nearest float is a little more
        finite = rows_unless(pc.is_finite(array))
        shortest = without(array, finite).cast(pa.string())
        if kind.bit_width < 64:  # of a float32 it has 8 digits
            large = pc.greater(pc.abs(array), pa.scalar(2.0**24, kind))
            shortest = pc.if_else(large, array.cast(pa.float64()).cast(pa.string()), shortest)
        text = to_decimal(shortest, to)
        return Cast(text.array, either(finite, text.bad))
    if is_text(kind):
        bad = rows_unless(pc.match_substring_regex(array, _NUMBER))
        digits = _written_out(without(array, bad).cast(pa.string()))
        few = pc.less(pc.binary_length(digits), pa.scalar(_MOST_DIGITS))
        # by 76 digits, because Arrow lets large numbers in text wrap
        wide = fitting(
            digits, either(bad, rows_unless(few)), safely(pa.decimal256(76, max(0, to.scale)))
        )
        narrow = parts(wide.array, safely(to))
        return Cast(narrow.array, either(wide.bad, narrow.bad))
    return parts(array, safely(to))


def decimal_text(text: Array, precision: int, scale: int) -> Cast:
    """Check numbers in text that have more digits than a type of Arrow."""

    def fits(number: str) -> bool:
        try:
            value = Decimal(number)
        except ArithmeticError:
            return False
        if not value.is_finite():
            return value.is_nan()
        _, digits, exponent = value.normalize(Context(prec=max(1, len(number)))).as_tuple()
        return -int(exponent) <= scale and len(digits) + int(exponent) <= precision - scale

    known = pa.array([each is None or fits(each) for each in text.to_pylist()])
    return Cast(text, rows_unless(known))


def _written_out(text: Array) -> Array:
    """Write numbers without an exponent: 1.5e3 is 1500. Those with too many digits become too long."""
    if not pc.any(pc.match_substring_regex(text, "[eE]")).as_py():
        return text

    def write(number: Decimal) -> str:
        return f"{number:f}" if abs(number.adjusted()) < _MOST_DIGITS else "9" * _MOST_DIGITS

    numbers = (None if each is None else Decimal(each) for each in text.to_pylist())
    return pa.array([None if each is None else write(each) for each in numbers], pa.string())
