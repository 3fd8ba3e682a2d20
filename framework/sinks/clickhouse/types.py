"""Cast Arrow columns to the types of ClickHouse columns, and find the rows that do not fit.

ClickHouse casts silently: 300 becomes 44 in a UInt8, the year 2200 becomes 2106 in a DateTime, null becomes
0. So the columns are cast here, on whole arrays, and sent in a form that the server stores as it is.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.exceptions import Error

from ..casts import (
    Array,
    Cast,
    Misfit,
    between,
    cast_fitting,
    cast_parts,
    either,
    is_text,
    lengths_of,
    lists_of,
    lists_with,
    misfits,
    offsets_of,
    parents_of,
    to_integer,
    with_items,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FLOATS", "INTEGERS", "UNITS", "ColumnType", "cast_to", "fields_left_out", "type_of"]

ColumnType: TypeAlias = Any
"""A ClickHouse type of clickhouse-connect; its attributes differ from type to type."""

# Days and seconds since 1970 of what Date32 and DateTime64 can hold: the years 1900 to 2299.
_DAYS = (-25_567, 120_529)
_Unit = Literal["s", "ms", "us", "ns"]
UNITS: tuple[_Unit, ...] = get_args(_Unit)
_SECONDS = (_DAYS[0] * 86_400, (_DAYS[1] + 1) * 86_400 - 1)
INTEGERS: dict[str, pa.DataType] = {
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
}
FLOATS: dict[str, pa.DataType] = {
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "BFloat16": pa.float32(),
}
_NULLABLE = ("Variant", "Dynamic")  # without being wrapped in Nullable
_WIDE_INTEGERS = ("Int128", "Int256", "UInt128", "UInt256")
_WIDE_INTEGER = r"^-?\d{1,77}$"
_UUID = r"^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$"
_IPV4 = r"^((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)$"


def type_of(text: str) -> ColumnType:
    """Parse the name of a type, such as `Array(Nullable(DateTime64(3, 'UTC')))`.

    A type that clickhouse-connect does not know is treated as Dynamic: the server casts.
    """
    try:
        return get_from_name(text)
    except Error:
        return get_from_name("Dynamic")


def cast_to(array: Array, target: ColumnType, *, has_default: bool = False) -> Cast:
    """Cast a column to a ClickHouse type.

    Null fits a Nullable column, and one with a default (`has_default`). Integers must keep their value;
    times are cut to the column's precision. A time without a zone is UTC; as text it is in the column's
    zone, if it has one.

    Raises:
        Misfit: the one type cannot become the other.
    """
    while target.base_type == "SimpleAggregateFunction":
        target = target.element_type
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        # a column of nulls fits any type
        cast = Cast(array) if pa.types.is_null(array.type) else _cast(array, target)
    except pa.ArrowNotImplementedError as error:
        raise Misfit(f"Arrow has no cast from {array.type} to it") from error
    if array.null_count == 0 or has_default or target.nullable or target.base_type in _NULLABLE:
        return cast
    return Cast(cast.array, either(cast.bad, misfits(pc.is_valid(array))))


def _cast(array: Array, target: ColumnType) -> Cast:
    kind = target.base_type
    if kind in INTEGERS:
        return to_integer(array, INTEGERS[kind])
    if kind in FLOATS:
        # a large integer may lose digits: that comes with the column's type
        options = pc.CastOptions(FLOATS[kind], allow_float_truncate=True)
        return cast_parts(array, lambda part: part.cast(options=options))
    if kind in _CASTERS:
        return _CASTERS[kind](array, target)
    return Cast(array)  # JSON, Variant, Point, ...: the server casts


def _to_bool(array: Array, _target: ColumnType) -> Cast:
    if pa.types.is_integer(array.type):
        return cast_fitting(array, between(array, 0, 1), pa.bool_())
    return cast_parts(array, lambda part: pc.cast(part, pa.bool_()))


def _to_string(array: Array, _target: ColumnType) -> Cast:
    kind = array.type
    if pa.types.is_string_view(kind):
        return Cast(pc.cast(array, pa.string()))
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return Cast(pc.cast(array, pa.binary()))
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Cast(array)
    return Cast(pc.cast(array, pa.string()))


def _to_fixed_string(array: Array, target: ColumnType) -> Cast:
    raw = _to_string(array, target).array.cast(pa.binary())
    return Cast(raw, misfits(pc.less_equal(pc.binary_length(raw), target.byte_size)))


def _to_wide_integer(array: Array, _target: ColumnType) -> Cast:
    """Send 128 and 256 bits as text: Arrow has no such integers."""
    if is_text(array.type):
        return Cast(array, misfits(pc.match_substring_regex(array, _WIDE_INTEGER)))
    if pa.types.is_uint64(array.type):
        return Cast(pc.cast(array, pa.string()))
    is_decimal = pa.types.is_decimal(array.type)
    whole = to_integer(array, pa.decimal256(76, 0) if is_decimal else pa.int64())
    return Cast(pc.cast(whole.array, pa.string()), whole.bad)


def _to_uuid(array: Array, _target: ColumnType) -> Cast:
    if array.type == pa.binary(16):
        return Cast(array)
    text = pc.cast(array, pa.string())
    return Cast(text, misfits(pc.match_substring_regex(text, _UUID)))


def _to_ipv4(array: Array, _target: ColumnType) -> Cast:
    if pa.types.is_integer(array.type):
        return to_integer(array, pa.uint32())
    text = pc.cast(array, pa.string())
    return Cast(text, misfits(pc.match_substring_regex(text, _IPV4)))


def _to_ipv6(array: Array, _target: ColumnType) -> Cast:
    if array.type == pa.binary(16):
        return Cast(array)
    return Cast(
        pc.cast(array, pa.string())
    )  # an address has many spellings; the server parses them


def _to_enum(array: Array, target: ColumnType) -> Cast:
    names: dict[str, int] = target._name_map  # noqa: SLF001  there is no public way
    if pa.types.is_integer(array.type):
        cast = to_integer(array, pa.int8() if target.base_type == "Enum8" else pa.int16())
        known = pa.array(list(names.values()), cast.array.type)
    else:
        cast = Cast(pc.cast(array, pa.string()))
        known = pa.array(list(names), pa.string())
    fits = pc.or_(pc.is_in(cast.array, known), pc.is_null(cast.array))
    return Cast(cast.array, either(cast.bad, misfits(fits)))


def _to_decimal(array: Array, target: ColumnType) -> Cast:
    scale, precision = target.scale, target.prec
    to = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    if pa.types.is_integer(array.type):
        # Arrow refuses the whole column unless the type has room for the widest integer
        array = pc.cast(array, pa.decimal256(min(76, 20 + scale), scale))
    return cast_parts(array, lambda part: pc.cast(part, to))


def _to_array(array: Array, target: ColumnType) -> Cast:
    lists = lists_of(array)
    return with_items(lists, cast_to(lists.flatten(), target.element_type))


def _to_map(array: Array, target: ColumnType) -> Cast:
    if pa.types.is_struct(array.type):
        array = _pairs_of_dicts(array)
    elif pa.types.is_map(array.type):
        array = pc.cast(array, pa.list_(_pair(array.type.key_type, array.type.item_type)))
    lists = lists_of(array)
    pairs = lists.flatten()
    if not pa.types.is_struct(pairs.type) or pairs.type.num_fields != 2:
        raise Misfit(f"{array.type} is no map")
    keys = cast_to(pc.struct_field(pairs, [0]), target.key_type)
    values = cast_to(pc.struct_field(pairs, [1]), target.value_type)
    lengths = lengths_of(lists)
    bad = lists_with(lists, either(keys.bad, values.bad))
    kept = [keys.array, values.array]
    if bad is not None:  # Arrow allows no null key, not even in a row that is dropped
        lengths[bad] = 0
        there = pa.array(~bad[parents_of(lists)])
        kept = [column.filter(there) for column in kept]
    null = lists.is_null() if lists.null_count else None
    return Cast(pa.MapArray.from_arrays(offsets_of(lengths), *kept, mask=null), bad)


def _pair(key: pa.DataType, value: pa.DataType) -> pa.StructType:
    return pa.struct([pa.field("key", key, nullable=False), pa.field("value", value)])


def _pairs_of_dicts(array: Array) -> Array:
    """Make lists of pairs of Python's dicts: Arrow reads dicts as structs, with null for absent keys."""
    names = [field.name for field in array.type]
    values = pa.concat_arrays([pc.struct_field(array, name) for name in names])
    rows = np.tile(np.arange(len(array)), len(names))
    there = np.flatnonzero(pc.is_valid(values).to_numpy(zero_copy_only=False))
    there = there[np.argsort(rows[there], kind="stable")]
    lengths = np.bincount(rows[there], minlength=len(array))
    keys = pa.array(np.repeat(names, len(array))[there], pa.string())
    kind = _pair(pa.string(), values.type)
    pairs = pa.StructArray.from_arrays([keys, values.take(pa.array(there))], fields=list(kind))
    return pa.ListArray.from_arrays(offsets_of(lengths), pairs)


def _to_tuple(array: Array, target: ColumnType) -> Cast:
    fields = [field.name for field in array.type] if pa.types.is_struct(array.type) else []
    names = list(target.element_names or fields)
    if len(names) != len(target.element_types):
        raise Misfit(f"{array.type} has other fields")
    bad = None
    arrays = []
    for name, element in zip(names, target.element_types, strict=True):
        if name not in fields and not element.nullable:
            raise Misfit(f"{array.type} has no field {name}")
        there = name in fields
        cast = cast_to(pc.struct_field(array, name) if there else pa.nulls(len(array)), element)
        bad = either(bad, cast.bad)
        arrays.append(cast.array)
    null = array.is_null() if array.null_count else None
    if bad is not None and null is not None:  # the elements of a null tuple are null
        bad = bad & ~null.to_numpy(zero_copy_only=False)
    return Cast(pa.StructArray.from_arrays(arrays, names=names, mask=null), bad)


def fields_left_out(kind: Any, target: ColumnType, path: str) -> Iterator[str]:
    """Yield the fields of nested objects for which a Tuple has no element: they are not written."""
    if target.base_type == "Array" and hasattr(kind, "value_type"):
        yield from fields_left_out(kind.value_type, target.element_type, f"{path}[]")
    elif target.base_type == "Tuple" and pa.types.is_struct(kind) and target.element_names:
        elements = dict(zip(target.element_names, target.element_types, strict=True))
        for each in kind:
            below = f"{path}.{each.name}"
            if each.name not in elements:
                yield below
            else:
                yield from fields_left_out(each.type, elements[each.name], below)


def _to_date(array: Array, target: ColumnType) -> Cast:
    """Cast dates, times (their day), text and numbers of days; Date is sent as a number."""
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


def _to_datetime(array: Array, target: ColumnType) -> Cast:
    """Cast times, text and numbers of seconds to seconds since 1970, up to 2106."""
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        seconds = to_integer(array, pa.int64())
    else:
        times = _times(array, target)
        seconds = Cast(pc.cast(_at(times.array, "s"), pa.int64()), times.bad)
    fit = cast_fitting(seconds.array, between(seconds.array, 0, 2**32 - 1), pa.uint32())
    return Cast(fit.array, either(seconds.bad, fit.bad))


def _to_datetime64(array: Array, target: ColumnType) -> Cast:
    """Cast to times of at least the column's precision; the server cuts them to it."""
    unit = UNITS[(target.scale + 2) // 3]
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
    """Cast timestamps, dates and text to points in time, in UTC."""
    if pa.types.is_timestamp(array.type):
        return Cast(_utc(array))
    if not is_text(array.type):
        return Cast(_utc(pc.cast(array, pa.timestamp("s"))))
    zone = str(target.tzinfo) if target.tzinfo not in (None, UTC) else None
    return cast_parts(array, lambda part: _parsed(part, zone))


def _parsed(text: Array, zone: str | None) -> Array:
    """Parse ISO 8601 with `T` or a space, with a zone or without, up to nanoseconds; all of one form."""
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
    """Convert timestamps to another unit, cut off, not rounded."""
    if times.type.unit == unit:
        return times
    to = pa.timestamp(unit, times.type.tz)
    return times.cast(options=pc.CastOptions(to, allow_time_truncate=True))


_CASTERS: dict[str, Callable[[Array, ColumnType], Cast]] = {
    "Bool": _to_bool,
    "String": _to_string,
    "FixedString": _to_fixed_string,
    "UUID": _to_uuid,
    "IPv4": _to_ipv4,
    "IPv6": _to_ipv6,
    "Enum8": _to_enum,
    "Enum16": _to_enum,
    "Decimal": _to_decimal,
    "Date": _to_date,
    "Date32": _to_date,
    "DateTime": _to_datetime,
    "DateTime64": _to_datetime64,
    "Array": _to_array,
    "Map": _to_map,
    "Tuple": _to_tuple,
    **dict.fromkeys(_WIDE_INTEGERS, _to_wide_integer),
}
