"""The values of Arrow columns as text, as JSON, and as Python objects.

64 bits hold microseconds of the years -290307 to 294247, but Python's `datetime` ends with 9999, and Arrow's
text wraps at 32767. Such times are ISO 8601 with a sign here: `+57837-03-01T00:00:00.000000Z`.

    type                 text, JSON
    numbers              as they are; a decimal is text in JSON
    timestamps           2026-01-31T12:00:00.000000Z; without the Z if they have no zone
    durations            ISO 8601: PT1.500000S; intervals P1M2DT0.000000003S
    bytes                text where they are UTF-8, else `base64:...`; in JSON only
    lists                arrays
    structs and maps     objects; a key that is not text becomes text
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .kinds import (
    Lists,
    is_bytes,
    is_list,
    is_nested,
    is_text,
    plain,
    rows_where,
    twice,
    whole,
    with_leaves,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .kinds import Array, Mask

BASE64: Final = "base64:"
"""Prefix of bytes that are not UTF-8, before their base64."""

UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""How many of a unit make a second."""

_DAY: Final = 86_400
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, as days since 1970
_UNNAMED: Final = re.compile(r'[\x00-\x1f"\\]')  # no name of a field of msgspec has these
_EXCERPT: Final = 60


@dataclass(frozen=True, slots=True)
class TextStyle:
    """How times are written that have no common form.

    Attributes:
        separator: between date and time.
        years_before_christ: as `0044-03-15 BC`, and years above 9999 without a sign, as PostgreSQL reads
            them; else with a sign.
        clocks: durations are `-00:00:01.500000`, which PostgreSQL reads exactly; else ISO 8601,
            `-PT1.500000S`.
    """

    separator: str = "T"
    years_before_christ: bool = False
    clocks: bool = False


ISO: Final = TextStyle()
POSTGRES: Final = TextStyle(" ", years_before_christ=True, clocks=True)


def text_of(array: Array, style: TextStyle = ISO) -> Array:
    """Return numbers, booleans, times and text as text.

    Raises:
        ArrowInvalid: bytes that are not UTF-8.
        ArrowNotImplementedError: the type has no text.
    """
    if isinstance(array.type, pa.UuidType):
        return _uuids(array.storage)
    array = plain(array)
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _times(array, style)
    if pa.types.is_duration(kind):
        span = partial(_span if style.clocks else _duration, per_second=UNITS[kind.unit])
        return _each(array.cast(pa.int64()), span)
    if kind == pa.month_day_nano_interval():
        return _each(array, _interval)
    if pa.types.is_large_string(kind):
        return array
    return array.cast(pa.string())


def _each(array: Array, text: Callable[[Any], str]) -> Array:
    return pa.array(
        [None if each is None else text(each) for each in array.to_pylist()], pa.string()
    )


def _uuids(storage: Array) -> Array:
    return _each(
        storage,
        lambda raw: "-".join(
            (raw[:4].hex(), *(raw[a : a + 2].hex() for a in (4, 6, 8)), raw[10:].hex())
        ),
    )


def _times(array: Array, style: TextStyle) -> Array:
    """Write timestamps and dates; those of other years than 1 to 9999 one by one."""
    unit: Any
    kind = array.type
    is_date = pa.types.is_date(kind)
    if pa.types.is_date32(kind):
        unit, per_day, numbers = "s", 1, array.cast(pa.int32()).cast(pa.int64())
    else:
        unit = "ms" if is_date else kind.unit
        per_day, numbers = _DAY * UNITS[unit], array.cast(pa.int64())
    first, last = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1
    bounds: Any = pc.min_max(numbers).as_py()
    low, high = bounds["min"], bounds["max"]
    beyond = None
    if low is not None and (low < first or high > last):
        outside = pc.or_(
            pc.less(numbers, pa.scalar(max(first, -(2**63)), pa.int64())),
            pc.greater(numbers, pa.scalar(min(last, 2**63 - 1), pa.int64())),
        )
        beyond = rows_where(outside)
        array = pc.if_else(outside, pa.scalar(None, kind), array)
    if not is_date and kind.tz is not None:
        array = array.cast(pa.timestamp(unit, "UTC"))
    text = array.cast(pa.string())
    if not is_date and style.separator != " ":
        text = pc.replace_substring(text, " ", style.separator, max_replacements=1)
    if is_date and not pa.types.is_date32(kind):
        text = pc.utf8_slice_codeunits(text, 0, 10)
    if beyond is None:
        return text
    zone = "Z" if not is_date and kind.tz is not None else ""
    texts = text.to_pylist()
    for row in np.flatnonzero(beyond).tolist():
        days, rest = divmod(numbers[row].as_py(), per_day)
        clock = "" if is_date else f"{style.separator}{_clock(rest, unit)}{zone}"
        texts[row] = _beyond(days, clock, style)
    return pa.array(texts, pa.string())


def beyond_a_day(times: Array) -> Mask:
    """Return the rows whose time is outside a day: before 00:00, or 24:00 and later."""
    kind: Any = times.type
    ticks = times.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    last = pa.scalar(_DAY * UNITS[kind.unit] - 1, pa.int64())
    return rows_where(pc.or_(pc.less(ticks, pa.scalar(0, pa.int64())), pc.greater(ticks, last)))


def _clock(ticks: int, unit: str) -> str:
    seconds, fraction = divmod(ticks, UNITS[unit])
    digits = len(str(UNITS[unit])) - 1
    return f"{_hours(seconds)}.{fraction:0{digits}}" if digits else _hours(seconds)


def _hours(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _beyond(days: int, clock: str, style: TextStyle) -> str:
    year, month, day = civil(days)
    if not style.years_before_christ:
        return f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04}-{month:02}-{day:02}{clock}"
    before = " BC" if year < 1 else ""
    return (
        f"{1 - year if before else year:04}-{month:02}-{day:02}{clock.replace('Z', '+00')}{before}"
    )


def civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970, in the Gregorian calendar, of any size.

    Year 0 is 1 before Christ.
    """
    era, day = divmod(days + 719_468, 146_097)  # eras of 400 years, from 1 March of the year 0
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    year += 400 * era + (month > 9)
    return year, month + (3 if month < 10 else -9), day - (153 * month + 2) // 5 + 1


def _duration(ticks: int, per_second: int) -> str:
    sign = "-" if ticks < 0 else ""
    seconds, fraction = divmod(abs(ticks), per_second)
    return f"{sign}PT{seconds}{_digits(fraction, per_second)}S"


def _span(ticks: int, per_second: int) -> str:
    sign = "-" if ticks < 0 else ""
    seconds, fraction = divmod(abs(ticks), per_second)
    return f"{sign}{_hours(seconds)}{_digits(fraction, per_second)}"


def _digits(fraction: int, per_second: int) -> str:
    return f".{fraction:0{len(str(per_second)) - 1}}" if fraction else ""


def _interval(value: Any) -> str:
    sign = "-" if value.nanoseconds < 0 else ""
    seconds, fraction = divmod(abs(value.nanoseconds), UNITS["ns"])
    time = f"T{sign}{seconds}{_digits(fraction, UNITS['ns'])}S"
    return f"P{value.months}M{value.days}D{time}"


class JsonObjects(NamedTuple):
    """A column as objects for `msgspec.json`.

    Attributes:
        values: for rows in `bad`, anything.
        bad: for each row that JSON cannot hold: where in the value, and why.
    """

    values: list[Any]
    bad: dict[int, str]


def json_values(array: Array, *, nul: bool = True) -> JsonObjects:
    """Return values that JSON can hold.

    NaN and infinity, times of day beyond 24:00, text that is not UTF-8, and a key that is twice in an object,
    or an object itself, do not fit.

    Args:
        nul: whether text may have NUL, which PostgreSQL's jsonb has not. Bytes with it become base64 there.
    """
    try:
        return _json(array, nul=nul)
    except RecursionError:
        valid = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        return JsonObjects(
            [None] * len(array), dict.fromkeys(valid.tolist(), ": it is nested too deeply")
        )


def _json(array: Array, *, nul: bool) -> JsonObjects:
    kind = array.type
    if isinstance(kind, pa.UuidType):
        return JsonObjects(text_of(array).to_pylist(), {})
    array = plain(array)
    kind = array.type
    if pa.types.is_struct(kind):
        return _objects_of_structs(array, nul=nul)
    if pa.types.is_map(kind):
        return _objects_of_maps(array, nul=nul)
    if is_list(kind):
        lists = Lists(array)
        items, bad = _json(lists.items, nul=nul)
        return JsonObjects(_cut(lists, items), _of_lists(lists, bad))
    if is_bytes(kind):
        return JsonObjects(_texts_of_bytes(array, nul=nul), {})
    if pa.types.is_floating(kind):
        odd = rows_where(pc.invert(pc.is_finite(array)))
        values = array.to_pylist()
        rows = [] if odd is None else np.flatnonzero(odd).tolist()
        return JsonObjects(values, {row: f": JSON has no {values[row]}" for row in rows})
    if pa.types.is_union(kind):
        return JsonObjects(python_values(array), {})
    if is_text(kind):
        return _valid_texts(array, nul=nul)
    if pa.types.is_time(kind) and (beyond := beyond_a_day(array)) is not None:
        array = without(array, beyond)
        rows = np.flatnonzero(beyond).tolist()
        return JsonObjects(
            text_of(array).to_pylist(), dict.fromkeys(rows, ": it is no time of a day")
        )
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        array = text_of(array)
    return JsonObjects(array.to_pylist(), {})


def _valid_texts(array: Array, *, nul: bool) -> JsonObjects:
    bad: dict[int, str] = {}
    try:
        values = array.to_pylist()
    except UnicodeDecodeError:
        values = []
        for row, raw in enumerate(array.cast(pa.large_binary()).to_pylist()):
            try:
                values.append(None if raw is None else raw.decode())
            except UnicodeDecodeError:
                values.append(None)
                bad[row] = f": {excerpt(raw)} is not UTF-8"
    if not nul and (found := rows_where(pc.match_substring(array, "\0"))) is not None:
        bad |= dict.fromkeys(np.flatnonzero(found).tolist(), ": the text has a NUL")
    return JsonObjects(values, bad)


def _texts_of_bytes(array: Array, *, nul: bool) -> list[str | None]:
    array = array.cast(pa.large_binary())
    unclear = pc.match_substring_regex(array, "^" + BASE64)
    if not nul:
        unclear = pc.or_(unclear, pc.match_substring(array, "\0"))
    if not pc.any(unclear).as_py():
        try:
            return array.cast(pa.large_string()).to_pylist()  # type: ignore[no-any-return]
        except pa.ArrowInvalid:
            pass
    return [None if each is None else _text_of_bytes(each, nul=nul) for each in array.to_pylist()]


def _text_of_bytes(value: bytes, *, nul: bool) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = BASE64
    if text.startswith(BASE64) or (not nul and "\0" in text):
        return BASE64 + base64.b64encode(value).decode()
    return text


def _cut(lists: Lists, items: list[Any]) -> list[Any]:
    values: list[Any] = []
    start = 0
    for end in lists.ends.tolist():
        values.append(items[start:end])
        start = end
    return _with_nulls(lists.null, values)


def _with_nulls(null: Array | None, values: list[Any]) -> list[Any]:
    if null is not None:
        for row in np.flatnonzero(null.to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


def _of_lists(lists: Lists, bad: dict[int, str], path: str = "[]") -> dict[int, str]:
    if not bad:
        return bad
    parents = lists.parents()
    return {int(parents[item]): f"{path}{why}" for item, why in bad.items()}


def _objects_of_maps(array: Array, *, nul: bool) -> JsonObjects:
    lists = Lists(array)
    if is_nested(plain(pc.struct_field(lists.items, [0])).type):
        rows = np.flatnonzero(lists.lengths).tolist()
        values = _with_nulls(lists.null, [{} for _ in range(len(array))])
        return JsonObjects(
            values, dict.fromkeys(rows, ": JSON has no keys that are objects or lists")
        )
    keys, bad = _json(_keys(pc.struct_field(lists.items, [0])), nul=nul)
    items, bad_items = _json(pc.struct_field(lists.items, [1]), nul=nul)
    refused = _of_lists(lists, bad, " key") | _of_lists(lists, bad_items)
    objects = []
    start = 0
    for row, end in enumerate(lists.ends.tolist()):
        made = dict(zip(keys[start:end], items[start:end], strict=True))
        if len(made) < end - start:
            key = next(key for key in made if keys[start:end].count(key) > 1)
            refused[row] = f": its key {excerpt(key)} is there twice"
        objects.append(made)
        start = end
    return JsonObjects(_with_nulls(lists.null, objects), refused)


def _keys(array: Array) -> Array:
    if isinstance(array.type, pa.UuidType):
        return text_of(array)
    array = plain(array)
    return array if is_bytes(array.type) or is_text(array.type) else text_of(array)


def _objects_of_structs(array: Array, *, nul: bool) -> JsonObjects:
    names = [field.name for field in array.type]
    null = array.is_null() if array.null_count else None
    valid = ~null.to_numpy(zero_copy_only=False) if null is not None else None
    if (name := twice(array.type)) is not None:
        rows = range(len(array)) if valid is None else np.flatnonzero(valid).tolist()
        return JsonObjects(
            [None] * len(array), dict.fromkeys(rows, f": its field {name} is there twice")
        )
    children = []
    refused: dict[int, str] = {}
    for at, name in enumerate(names):
        values, bad = _json(pc.struct_field(array, [at]), nul=nul)
        refused |= {row: f".{name}{why}" for row, why in bad.items() if valid is None or valid[row]}
        children.append(values)
    return JsonObjects(_with_nulls(null, _objects(tuple(names), children, len(array))), refused)


def json_columns(table: pa.Table) -> JsonObjects:
    """Return the lists of values of all columns; for each row that JSON cannot hold, the column and why."""
    columns: list[list[Any]] = []
    refused: dict[int, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values, bad = json_values(whole(column))
        for row, why in bad.items():
            refused.setdefault(row, f"column {name}{why}")
        columns.append(values)
    return JsonObjects(columns, refused)


def json_misfits(table: pa.Table) -> dict[int, str]:
    """Return the rows that JSON cannot hold, as `json_columns` does; it makes no values of what it can."""
    doubtful = [at for at, column in enumerate(table.columns) if not _fits_json(whole(column))]
    return json_columns(table.select(doubtful)).bad if doubtful else {}


def _fits_json(array: Array) -> bool:
    """Return whether JSON can hold all values, as far as Arrow can say."""
    kind = array.type
    if pa.types.is_string(kind):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True
    if pa.types.is_floating(kind):
        return rows_where(pc.invert(pc.is_finite(array))) is None
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


class JsonRows(NamedTuple):
    """Rows as JSON objects.

    Attributes:
        objects: each is an encoded object; those of rows in `refused` are empty.
        refused: the rows that JSON cannot hold, with the reasons.
    """

    objects: list[bytes]
    refused: dict[int, str]


def json_rows(table: pa.Table) -> JsonRows:
    """Encode each row as a JSON object."""
    names = table.column_names
    if twice(table.schema) is not None:
        reason = "the rows have a column twice, which no JSON object has"
        return JsonRows([b""] * table.num_rows, dict.fromkeys(range(table.num_rows), reason))
    columns, refused = json_columns(table)
    rows = _objects(tuple(names), columns, table.num_rows)
    objects = list(map(msgspec.json.Encoder().encode, rows))
    for row in refused:
        objects[row] = b""
    return JsonRows(objects, refused)


def _objects(names: tuple[str, ...], columns: Sequence[list[Any]], rows: int) -> list[Any]:
    """Make objects of columns: of a class for these names, which msgspec encodes fastest, or dicts."""
    if _UNNAMED.search("".join(names)):
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    made = _class_of(names)
    return list(map(made, *columns)) if columns else [made() for _ in range(rows)]


@lru_cache(maxsize=256)
def _class_of(names: tuple[str, ...]) -> type[msgspec.Struct]:
    # A column's name need not be a Python identifier.
    fields = [(f"c{position}", object) for position in range(len(names))]
    rename = {field: name for (field, _), name in zip(fields, names, strict=True)}
    return msgspec.defstruct("Row", fields, rename=rename, gc=False)


def json_texts(array: Array, *, nul: bool = True) -> tuple[Array, dict[int, str]]:
    """Encode each value as JSON, as text; null stays null. Returns the bad rows too, as `json_values`."""
    values, bad = json_values(array, nul=nul)
    encode = msgspec.json.Encoder().encode
    texts = [
        None if value is None or row in bad else encode(value).decode()
        for row, value in enumerate(values)
    ]
    return pa.array(texts, pa.string()), bad


def python_values(array: Array, *, in_utc: bool = False) -> list[Any]:
    """Return the values as Python objects; a time or span that Python cannot hold is its text.

    A time of day that is in no day is its number. Bytes that are no UTF-8, in a column of text, have
    U+FFFD. Maps are lists of pairs.

    Args:
        in_utc: whether times are in UTC; else in their zone, whose offset may have seconds before 1972.
    """
    if pa.types.is_time(array.type) and (beyond := beyond_a_day(array)) is not None:
        numbers = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
        values = python_values(without(array, beyond))
        return [numbers[row] if is_beyond else values[row] for row, is_beyond in enumerate(beyond)]
    try:
        return _exactly(array, in_utc=in_utc).to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):  # UnicodeDecodeError is a ValueError
        return [_python_value(array, row, in_utc=in_utc) for row in range(len(array))]


def _exactly(array: Array, *, in_utc: bool) -> Array:
    """Return times and spans in microseconds, which Python has. Raises ValueError if they have more digits.

    Of nanoseconds Arrow makes objects of pandas, or cuts them.
    """
    kind = with_leaves(array.type, partial(_in_microseconds, in_utc=in_utc))
    if kind == array.type:
        return array
    return pa.concat_arrays([array]).cast(kind)


def _in_microseconds(kind: Any, *, in_utc: bool) -> Any:
    if pa.types.is_null(kind):
        # Beside a type that changes, Arrow casts lists of nulls to arrays that are too short.
        return pa.bool_()
    if pa.types.is_timestamp(kind):
        unit: Any = "us" if kind.unit == "ns" else kind.unit
        return pa.timestamp(unit, kind.tz and "UTC" if in_utc else kind.tz)
    if getattr(kind, "unit", None) != "ns":
        return kind
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def _python_value(array: Array, row: int, *, in_utc: bool) -> Any:
    try:
        return _exactly(array.slice(row, 1), in_utc=in_utc).to_pylist()[0]
    except (OverflowError, ValueError):
        one = plain(array.slice(row, 1))
    values = partial(python_values, in_utc=in_utc)
    if pa.types.is_struct(one.type):
        children = [pc.struct_field(one, [at]) for at in range(one.type.num_fields)]
        return {each.name: values(of)[0] for each, of in zip(one.type, children, strict=True)}
    if pa.types.is_map(one.type):
        keys, items = (pc.struct_field(Lists(one).items, [at]) for at in range(2))
        return list(zip(values(keys), values(items), strict=True))
    if is_list(one.type):
        return values(Lists(one).items)
    if is_text(one.type):
        return one.cast(pa.large_binary())[0].as_py().decode(errors="replace")
    return text_of(one)[0].as_py()


def excerpt(value: object) -> str:
    """Return the beginning of a value, for a message."""
    try:
        text = " ".join(map(str.strip, repr(value).splitlines()))
    except BaseException:  # noqa: BLE001  the user's class may do anything
        # Python writes no more than 4,300 decimal digits.
        text = hex(value) if type(value) is int else f"a {type(value).__name__}"
    return text if len(text) <= _EXCERPT else text[:_EXCERPT] + "..."
