"""Cast Arrow columns to the types of ClickHouse columns, and find the rows that do not fit.

ClickHouse casts silently: 300 becomes 44 in a UInt8, the year 2200 becomes 2106 in a DateTime, null becomes
0. So the columns are cast here, by `kmr.columns`, and sent in a form that the server stores as it is.
"""

from __future__ import annotations

import socket
from datetime import UTC
from functools import partial
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.exceptions import Error

from ...columns.casting import Cast, Misfit, between, fitting, safely
from ...columns.fitting import UUID, fit, in_lists, raw_or_text, to_map, to_struct, to_text
from ...columns.kinds import (
    Lists,
    either,
    is_list,
    is_text,
    null_rows,
    plain,
    rows_unless,
    without,
)
from ...columns.numbers import to_integer
from ...columns.texts import UNITS
from ...columns.times import to_date, to_time, to_timestamp
from .json_paths import as_paths, without_nameless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...columns.kinds import Array, Mask

ColumnType: TypeAlias = Any
"""A ClickHouse type of clickhouse-connect; its attributes differ from type to type."""

# Days and seconds since 1970 of what Date32 and DateTime64 can hold: the years 1900 to 2299.
_DAYS = (-25_567, 120_529)
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
}
_PLAIN = {**INTEGERS, **FLOATS, "Bool": pa.bool_()}
_NULLABLE = ("Variant", "Dynamic")
_MOST_CLOCK = 999 * 3600 + 59 * 60 + 59  # seconds in Time
_INTERVALS = (
    *("Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"),
    *("Day", "Week", "Month", "Quarter", "Year"),
)
_WIDE_INTEGERS = {"Int128": 127, "Int256": 255, "UInt128": 128, "UInt256": 256}
_WIDE_BYTES = {"Int128": 16, "UInt128": 16, "Int256": 32, "UInt256": 32}
_INTEGER = r"^[+-]?[0-9]{1,78}$"
_WHOLE = r"^[+-]?[0-9]+\.?0*$"
_DIGITS = "^[0-9]{1,10}$"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"^({_BYTE}\.){{3}}{_BYTE}$"


def type_of(text: str) -> ColumnType:
    """Parse the name of a type, such as `Array(Nullable(DateTime64(3, 'UTC')))`.

    A type that clickhouse-connect does not know is treated as Dynamic: the server casts.
    """
    try:
        return get_from_name(text)
    except Error:
        return get_from_name("Dynamic")


def takes_null(target: ColumnType) -> bool:
    """Return whether null fits a type."""
    return target.nullable or target.base_type in _NULLABLE


def cast_to(array: Array, target: ColumnType, *, has_default: bool = False) -> Cast:
    """Cast a column to a ClickHouse type.

    Null fits a Nullable column, and one with a default (`has_default`). A time without a zone is UTC; as text
    it is in the column's zone, if it has one.

    Raises:
        Misfit: the one type cannot become the other.
    """
    while target.base_type == "SimpleAggregateFunction":
        target = target.element_type
    if pa.types.is_null(array.type):  # a column of nulls fits any type
        cast = Cast(array)
    elif target.base_type in _PLAIN:
        cast = fit(array, _PLAIN[target.base_type])
    else:
        cast = _CASTERS.get(target.base_type, _by_the_server)(array, target)
    if has_default or takes_null(target):
        return cast
    return cast._replace(bad=either(cast.bad, null_rows(array)))


def is_cast_by_server(target: ColumnType) -> bool:
    """Return whether values are sent as they are, and the server casts them: JSON, Variant, Point, ..."""
    return target.base_type not in _PLAIN and target.base_type not in _CASTERS


def _by_the_server(array: Array, target: ColumnType) -> Cast:
    """Send values for JSON, Variant, Point, ... as they are, but those that the server would change."""
    named = without_nameless(plain(array)) if target.base_type == "JSON" else Cast(plain(array))
    made, array = named, named.array
    _refuse_unknown(array.type)
    if target.base_type == "JSON":
        typed = [
            (path, partial(cast_to, target=kind, has_default=True))
            for path, kind in zip(target.typed_paths, target.typed_types, strict=True)
        ]
        made = as_paths(array, typed)
        if named.bad is not None:
            empty = {" key that is empty": named.bad}
            made = Cast(array, either(made.bad, named.bad), {**made.places, **empty})
    outside = _out_of_time(array)
    return made if outside is None else made._replace(bad=either(made.bad, outside))


def _refuse_unknown(kind: Any) -> None:
    """Raise Misfit for a type that the server makes no column of, at any depth."""
    if pa.types.is_struct(kind) and kind.get_field_index("") >= 0:
        raise Misfit("a field without a name is no element of a tuple")
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        raise Misfit(f"{kind} is no Decimal")
    for at in range(kind.num_fields):
        _refuse_unknown(kind.field(at).type)


def _out_of_time(array: Array) -> Mask:
    """Return the rows with a time, at any depth, outside of what Date32 and DateTime64 can hold."""
    array = plain(array)
    kind = array.type
    if pa.types.is_timestamp(kind):
        ticks, per_second = array.cast(pa.int64()), UNITS[kind.unit]
        limits = (_SECONDS[0] * per_second, (_SECONDS[1] + 1) * per_second - 1)
        return rows_unless(between(ticks, *limits))
    if pa.types.is_date(kind):
        return rows_unless(between(array.cast(pa.date32()).cast(pa.int32()), *_DAYS))
    if pa.types.is_map(kind) or is_list(kind):
        lists = Lists(array)
        return lists.of_items(_out_of_time(lists.items))
    bad: Mask = None
    if pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            bad = either(bad, _out_of_time(pc.struct_field(array, [at])))
    return bad


def _to_bfloat(array: Array, _target: ColumnType) -> Cast:
    """Cast to float32, which the server cuts to 8 binary digits: whole numbers must keep their value."""
    made, array = fit(array, pa.float32()), plain(array)
    if pa.types.is_floating(array.type):
        return made
    low = pc.bit_wise_and(made.array.view(pa.int32()), pa.scalar(0xFFFF, pa.int32()))
    fits = pc.equal(low, pa.scalar(0, pa.int32()))
    if is_text(array.type):
        fits = pc.or_(fits, pc.invert(pc.match_substring_regex(array, _WHOLE)))
    elif pa.types.is_decimal(array.type):
        fits = pc.or_(fits, pc.not_equal(pc.floor(array), array))
    return made._replace(bad=either(made.bad, rows_unless(fits)))


def _to_clock(array: Array, target: ColumnType) -> Cast:
    """Cast times of day, text such as 12:30:00, and numbers of seconds, of which Time has 999 hours."""
    array = plain(array)
    if pa.types.is_integer(array.type):
        seconds = fit(array, pa.int64())
        outside = rows_unless(between(seconds.array, -_MOST_CLOCK, _MOST_CLOCK))
        return seconds._replace(bad=either(seconds.bad, outside))
    unit: Any = tuple(UNITS)[(getattr(target, "scale", 0) + 2) // 3]
    made = to_time(array, pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit))
    # the server makes Time64 of Arrow's times, and no Time of that
    return made._replace(array=made.array.cast(pa.int32())) if unit == "s" else made


def _to_interval(array: Array, _target: ColumnType) -> Cast:
    if not pa.types.is_integer(plain(array).type):
        raise Misfit(f"{array.type} is no whole number")
    return fit(array, pa.int64())


def _to_string(array: Array, _target: ColumnType) -> Cast:
    return raw_or_text(array)


def _to_fixed_string(array: Array, target: ColumnType) -> Cast:
    text = raw_or_text(array.storage if isinstance(array.type, pa.UuidType) else array)
    raw = text.array.cast(pa.binary())
    longer = rows_unless(pc.less_equal(pc.binary_length(raw), pa.scalar(target.byte_size)))
    return Cast(raw, either(text.bad, longer))


def _to_wide_integer(array: Array, target: ColumnType) -> Cast:
    """Send 128 and 256 bits as text: Arrow has no such integers; bytes of that size are the number itself."""
    if array.type == pa.binary(_WIDE_BYTES[target.base_type]):
        return Cast(array)
    if is_text(array.type) or pa.types.is_uint64(array.type):
        whole = to_text(array)
    else:
        is_decimal = pa.types.is_decimal(array.type)
        made = fit(array, pa.decimal256(76, 0) if is_decimal else pa.int64())
        whole = made._replace(array=made.array.cast(pa.string()))
    bits, signed = _WIDE_INTEGERS[target.base_type], target.base_type.startswith("I")
    low, high = (-(2**bits) if signed else 0), 2**bits - 1
    digits = rows_unless(pc.match_substring_regex(whole.array, _INTEGER))
    texts = without(whole.array, digits).to_pylist()
    numbers = [None if each is None else int(each) for each in texts]
    inside = pa.array([each is None or low <= each <= high for each in numbers])
    # without a sign before 0: the server makes null of -0
    text = pa.array([None if each is None else str(each) for each in numbers], pa.string())
    return Cast(text, either(whole.bad, either(digits, rows_unless(inside))))


def _to_uuid(array: Array, _target: ColumnType) -> Cast:
    if plain(array).type == pa.binary(16):
        return Cast(plain(array))
    return _matching(array, UUID)


def _to_ipv4(array: Array, _target: ColumnType) -> Cast:
    if pa.types.is_integer(plain(array).type):
        return fit(array, pa.uint32())
    text = to_text(array)
    # A whole number beside texts is one.
    numbers: Any = pc.match_substring_regex(text.array, _DIGITS)
    if pc.any(numbers).as_py():
        array = pa.array(
            [
                str(IPv4Address(int(each))) if is_number and int(each) < 2**32 else each
                for each, is_number in zip(text.array.to_pylist(), numbers.to_pylist(), strict=True)
            ],
            pa.string(),
        )
    return _matching(array, _IPV4)


def _matching(array: Array, pattern: str) -> Cast:
    """Cast a column to text; a text that does not match a pattern does not fit."""
    text = to_text(array)
    matches = pc.match_substring_regex(text.array, pattern)
    return Cast(text.array, either(text.bad, rows_unless(matches)))


def _to_ipv6(array: Array, _target: ColumnType) -> Cast:
    if plain(array).type == pa.binary(16):
        return Cast(plain(array))
    text = to_text(array)
    known = pa.array([each is None or _is_address(each) for each in text.array.to_pylist()])
    return Cast(text.array, either(text.bad, rows_unless(known)))


def _is_address(text: str) -> bool:
    """Return whether a text is an address; an address has many spellings."""
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):  # a text with NUL
            continue
        return True
    return False


def _to_enum(array: Array, target: ColumnType) -> Cast:
    names: dict[str, int] = target._name_map  # noqa: SLF001  there is no public way
    if pa.types.is_integer(plain(array).type):
        cast = fit(array, pa.int8() if target.base_type == "Enum8" else pa.int16())
        known = pa.array(list(names.values()), cast.array.type)
    else:
        cast = to_text(array, pa.string())
        known = pa.array(list(names), pa.string())
        # A whole number beside texts is one: a batch of undeclared values has one type.
        ids: Any = pc.index_in(cast.array, pa.array(map(str, names.values()), pa.string()))
        named = pc.is_in(cast.array, known)
        cast = cast._replace(
            array=pc.if_else(named, cast.array, pc.coalesce(known.take(ids), cast.array))
        )
    fits = pc.or_(pc.is_in(cast.array, known), pc.is_null(cast.array))
    return Cast(cast.array, either(cast.bad, rows_unless(fits)))


def _to_decimal(array: Array, target: ColumnType) -> Cast:
    scale, precision = target.scale, target.prec
    return fit(
        array,
        pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale),
    )


def _to_array(array: Array, target: ColumnType) -> Cast:
    array = plain(array)
    if not is_list(array.type):
        raise Misfit(f"{array.type} is not a list")
    lists = Lists(array)
    items = in_lists(lists, _cast_inside(lists.items, target.element_type))
    return items._replace(array=lists.with_items(items.array))


def _to_nested(array: Array, target: ColumnType) -> Cast:
    return _to_array(array, _as_array(target))


def _as_array(nested: ColumnType) -> ColumnType:
    """Return the type `Array(Tuple(...))` of a `Nested(...)`."""
    return type_of(f"Array(Tuple({nested.name.removeprefix('Nested(')})")


def _to_map(array: Array, target: ColumnType) -> Cast:
    return to_map(
        plain(array),
        partial(_cast_inside, target=target.key_type),
        partial(_cast_inside, target=target.value_type),
    )


def _cast_inside(array: Array, target: ColumnType) -> Cast:
    """Cast values inside of others. Those without a type get one: the server converts no `Nothing`."""
    cast = cast_to(array, target)
    if not pa.types.is_null(cast.array.type):
        return cast
    return cast._replace(array=pa.nulls(len(array), stored_type(target)))


def stored_type(target: ColumnType) -> Any:
    """Return a type of Arrow whose values the server converts to a type; text where there is none."""
    match target.base_type:
        case "SimpleAggregateFunction":
            return stored_type(target.element_type)
        case "Array":
            return pa.list_(stored_type(target.element_type))
        case "Nested":
            return stored_type(_as_array(target))
        case "Map":
            return pa.map_(stored_type(target.key_type), stored_type(target.value_type))
        case "Tuple":
            names = target.element_names or map(str, range(len(target.element_types)))
            return pa.struct(list(zip(names, map(stored_type, target.element_types), strict=True)))
    return _PLAIN.get(target.base_type, pa.string())


def _to_tuple(array: Array, target: ColumnType) -> Cast:
    array = plain(array)
    if not pa.types.is_struct(array.type):
        raise Misfit(f"{array.type} is no object")
    fields = [field.name for field in array.type]
    if not target.element_names and "" in fields:
        raise Misfit("a field without a name is no element of a tuple")
    names = list(target.element_names or fields)
    if len(names) != len(target.element_types):
        raise Misfit(f"{array.type} has other fields")
    for name, element in zip(names, target.element_types, strict=True):
        if name not in fields and not element.nullable:
            raise Misfit(f"{array.type} has no field {name}")
    return to_struct(
        array, names, [partial(_cast_inside, target=each) for each in target.element_types]
    )


def fields_left_out(kind: Any, target: ColumnType, path: str) -> Iterator[str]:
    """Yield the fields of nested objects for which a Tuple has no element: they are not written."""
    if target.base_type == "Nested":
        target = _as_array(target)
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
    array = plain(array)
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        days = to_integer(array, pa.int32())
    else:
        dates = to_date(array, pa.date32(), _zone(target))
        days = dates._replace(array=dates.array.cast(pa.int32()))
    low, high = (0, 65_535) if target.base_type == "Date" else _DAYS
    kind = pa.uint16() if target.base_type == "Date" else pa.date32()
    made = fitting(days.array, rows_unless(between(days.array, low, high)), safely(kind))
    return days._replace(array=made.array, bad=either(days.bad, made.bad))


def _to_datetime(array: Array, target: ColumnType) -> Cast:
    """Cast times, text and numbers of seconds to seconds since 1970, up to 2106."""
    array = plain(array)
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        seconds = to_integer(array, pa.int64())
    else:
        times = to_timestamp(array, pa.timestamp("s", "UTC"), _zone(target))
        seconds = times._replace(array=times.array.cast(pa.int64()))
    most = 2**32 - 1
    made = fitting(seconds.array, rows_unless(between(seconds.array, 0, most)), safely(pa.uint32()))
    return seconds._replace(array=made.array, bad=either(seconds.bad, made.bad))


def _to_datetime64(array: Array, target: ColumnType) -> Cast:
    """Cast to times of at least the column's precision; the server cuts them to it."""
    array = plain(array)
    unit: Any = tuple(UNITS)[(target.scale + 2) // 3]
    bad: Mask = None
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        seconds = to_integer(array, pa.int64())
        array, bad = seconds.array.cast(pa.timestamp("s", "UTC")), seconds.bad
    times = to_timestamp(array, pa.timestamp(unit, "UTC"), _zone(target))
    ticks = times.array.cast(pa.int64())
    limits = (_SECONDS[0] * UNITS[unit], (_SECONDS[1] + 1) * UNITS[unit] - 1)
    inside = rows_unless(between(ticks, *limits))
    return times._replace(bad=either(bad, either(times.bad, inside)))


def _zone(target: ColumnType) -> str | None:
    zone = getattr(target, "tzinfo", None)
    return str(zone) if zone not in (None, UTC) else None


_CASTERS: dict[str, Callable[[Array, ColumnType], Cast]] = {
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
    "Nested": _to_nested,
    "Tuple": _to_tuple,
    "BFloat16": _to_bfloat,
    "Time": _to_clock,
    "Time64": _to_clock,
    **{f"Interval{unit}": _to_interval for unit in _INTERVALS},
    **dict.fromkeys(_WIDE_INTEGERS, _to_wide_integer),
}
