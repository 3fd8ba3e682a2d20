"""Arrow columns in PostgreSQL's types, and the text that COPY reads."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from ...columns.casting import Cast, Misfit, between
from ...columns.fitted import TargetColumn
from ...columns.fitting import fit, in_lists, json_cast, to_struct, to_text
from ...columns.json_keys import repeated_keys
from ...columns.kinds import (
    Lists,
    either,
    is_bytes,
    is_list,
    is_nested,
    is_text,
    null_rows,
    plain,
    rows_unless,
    rows_where,
    whole,
)
from ...columns.numbers import decimal_text
from ...columns.texts import POSTGRES, UNITS, text_of
from ...columns.times import cut_off
from ...errors import StrategyError
from .containers import array_texts, bad_items, row_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ...columns.kinds import Array, Mask

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "oid": pa.uint32(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.uint8(): "smallint",
    pa.int16(): "smallint",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "bigint",
    pa.int64(): "bigint",
    pa.uint64(): "numeric(20, 0)",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.date64(): "date",
}
_BYTES: Final[Mapping[str, int]] = {"char": 1, "name": 63}
"""The most bytes of a text; the server cuts off more."""
_FRACTIONS: Final[Mapping[str, int]] = {"timetz": 6, "interval": 6, "money": 2}
"""The most digits after the point, in types that the server casts; it rounds more."""
# The server reads more than these: it skips what it does not know in a span, makes a network of `10` and an
# address of a date, and takes `1,5` for 15.
_STRICT: Final[Mapping[str, str]] = {
    "timetz": r"^[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?([zZ]|[+-][0-9]{2}(:?[0-9]{2})?)?$",
    "interval": r"^\s*[A-Za-z0-9.+@-]([A-Za-z0-9\s:.,+-])*$",
    "macaddr": r"^\s*([:.-]?[0-9A-Fa-f]){12}\s*$",
    "macaddr8": r"^\s*(([:.-]?[0-9A-Fa-f]){12}|([:.-]?[0-9A-Fa-f]){16})\s*$",
    "cidr": r":|\..*\..*\.",
    "money": r"^[^0-9]*[0-9]+(,[0-9]{3})*([^0-9,][^,]*)?$",
}
"""By type: the form of the texts that are sent."""
_FIELDS: Final = ("year", "month", "day", "hour", "minute")
_LAST_FIELD: Final = re.compile(rf"interval (?:\w+ to )?({'|'.join(_FIELDS)})$")
_UNITS: Final[Mapping[str, str]] = {
    "year": "years?|decades?|centur(y|ies)|millenni(um|a)",
    "month": "mons?|months?",
    "day": "days?|weeks?",
    "hour": "hours?",
    "minute": "min(ute)?s?",
}
_CLOCK: Final[Mapping[str, str]] = {"minute": "[0-9]{2}", "hour": "00"}
_CLOCKS: Final = ("time", "timestamp", "timestamptz")
_ZONED: Final = r":[0-9.]+\s*([zZ]|[+-][0-9]{1,2}(:?[0-9]{2})*|[A-Za-z]{2,}[A-Za-z/_]*)\s*$"
_TIME_OF_DAY: Final = r"[0-9][Tt ]+[0-9:.]*[1-9]"
_KINDS: Final[Sequence[tuple[Callable[[Any], bool], str]]] = (
    (is_text, "text"),
    (is_bytes, "bytea"),
    (is_nested, "jsonb"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "interval"),
    (pa.types.is_interval, "interval"),
)


class PostgresColumn(NamedTuple):
    """A column of a table.

    Attributes:
        type_name: with its arguments, for messages: `numeric(10,2)`.
        kind: the type's own name: `int8`, `jsonb`.
        digits: precision and scale of a `numeric` that has them.
        length: the most characters of a `varchar` or `char` that has a limit.
        nullable: whether null fits.
        has_default: whether rows may lack it.
        clock: the most digits of a second of a time or span that has a limit.
        form: whether values consist of others, whose columns are `items`: one for an array or a range (also
            a multirange), one for each field of a composite type.
        is_literal: whether texts that differ are unequal; a collation may see it otherwise.
    """

    name: str
    type_name: str
    kind: str
    digits: tuple[int, int] | None = None
    length: int | None = None
    nullable: bool = True
    has_default: bool = False
    clock: int | None = None
    form: Literal["", "array", "range", "row"] = ""
    items: tuple[PostgresColumn, ...] = ()
    is_literal: bool = True

    @property
    def is_needed(self) -> bool:
        """Whether every row must have a value."""
        return not self.nullable and not self.has_default

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type whose values are cast here; text for types that the server casts."""
        if self.digits is not None and self.digits[0] <= 76:
            return (pa.decimal128 if self.digits[0] <= 38 else pa.decimal256)(*self.digits)
        return _ARROW.get(self.kind, pa.string())

    @property
    def stored(self) -> pa.DataType:
        """The Arrow type of the stored values; an array is a list, a composite a struct."""
        if self.form == "array":
            return pa.list_(self.items[0].stored)
        if self.form == "row":
            return pa.struct([(item.name, item.stored) for item in self.items])
        return self.arrow

    def tells_apart(self, kind: pa.DataType) -> bool:
        """Whether values of an Arrow type that differ are unequal here; the texts `1` and `01` may not be."""
        if is_text(kind):
            return self.is_literal and self.kind in ("text", "varchar")
        return not pa.types.is_floating(kind) and not is_text(self.arrow)


def column_type(kind: Any) -> str:
    """Return the PostgreSQL type for an Arrow type; lists, structs and maps become `jsonb`.

    Raises:
        StrategyError: there is none.
    """
    if kind in _TYPES:
        return _TYPES[kind]
    if isinstance(kind, pa.UuidType):
        return "uuid"
    if isinstance(kind, pa.BaseExtensionType):
        return column_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return column_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    for is_kind, name in _KINDS:
        if is_kind(kind):
            return name
    raise StrategyError(f"PostgreSQL has no type for Arrow's {kind}")


# The first and the last day of a `date`, and the first second of a timestamp: 4714-11-24 BC. The last one of
# a timestamp is beyond 64 bits of microseconds since 1970.
_DAYS: Final = (-2_440_588, 2_145_042_905)
_FIRST_SECOND: Final = -210_866_803_200


def targets(columns: Sequence[PostgresColumn]) -> list[TargetColumn]:
    """Return how columns of rows are cast for those of a table. NUL is in no text of PostgreSQL."""
    return [TargetColumn(each.name, each.type_name, partial(_cast, each)) for each in columns]


def _cast(column: PostgresColumn, array: Array) -> Cast:
    cast = _cast_values(array, column)
    return cast if column.nullable else cast._replace(bad=either(cast.bad, null_rows(array)))


def _cast_values(array: Array, column: PostgresColumn) -> Cast:
    kind = plain(array).type
    if is_nested(kind) and column.form:
        return _to_container(plain(array), column)
    if is_nested(kind):
        cast = json_cast(array, nul=column.kind != "jsonb")
        return cast._replace(bad=either(cast.bad, _bad_text(cast.array, column)))
    if not is_text(column.arrow):
        cast = fit(array, column.arrow)
        if column.clock is not None:
            cast = cut_off(cast, column.clock)
        return cast._replace(bad=either(cast.bad, _beyond(cast.array)))
    if column.kind == "timetz" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise Misfit(f"{kind} is no time of a day")
    is_uuid = isinstance(array.type, pa.UuidType)
    if not is_uuid and (is_text(kind) or is_bytes(kind) or pa.types.is_null(kind)):
        cast = to_text(array)
        if column.kind == "jsonb":
            cast = cast._replace(bad=either(cast.bad, repeated_keys(cast.array)))
    elif (pa.types.is_duration(kind) and column.kind == "interval") or (
        pa.types.is_time(kind) and column.kind == "timetz"
    ):
        to = pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")
        ticks = cut_off(fit(array, to), 6 if column.clock is None else column.clock)
        cast = ticks._replace(array=text_of(ticks.array, POSTGRES))
    else:
        cast = Cast(text_of(array, POSTGRES))
    return cast._replace(bad=either(cast.bad, _bad_text(cast.array, column)))


def _to_container(array: Array, column: PostgresColumn) -> Cast:
    """Return the texts of arrays and composite types for lists and objects."""
    if column.form == "array" and is_list(array.type):
        lists = Lists(array)
        is_deep = is_list(lists.items.type)  # `integer[]` has any number of dimensions
        made = (
            _to_container(lists.items, column) if is_deep else _items(lists.items, column.items[0])
        )
        if is_deep:  # no array of arrays has null or nothing inside
            nothing = rows_where(pc.equal(made.array.fill_null("{}"), pa.scalar("{}")))
            made = made._replace(bad=either(made.bad, nothing))
        items = in_lists(lists, made)
        return items._replace(array=array_texts(lists, made.array, quoted=not is_deep))
    if column.form == "row" and pa.types.is_struct(array.type):
        names = [item.name for item in column.items]
        casts = [partial(_items, column=item) for item in column.items]
        made = to_struct(array, names, casts)
        bad, places = made.bad, dict(made.places)
        for at, field in enumerate(array.type):
            if field.name not in names and (more := rows_where(_known(array, at))) is not None:
                bad, places[f".{field.name}"] = either(bad, more), more
        return made._replace(array=row_texts(made.array), bad=bad, places=places)
    raise Misfit(f"{array.type} is no such value")


def _known(structs: Array, at: int) -> Array:
    return pc.and_(structs.is_valid(), pc.struct_field(structs, [at]).is_valid())


def _items(array: Array, column: PostgresColumn) -> Cast:
    """Return values inside of others as text."""
    cast = _cast_values(array, column)
    if is_bytes(cast.array.type):
        return cast._replace(array=_as_hexadecimal(cast.array))
    if is_text(cast.array.type) and not is_nested(plain(array).type):
        return cast._replace(bad=either(cast.bad, _bad_item(cast.array, column)))
    return cast._replace(array=text_of(cast.array, POSTGRES))


def _bad_text(text: Array, column: PostgresColumn) -> Mask:
    """Mark texts that the server would cut, round, or not take."""
    bad = rows_where(pc.match_substring(text, "\0"))
    if column.form:
        return either(bad, bad_items(text, column, _bad_item))
    if column.length is not None:
        bad = either(bad, rows_where(pc.greater(pc.utf8_length(text), pa.scalar(column.length))))
    if (most := _BYTES.get(column.kind)) is not None:
        bad = either(bad, rows_where(pc.greater(pc.binary_length(text), pa.scalar(most))))
    if column.digits is not None:  # more than Arrow's 76: the server would round
        bad = either(bad, decimal_text(text, *column.digits).bad)
    if (form := _STRICT.get(column.kind)) is not None:
        bad = either(bad, rows_unless(pc.match_substring_regex(text, form)))
    if (last := _LAST_FIELD.match(column.type_name)) is not None:
        bad = either(bad, rows_unless(pc.match_substring_regex(text, _of_fields(last[1]))))
    if (digits := _FRACTIONS.get(column.kind)) is not None:
        digits = digits if column.clock is None else column.clock
        bad = either(bad, _too_fine(text, digits))
    return bad


def _of_fields(last: str) -> str:
    """Return the form of spans without fields below the last one of a column: the server cuts those."""
    at = _FIELDS.index(last)
    units = "|".join(_UNITS[each] for each in _FIELDS[: at + 1])
    hours = "[0-9]+" if at >= _FIELDS.index("hour") else "0+"
    clock = rf"[+-]?{hours}:{_CLOCK.get(last, '00')}(:00(\.0*)?)?"
    return rf"^\s*([+-]?[0-9]+\s*({units})\s*|{clock}\s*)+(ago\s*)?$"


def _bad_item(text: Array, column: PostgresColumn) -> Mask:
    """Mark texts inside of arrays, ranges and composites that the server would change."""
    bad = _bad_text(text, column)
    if column.kind in _CLOCKS:
        bad = either(bad, _too_fine(text, 6 if column.clock is None else column.clock))
    if column.kind == "timestamp":  # the server drops a zone
        bad = either(bad, rows_where(pc.match_substring_regex(text, _ZONED)))
    if column.kind == "date":  # and the time of a day
        bad = either(bad, rows_where(pc.match_substring_regex(text, _TIME_OF_DAY)))
    return bad


def _too_fine(text: Array, digits: int) -> Mask:
    return rows_where(pc.match_substring_regex(text, rf"\.[0-9]{{{digits}}}0*[1-9]"))


def _beyond(array: Array) -> Mask:
    """Mark the times that PostgreSQL cannot hold."""
    kind = array.type
    if pa.types.is_date32(kind):
        return rows_unless(between(array.cast(pa.int32()), *_DAYS))
    if pa.types.is_timestamp(kind):
        first = _FIRST_SECOND * UNITS[kind.unit]
        return rows_unless(between(array.cast(pa.int64()), first, 2**63 - 1))
    return None


def _as_hexadecimal(array: Any) -> Any:
    return pa.array(
        [None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()], pa.string()
    )


def copy_columns(table: pa.Table) -> pa.Table:
    """Return the columns in the form that `copy_text` writes: bytes and far times as text."""
    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        array = whole(column)
        if is_bytes(array.type):
            array = _as_hexadecimal(array)
        elif _is_far(array):
            array = text_of(array, POSTGRES)
        columns[name] = array
    return pa.table(columns)


def _is_far(array: Array) -> bool:
    """Return whether there are times of other years than 1 to 9999, which Arrow's CSV writer cannot write."""
    kind: Any = array.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        return False
    unit: Any = getattr(kind, "unit", None)
    per_day = 86_400 * UNITS[unit] if unit else 1
    bounds: Any = pc.min_max(array.cast(pa.int64() if unit else pa.int32()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return low is not None and (low < -719_162 * per_day or high >= 2_932_897 * per_day)


def copy_text(table: pa.Table) -> bytes:
    """Encode rows of `copy_columns` as CSV for COPY: null is empty, text is quoted."""
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False))
    return sink.getvalue().to_pybytes()
