"""Columns as times: dates, points in time, times of day and spans. Too many digits are cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .casting import Cast, Misfit, between, limits, no_cast, parts
from .kinds import either, is_text, rows_unless, rows_where, without
from .texts import UNITS

if TYPE_CHECKING:
    from .kinds import Array, Mask


_DAY: Final = 86_400
_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
_OFFSET: Final = r"([zZ]|[+-][0-9]{2}(:?[0-9]{2})?)"
_MOMENT: Final = rf"^{_DATE}([T ][0-9]{{2}}(:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]+)?)?)?{_OFFSET}?)?$"
_ZONED: Final = rf"[T ].*{_OFFSET}$"


def to_date(array: Array, to: Any, zone: str | None = None) -> Cast:
    """Cast dates, the days of timestamps (in UTC), and text; its time of a day must be midnight."""
    kind = array.type
    if is_text(kind) or pa.types.is_timestamp(kind):
        moments = to_timestamp(
            array, pa.timestamp("us") if is_text(kind) else pa.timestamp(kind.unit), zone
        )
        days, cut = _divided(moments.array.cast(pa.int64()), _DAY * UNITS[moments.array.type.unit])
        made = _days(days, to)
        bad, cut = either(moments.bad, made.bad), either(moments.cut, cut)
        return (
            Cast(made.array, either(bad, cut)) if is_text(kind) else Cast(made.array, bad, {}, cut)
        )
    if pa.types.is_date32(kind):
        return _days(array.cast(pa.int32()).cast(pa.int64()), to)
    if pa.types.is_date64(kind):
        days, cut = _divided(array.cast(pa.int64()), _DAY * 1000)
        return _days(days, to)._replace(cut=cut)
    raise no_cast(array, to)


def _days(days: Array, to: Any) -> Cast:
    if pa.types.is_date64(to):
        return _scaled(days, _DAY, UNITS["ms"], to)
    bad = rows_unless(between(days, *limits(pa.int32())))
    return Cast(without(days, bad).cast(pa.int32()).cast(to), bad)


def _divided(array: Array, by: int) -> tuple[Array, Mask]:
    """Return the quotients, rounded down, and the rows where a rest is lost."""
    numbers = np.asarray(pc.fill_null(array, 0), dtype=np.int64)
    quotient, rest = np.divmod(numbers, by)
    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(quotient, mask=null), rest != 0 if rest.any() else None


def to_timestamp(array: Array, to: Any, zone: str | None = None) -> Cast:
    """Cast points in time, dates, and text in ISO 8601."""
    kind = array.type
    if is_text(kind):
        return _parsed(array, to, zone)
    if pa.types.is_date32(kind):
        return _scaled(array.cast(pa.int32()).cast(pa.int64()), _DAY, UNITS[to.unit], to)
    if pa.types.is_date64(kind):
        return _scaled(array.cast(pa.int64()), UNITS["ms"], UNITS[to.unit], to, per_second=True)
    if pa.types.is_timestamp(kind):
        return _scaled(
            array.cast(pa.int64()), UNITS[kind.unit], UNITS[to.unit], to, per_second=True
        )
    raise no_cast(array, to)


def _scaled(numbers: Array, one: int, other: int, to: Any, *, per_second: bool = False) -> Cast:
    """Convert integers from one unit to another; finer digits are cut off."""
    if per_second and one > other:
        quotient, cut = _divided(numbers, one // other)
        return Cast(quotient.cast(to), None, {}, cut)
    factor = other // one if per_second else one * other
    most = (2**63 - 1) // factor
    bad = rows_unless(between(numbers, -most, most)) if factor > 1 else None
    return Cast(pc.multiply(without(numbers, bad), pa.scalar(factor, pa.int64())).cast(to), bad)


def _parsed(text: Array, to: Any, zone: str | None) -> Cast:
    """Parse text with `T` or a space, with a zone or without, of any precision."""
    bad = rows_unless(pc.match_substring_regex(text, _MOMENT))
    text = without(text.cast(pa.string()), bad)
    digits = 9 if to.unit == "ns" else 6
    kept = pc.replace_substring_regex(text, rf"(\.[0-9]{{{digits}}})[0-9]+", r"\1")
    cut = None
    if not kept.equals(text):
        cut = rows_where(pc.match_substring_regex(text, rf"\.[0-9]{{{digits}}}0*[1-9]"))
    unit: Any = "ns" if to.unit == "ns" else "us"
    zoned = rows_where(pc.match_substring_regex(kept, _ZONED))
    if zoned is None or zoned.all():
        moments = [_parts_of_time(kept, unit, None if zoned is None else "UTC", zone)]
    else:
        moments = [
            _parts_of_time(without(kept, zoned), unit, None, zone),
            _parts_of_time(without(kept, ~zoned), unit, "UTC", zone),
        ]
    array = (
        moments[0].array if len(moments) == 1 else pc.coalesce(*[each.array for each in moments])
    )
    for each in moments:
        bad = either(bad, each.bad)
    made = to_timestamp(array, to)
    return Cast(made.array, either(bad, made.bad), {}, either(cut, made.cut))


def _parts_of_time(text: Array, unit: Any, written: str | None, zone: str | None) -> Cast:
    made = parts(text, lambda part: pc.cast(part, pa.timestamp(unit, written)))
    if written is None and zone is not None:
        local, moments = made.array, _in_zone(made.array, zone)
        in_a_gap = rows_unless(pc.equal(pc.local_timestamp(moments), local))
        made = Cast(moments, either(made.bad, in_a_gap), {}, made.cut)
    return made._replace(array=made.array.cast(pa.timestamp(unit, "UTC")))


def _in_zone(times: Array, zone: str) -> Array:
    """Return the moments of local times: the first of two, and another time where clocks leave one out."""
    try:
        return pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="earliest")
    except pa.ArrowInvalid as error:
        raise Misfit(
            f"the time zone {zone} is not known on this machine: install tzdata"
        ) from error


def to_time(array: Array, to: Any) -> Cast:
    """Cast times of day, and text such as 12:30:00.5."""
    kind = array.type
    if is_text(kind):
        bad = rows_unless(pc.match_substring_regex(array, f"^{_CLOCK}$"))
        moments = _parsed(
            pc.binary_join_element_wise("1970-01-01T", without(array, bad).cast(pa.string()), ""),
            pa.timestamp(to.unit),
            None,
        )
        numbers = Cast(moments.array.cast(pa.int64()), either(bad, moments.bad), {}, moments.cut)
    elif pa.types.is_time(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        ticks = array.cast(width).cast(pa.int64())
        numbers = _scaled(ticks, UNITS[kind.unit], UNITS[to.unit], pa.int64(), per_second=True)
    else:
        raise no_cast(array, to)
    outside = rows_unless(between(numbers.array, 0, _DAY * UNITS[to.unit] - 1))
    ticks = without(numbers.array, outside).cast(pa.int32() if to.bit_width == 32 else pa.int64())
    return Cast(ticks.cast(to), either(numbers.bad, outside), {}, numbers.cut)


def to_duration(array: Array, to: Any) -> Cast:
    """Cast spans of time."""
    if not pa.types.is_duration(array.type):
        raise no_cast(array, to)
    return _scaled(
        array.cast(pa.int64()), UNITS[array.type.unit], UNITS[to.unit], to, per_second=True
    )


def cut_off(cast: Cast, digits: int) -> Cast:
    """Cut times and spans of microseconds to so many digits of a second, at most 6."""
    by = 10 ** (6 - digits)
    if by == 1:
        return cast
    kind: Any = cast.array.type
    quotient, lost = _divided(cast.array.cast(pa.int64()), by)
    ticks = pc.multiply(quotient, pa.scalar(by, pa.int64()))
    return cast._replace(array=ticks.cast(kind), cut=either(cast.cut, lost))


def shown_time(micros: int) -> str:
    """Return a time, in microseconds since 1970, as text."""
    return f"{np.datetime64(int(micros), 'us').astype('datetime64[ms]')}Z"
