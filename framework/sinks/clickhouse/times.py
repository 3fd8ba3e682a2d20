"""Dates and times for ClickHouse: Date, Date32, DateTime, DateTime64."""

from __future__ import annotations

from datetime import UTC
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from framework.sinks.clickhouse.arrays import (
    Array,
    Cast,
    ColumnType,
    Misfit,
    between,
    cast_fitting,
    cast_parts,
    either,
    is_text,
    misfits,
    to_integer,
)

__all__ = ["to_date", "to_datetime", "to_datetime64"]

# Days and seconds since 1970 of what Date32 and DateTime64 can hold: the years 1900 to 2299.
_DAYS = (-25_567, 120_529)
_Unit = Literal["s", "ms", "us", "ns"]
_UNITS: tuple[_Unit, ...] = get_args(_Unit)
_SECONDS = (_DAYS[0] * 86_400, (_DAYS[1] + 1) * 86_400 - 1)


def to_date(array: Array, target: ColumnType) -> Cast:
    """Dates from dates, times (their day), text and numbers of days; Date is sent as a number."""
    if pa.types.is_integer(array.type):
        days = to_integer(array, pa.int32())
    else:
        dates = cast_parts(array, lambda part: pc.cast(part, pa.date32()))
        days = Cast(pc.cast(dates.array, pa.int32()), dates.bad)
    if target.base_type == "Date":
        fit = cast_fitting(days.array, between(days.array, 0, 65_535), pa.uint16())
    else:
        fit = cast_fitting(days.array, between(days.array, *_DAYS), pa.date32())
    return Cast(fit.array, either(days.bad, fit.bad))


def to_datetime(array: Array, target: ColumnType) -> Cast:
    """Seconds since 1970 up to 2106, from times, text and numbers of seconds."""
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        seconds = to_integer(array, pa.int64())
    else:
        times = _times(array, target)
        seconds = Cast(pc.cast(_at(times.array, "s"), pa.int64()), times.bad)
    fit = cast_fitting(seconds.array, between(seconds.array, 0, 2**32 - 1), pa.uint32())
    return Cast(fit.array, either(seconds.bad, fit.bad))


def to_datetime64(array: Array, target: ColumnType) -> Cast:
    """Times of at least the column's precision, which the server then cuts to it."""
    unit = _UNITS[(target.scale + 2) // 3]
    if pa.types.is_integer(array.type):
        whole = to_integer(array, pa.int64())
        times = Cast(pc.cast(whole.array, pa.timestamp("s", "UTC")), whole.bad)
    else:
        times = _times(array, target)
    seconds = pc.cast(_at(times.array, "s"), pa.int64())
    bad = misfits(between(seconds, *_SECONDS))
    kept = times.array
    if bad is not None:
        kept = pc.if_else(pa.array(~bad), kept, pa.scalar(None, kept.type))
    fine = cast_parts(kept, lambda part: _at(part, unit))  # nanoseconds end in 2262
    return Cast(fine.array, either(times.bad, either(bad, fine.bad)))


def _times(array: Array, target: ColumnType) -> Cast:
    """Points in time, in UTC, from timestamps, dates and text."""
    if pa.types.is_timestamp(array.type):
        return Cast(_utc(array))
    if not is_text(array.type):
        return Cast(_utc(pc.cast(array, pa.timestamp("s"))))
    zone = str(target.tzinfo) if target.tzinfo not in (None, UTC) else None
    return cast_parts(array, lambda part: _parsed(part, zone))


def _parsed(text: Array, zone: str | None) -> Array:
    """ISO 8601 with `T` or a space, with a zone or without, up to nanoseconds; all of the same form."""
    for unit in ("us", "ns"):
        for zoned in (False, True):
            try:
                times = pc.cast(text, pa.timestamp(unit, "UTC" if zoned else None))
            except pa.ArrowInvalid:
                continue
            if not zoned and zone is not None:
                times = _in_zone(times, zone)
            return _utc(_at(times, "us"))
    raise pa.ArrowInvalid("not a time")


def _in_zone(times: Array, zone: str) -> Array:
    try:
        return pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="earliest")
    except pa.ArrowInvalid as error:
        raise Misfit(
            f"the time zone {zone} is not known on this machine: install tzdata"
        ) from error


def _utc(times: Array) -> Array:
    return pc.cast(times, pa.timestamp(times.type.unit, "UTC"))


def _at(times: Array, unit: _Unit) -> Array:
    """Timestamps in another unit, cut off, not rounded."""
    if times.type.unit == unit:
        return times
    to = pa.timestamp(unit, times.type.tz)
    return times.cast(options=pc.CastOptions(to, allow_time_truncate=True))
