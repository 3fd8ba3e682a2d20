"""What a client of each sink reads, and whether it is the value that was sent.

Reading is exact: times as text, numbers as `Decimal`, objects as pairs; never by the types of a client, which
end at the year 9999 and round to microseconds.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .plain_values import (
    DAY,
    NS,
    Clock,
    Day,
    Entries,
    Float,
    Moment,
    Opaque,
    Pairs,
    Span,
    Struct,
    Text,
    clock_of,
    is_json_of,
    moment_of,
    plain,
    read_json,
    same_float,
    span_of,
)

if TYPE_CHECKING:
    from pathlib import Path

FIELD = "feld"
EXACT = {
    "output_format_json_quote_denormals": 1,
    "output_format_json_quote_64bit_integers": 0,
    "output_format_json_quote_decimals": 1,
    "output_format_json_named_tuples_as_objects": 1,
    "output_format_json_escape_forward_slashes": 0,
    "date_time_output_format": "iso",
}
"""Settings of ClickHouse with which its JSON shows each value whole."""


def parquet_rows(directory: Path) -> list[tuple[int, Any]]:
    """The rows of all files as plain values; a file without the column holds nulls of it."""
    found: list[tuple[int, Any]] = []
    for path in sorted(directory.rglob("[!_.]*.parquet")):
        table = pq.ParquetFile(path).read()
        values = plain(table[FIELD]) if FIELD in table.column_names else [None] * len(table)
        found += zip(table["id"].to_pylist(), values, strict=True)
    return found


def json_rows(lines: list[bytes]) -> list[tuple[int, Any]]:
    """The rows of JSON objects."""
    rows = [dict(read_json(line)) for line in lines]
    return [(int(row["id"]), row.get(FIELD)) for row in rows]


def clickhouse_rows(client: Any, table: str) -> tuple[str, list[tuple[int, Any]]]:
    """The type of the column, and the rows; text holds one character for each byte."""
    name = table.rpartition(".")[2]
    query = f"SELECT type FROM system.columns WHERE table = '{name}' AND name = '{FIELD}'"
    kind = client.raw_query(query).decode().strip()
    raw = client.raw_query(
        f"SELECT id, `{FIELD}` FROM {table} FORMAT JSONCompactEachRow",
        settings=EXACT,
    )
    rows = [read_json(line) for line in raw.decode("latin-1").split("\n") if line]
    return kind, [(int(row[0]), row[1]) for row in rows]


def postgres_rows(connection: Any, table: str) -> tuple[str, list[tuple[int, Any]]]:
    """The type of the column, and the rows; every value as PostgreSQL's text of it."""
    connection.execute("SET timezone = 'UTC'; SET intervalstyle = 'iso_8601'")
    found = connection.execute(f'SELECT id, "{FIELD}"::text FROM {table}').fetchall()
    query = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s"
    (kind,) = connection.execute(query, (table, FIELD)).fetchone()
    return kind, found


def is_same_in(expected: Any, got: Any, kind: str) -> bool:
    """Whether a column of this type holds the value: the same number, moment, text, ... in its own form.

    Floats may be rounded to the nearest float of a narrower column, if that is finite; nothing else may.
    """
    if expected is None:  # lists, maps and tuples of ClickHouse cannot be null
        return _is_empty(got)
    if got is None:
        return False
    lower = kind.lower()
    if lower in ("json", "jsonb"):
        return _is_json(expected, read_json(got) if isinstance(got, str) else got, lower == "jsonb")
    match expected:
        case bool():
            if isinstance(got, bool) or (number := _number(got)) is None:
                return str(got).lower() in (("true", "t") if expected else ("false", "f"))
            return number == int(expected)
        case int() | Decimal():
            if isinstance(got, bool):
                return expected in (0, 1) and got == bool(expected)
            number = _number(got)
            return number is not None and number.is_finite() and _float_of(number, expected, lower)
        case Float():
            return _is_float(expected, got, lower)
        case Text(raw):
            return _is_text(raw, got, lower)
        case bytes():
            return _is_text(expected, got, lower)
        case Day(days):
            return _is_moment(days * DAY, got, lower) or _number(got) == days
        case Moment(ns):
            return _is_moment(ns, got, lower) or _counts(got, ns)
        case Clock(ns):
            return clock_of(str(got)) == ns or _counts(got, ns)
        case Span(ns):
            return span_of(str(got)) == ns or _counts(got, ns)
        case UUID():
            return str(got).lower() in (str(expected), f"\\x{expected.hex}")
        case Opaque():
            return isinstance(got, str)
        case Struct(fields):
            if isinstance(got, str) and got.startswith("("):  # a tuple as a key
                return got == f"({', '.join(str(v) for _, v in fields)})"
            if isinstance(got, list) and not isinstance(got, Pairs):  # a tuple without names
                return len(got) == len(fields) and all(
                    is_same_in(v, each, lower) for (_, v), each in zip(fields, got, strict=True)
                )
            if not isinstance(got, Pairs):
                return isinstance(got, str) and is_json_of(expected, read_json(got))
            theirs = dict(got)
            # what a tuple has no field for is left out, as the log says
            is_limited = "tuple(" in lower or "nested(" in lower
            return all(
                is_same_in(v, theirs.get(n), lower)
                for n, v in fields
                if n in theirs or not is_limited
            )
        case Entries(pairs):
            if not isinstance(got, Pairs):
                return isinstance(got, str) and is_json_of(expected, read_json(got))
            return len(got) == len(pairs) and all(
                is_same_in(a, c, "string") and is_same_in(b, d, lower)
                for (a, b), (c, d) in zip(pairs, got, strict=True)
            )
        case tuple():
            if not isinstance(got, list):
                return isinstance(got, str) and is_json_of(expected, read_json(got))
            return len(got) == len(expected) and all(
                is_same_in(a, b, lower) for a, b in zip(expected, got, strict=True)
            )
    raise AssertionError(expected)


_PARSED = (
    "int4range",
    "point",
    "tsvector",
    "xml",
    "inet",
    "cidr",
    "macaddr",
    "timetz",
    "dynamic",
    "variant",
)


_MONEY = re.compile(r"[$,]")
_ENUM = re.compile(r"'(\w*)' = (-?\d+)")
_ZONE = re.compile(r"'(\w+/\w+)'")


def is_held(expected: Any, got: Any, kind: str) -> bool:
    """As `is_same_in`, for a narrow column: times may be cut to its digits, as the log says.

    The text of a type that only the server knows, such as a range, is what the server makes of it.
    """
    inner = kind.lower().removeprefix("lowcardinality(").removeprefix("nullable(").rstrip(")")
    if expected is not None and got is not None and inner.startswith(_PARSED):
        return True
    if expected is None or got is None:
        return is_same_in(expected, got, kind)
    if inner == "json" and isinstance(got, Pairs):  # of ClickHouse, whose paths have dots
        has_dots = "." in repr([name for name, _ in getattr(expected, "fields", ())])
        return has_dots or is_same_in(_paths(expected), _in_utf8(got), "dynamic")
    match expected:
        case Moment(ns) | Clock(ns) | Span(ns):
            if is_same_in(expected, got, kind):
                return True
            unit = NS["s"] if kind in ("Time", "Nullable(Time)") else _unit(inner)
            cut = replace(expected, ns=ns // unit * unit)
            if isinstance(expected, Clock) and inner.startswith("interval"):
                cut = Span(cut.ns)
            return is_same_in(cut, got, kind) or is_same_in(cut, str(got)[:10] + "T00:00:00", kind)
        case Day(days) if _counts(got, days * DAY):
            return True
        case Float(x) if inner.startswith(("date", "time")):
            return x == int(x) and is_held(int(x), got, kind)
        case int() if not isinstance(expected, bool) and inner.startswith(("date", "time")):
            per = DAY if inner in ("date", "date32") else NS["s"]
            return (
                is_same_in(Moment(expected * per, zoned=True), got, kind)
                or is_same_in(Clock(expected * per), got, kind)
                or (str(got).startswith("-") and expected < 0)
            )
        case int() | Float() if inner.startswith("bool"):
            value = expected.value if isinstance(expected, Float) else expected
            return value in (0, 1) and str(got).lower() == str(bool(value)).lower()
        case Decimal() if "float" in inner or inner in ("real", "double precision"):
            return is_same_in(Text(str(expected).encode()), got, kind)
        case int() | Decimal() | Float() if inner.startswith("enum"):
            return dict(_ENUM.findall(kind)).get(got) == f"{_value_of(expected):.0f}"
        case Text(raw) if inner.startswith("enum") and raw.isdigit():  # a number in JSON
            number = dict(_ENUM.findall(kind)).get(got)
            return number == raw.decode() or is_same_in(expected, got, kind)
        case Text() | bytes() if inner.startswith(("interval", "money")):
            return True
        case int() | Decimal() | Float() if inner == "money":
            return _number(_MONEY.sub("", str(got))) == _value_of(expected)
        case int() | Decimal() | Float() if inner.startswith("interval"):
            return span_of(str(got)) == _value_of(expected) * NS["s"]
        case Text(raw) if (zone := _ZONE.search(kind)) is not None:
            found = moment_of(raw.decode(errors="replace").strip())
            if found is not None and not found[1]:
                return _is_moment(_in_zone(found[0], zone[1]), got, inner)
        case tuple() if kind.startswith("Array(") and isinstance(got, list):
            return len(got) == len(expected) and all(
                is_held(a, b, kind[6:-1]) for a, b in zip(expected, got, strict=True)
            )
        case Entries(pairs) if kind.startswith("Map(") and isinstance(got, Pairs):
            values = kind[4:-1].split(", ", 1)[1]
            return len(got) == len(pairs) and all(
                is_same_in(a, c, "string") and is_held(b, d, values)
                for (a, b), (c, d) in zip(pairs, got, strict=True)
            )
        case tuple() if inner.endswith("[]"):  # of PostgreSQL
            items = str(got).replace("{", "[").replace("}", "]").replace("NULL", "null")
            return is_same_in(expected, read_json(items), kind)
        case UUID() | int() | Float() if inner.startswith("ipv"):
            value = expected.int if isinstance(expected, UUID) else _value_of(expected)
            return int(ipaddress.ip_address(str(got))) == value
        case int() | Float() | Decimal() if inner.startswith("fixedstring"):
            return is_same_in(expected, str(got).rstrip("\0"), kind)
    return is_same_in(expected, got, kind)


def _value_of(expected: Any) -> Decimal:
    """The number of an integer, a float or a decimal."""
    return Decimal(repr(expected.value)) if isinstance(expected, Float) else Decimal(expected)


def _in_zone(ns: int, name: str) -> int:
    """The time since 1970 of a local time in a zone."""
    local = datetime.fromtimestamp(ns // NS["s"], UTC).replace(tzinfo=ZoneInfo(name))
    shift = local.utcoffset()
    assert shift is not None
    return ns - int(shift.total_seconds()) * NS["s"]


def _paths(value: Any) -> Any:
    """An object as ClickHouse's JSON has it: without nulls and empty objects, which have no paths."""
    match value:
        case Struct(fields):
            return Struct(_present(fields))
        case Entries(pairs):
            return Entries(_present(pairs))
        case tuple():
            return tuple(map(_paths, value))
    return value


def _present(pairs: tuple[tuple[Any, Any], ...]) -> tuple[tuple[Any, Any], ...]:
    found = ((name, _paths(value)) for name, value in pairs)
    return tuple(pair for pair in found if pair[1] not in (None, Struct(()), Entries(())))


def _in_utf8(got: Any) -> Any:
    """JSON that was read with one character for each byte."""
    if isinstance(got, Pairs):
        return Pairs((_in_utf8(name), _in_utf8(value)) for name, value in got)
    if isinstance(got, list):
        return [_in_utf8(each) for each in got]
    return got.encode("latin-1").decode() if isinstance(got, str) else got


def _unit(kind: str) -> int:
    """The nanoseconds between two times of a type."""
    if kind.startswith("date") and not kind.startswith("datetime"):
        return DAY
    found = re.search(r"(?:64|time|timestamp|timestamptz|timetz|second)\((\d)", kind)
    if found is not None:
        return 10 ** (9 - int(found[1]))
    return NS["s"] if kind.startswith("datetime") else NS["us"]


def _is_empty(got: Any) -> bool:
    if isinstance(got, Pairs):
        return all(_is_empty(value) for _, value in got)
    return got is None or (isinstance(got, list) and all(map(_is_empty, got)))


def _is_json(expected: Any, got: Any, is_jsonb: bool) -> bool:
    raw = expected.raw if isinstance(expected, Text) else expected
    if isinstance(raw, bytes):  # the text of a document
        return repr(_read(raw)) == repr(got) or is_json_of(expected, got)
    return is_json_of(_without_negative_zero(expected) if is_jsonb else expected, got)


def _read(raw: bytes) -> Any:
    try:
        return read_json(raw)
    except ValueError:
        return raw


def _without_negative_zero(value: Any) -> Any:
    """As jsonb's numbers, which are `numeric`."""
    match value:
        case Float(x, bits) if x == 0:
            return Float(0.0, bits)
        case Struct(fields):
            return Struct(tuple((n, _without_negative_zero(v)) for n, v in fields))
        case Entries(pairs):
            return Entries(tuple((k, _without_negative_zero(v)) for k, v in pairs))
        case tuple():
            return tuple(map(_without_negative_zero, value))
    return value


def _number(got: Any) -> Decimal | None:
    try:
        return Decimal(got)
    except (InvalidOperation, TypeError, ValueError):
        return None


def _float_of(number: Decimal, expected: Any, kind: str) -> bool:
    """A float is spelled by its shortest text: what it is, is the float of that text."""
    if "float32" in kind or kind == "real":
        return Decimal(float(np.float32(number))) == expected
    if "bfloat" in kind:
        return _is_bfloat(number, Decimal(expected))
    if "float" in kind or "double" in kind:
        return Decimal(float(number)) == expected
    return number == expected


def _nearest(number: Decimal, kind: str) -> float:
    """The float of a column that is nearest to a number; the text of two numbers of one float may differ."""
    is_narrow = "float32" in kind or kind == "real"
    with np.errstate(over="ignore"):
        return float(np.float32(number)) if is_narrow else float(number)


def _is_bfloat(number: Decimal, expected: Decimal) -> bool:
    """ClickHouse cuts the digits that BFloat16 lacks: it has 8 bits of them, and 2**-133 is its least number."""
    return abs(number - expected) <= max(abs(expected) / 128, Decimal(2) ** -133)


def _is_float(expected: Float, got: Any, kind: str) -> bool:
    if isinstance(got, bool) or (number := _number(got)) is None:
        return False
    if not math.isfinite(expected.value):
        return same_float(expected, float(number))
    if not number.is_finite():
        return False
    if "float32" in kind or kind == "real":
        with np.errstate(all="ignore"):
            narrow = float(np.float32(expected.value))
        return math.isfinite(narrow) and same_float(Float(narrow, 32), float(got))
    if "bfloat" in kind:
        return _is_bfloat(number, Decimal(expected.value))
    if "float" in kind or "double" in kind:
        return same_float(expected, float(got))
    shortest = repr(expected.value) if expected.bits == 64 else str(np.float32(expected.value))
    return number in (Decimal(shortest), Decimal(expected.value))


def _is_text(raw: bytes, got: Any, kind: str) -> bool:
    """Text that a column of another type holds is the number, time, address, ... that it spells."""
    if isinstance(got, bool) or kind.startswith("bool"):
        is_true = str(got).lower() in ("true", "t")
        words = ("true", "1", "yes", "on") if is_true else ("false", "0", "no", "off")
        word = raw.decode(errors="replace").strip().lower()
        return word != "" and any(each.startswith(word) for each in words)
    if isinstance(got, str):
        if (
            raw in (_bytes_of(got), got.encode("utf-8", "surrogatepass"))
            or got == "\\x" + raw.hex()
        ):
            return True
        if "fixedstring" in kind or kind.startswith(("character(", "bpchar")):
            return raw.rstrip(b" \0") == _bytes_of(got).rstrip(b" \0")
    text = raw.decode(errors="replace").strip()
    mine, theirs = _number(text), _number(got)
    if theirs is not None:
        if mine is None:
            return False
        return (
            (mine.is_nan() and theirs.is_nan())
            or _float_of(theirs, mine, kind)
            or (
                ("float" in kind or "double" in kind or kind == "real")
                and math.isfinite(float(theirs))
                and _nearest(mine, kind) == _nearest(theirs, kind)
            )
        )
    moment, found = moment_of(text), moment_of(str(got))
    if moment is not None and found is not None:
        return moment[0] == found[0]
    if clock_of(text) is not None:
        return clock_of(text) == clock_of(str(got))
    for read in (UUID, ipaddress.ip_address):
        try:
            mine_, theirs_ = read(text), read(str(got))
        except ValueError:
            continue
        return bool(mine_ == theirs_ or mine_ == getattr(theirs_, "ipv4_mapped", None))
    return False


def _bytes_of(got: str) -> bytes:
    """The bytes of text that was read with one character for each."""
    return b"".join(
        c.encode("latin-1") if ord(c) < 256 else c.encode("utf-8", "surrogatepass") for c in got
    )


def _is_moment(ns: int, got: Any, kind: str) -> bool:
    found = moment_of(str(got))
    return found is not None and found[0] == ns


def _counts(got: Any, ns: int) -> bool:
    """Whether it is the count of some unit."""
    number = _number(got)
    return number is not None and any(number * unit == ns for unit in NS.values())


def array_of(values: Any, storage: pa.DataType, kind: pa.DataType) -> pa.Array[Any]:
    """An array by the integers that it consists of."""
    return pa.array(values, storage).view(kind)
