"""Arrow values as plain Python values that lose nothing, and whether what a client read is the same value."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

NS: Final = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
DAY: Final = 86_400 * 10**9


@dataclass(frozen=True)
class Float:
    value: float
    bits: int


@dataclass(frozen=True)
class Moment:
    ns: int
    zoned: bool


@dataclass(frozen=True)
class Day:
    days: int


@dataclass(frozen=True)
class Clock:
    ns: int


@dataclass(frozen=True)
class Span:
    ns: int


@dataclass(frozen=True)
class Text:
    raw: bytes
    """UTF-8, or what is not."""


@dataclass(frozen=True)
class Entries:
    """Of a map, in order."""

    pairs: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class Struct:
    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Opaque:
    value: Any


def plain(array: Any) -> list[Any]:
    """The values of an array."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in plain(chunk)]
    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        if kind == pa.uuid():
            return [None if v is None else UUID(bytes=v) for v in array.storage.to_pylist()]
        if kind == pa.bool8():
            return [None if v is None else v != 0 for v in array.storage.to_pylist()]
        return plain(array.storage)
    if types.is_null(kind):
        return [None] * len(array)
    if types.is_dictionary(kind):
        known = plain(array.dictionary)
        return [None if at is None else known[at] for at in array.indices.to_pylist()]
    if types.is_run_end_encoded(kind):
        ends, known = array.run_ends.to_pylist(), plain(array.values)
        found = []
        for at in range(array.offset, array.offset + len(array)):
            found.append(known[next(n for n, end in enumerate(ends) if at < end)])
        return found
    if types.is_union(kind):
        children = [plain(array.field(n)) for n in range(kind.num_fields)]
        codes = [kind.type_codes.index(c) for c in array.type_codes.to_pylist()]
        at = array.offsets.to_pylist() if kind.mode == "dense" else range(len(array))
        return [children[c][n] for c, n in zip(codes, at, strict=True)]
    if types.is_map(kind):
        return _nested(
            array,
            lambda part: Entries(tuple(zip(plain(part[0]), plain(part[1]), strict=True))),
            array.keys,
            array.items,
        )
    if types.is_struct(kind):
        columns = [(f.name, plain(child)) for f, child in zip(kind, array.flatten(), strict=True)]
        mask = array.is_null().to_pylist()
        return [
            None if mask[n] else Struct(tuple((name, c[n]) for name, c in columns))
            for n in range(len(array))
        ]
    if (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or "list_view" in str(kind)
    ):
        found = []
        for n, is_valid in enumerate(array.is_valid().to_pylist()):
            one = array.slice(n, 1)  # pyarrow's scalars of null views end the process at times
            has_items = is_valid and pc.list_value_length(one)[0].as_py() > 0
            items = plain(pc.list_flatten(one)) if has_items else []
            found.append(tuple(items) if is_valid else None)
        return found
    if types.is_floating(kind):
        return [None if v is None else Float(float(v), kind.bit_width) for v in array.to_pylist()]
    if types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view():
        raw = pa.binary() if types.is_string(kind) else pa.large_binary()
        if kind == pa.string_view():
            return [None if v is None else Text(v.encode()) for v in array.to_pylist()]
        return [None if v is None else Text(v) for v in array.view(raw).to_pylist()]
    if types.is_fixed_size_binary(kind) and kind.byte_width == 0:
        return [None if not ok else b"" for ok in array.is_valid().to_pylist()]
    if types.is_temporal(kind) and not types.is_interval(kind):
        raw = pa.int32() if kind.bit_width == 32 else pa.int64()
        return [None if v is None else _temporal(kind, v) for v in array.view(raw).to_pylist()]
    if types.is_interval(kind):
        return [None if v is None else Opaque(tuple(v)) for v in array.to_pylist()]
    found = array.to_pylist()
    return found


def _nested(array: Any, make: Any, *children: Any) -> list[Any]:
    ends = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [
        make([child.slice(ends[n], ends[n + 1] - ends[n]) for child in children])
        if valid[n]
        else None
        for n in range(len(array))
    ]


def _temporal(kind: Any, value: int) -> Any:
    types = pa.types
    if types.is_date32(kind):
        return Day(value)
    if types.is_date64(kind):
        return Moment(value * NS["ms"], False) if value % 86_400_000 else Day(value // 86_400_000)
    ns = value * NS[kind.unit]
    if types.is_timestamp(kind):
        return Moment(ns, kind.tz is not None)
    return Clock(ns) if types.is_time(kind) else Span(ns)


def is_same(expected: Any, got: Any) -> bool:
    """Whether two plain values are the same; widths of numbers and units of times may differ."""
    match expected:
        case None:
            return got is None
        case bool():
            return got is expected
        case Float():
            return isinstance(got, Float) and same_float(expected, got.value)
        case Struct():
            if not isinstance(got, Struct):
                return False
            theirs = dict(got.fields)
            return len(theirs) == len(expected.fields) and all(
                n in theirs and is_same(v, theirs[n]) for n, v in expected.fields
            )
        case Entries():
            if not isinstance(got, Entries) or len(got.pairs) != len(expected.pairs):
                return False
            return all(
                is_same(a, c) and is_same(b, d)
                for (a, b), (c, d) in zip(expected.pairs, got.pairs, strict=True)
            )
        case tuple():
            return (
                isinstance(got, tuple)
                and len(got) == len(expected)
                and all(map(is_same, expected, got))
            )
        case Text():
            return isinstance(got, Text) and got.raw == expected.raw
        case Opaque():
            return isinstance(got, Text | Opaque)
        case Decimal():
            return isinstance(got, Decimal | int) and got == expected
    return type(got) is type(expected) and bool(got == expected)


def same_float(expected: Float, got: float) -> bool:
    if math.isnan(expected.value) or math.isnan(got):
        return math.isnan(expected.value) and math.isnan(got)
    if expected.bits < 64 and not math.isinf(got):
        code = {32: "f", 16: "e"}[expected.bits]
        try:
            got = struct.unpack(code, struct.pack(code, got))[0]
        except OverflowError:
            return False
    return got == expected.value and math.copysign(1, got) == math.copysign(1, expected.value)


_MOMENT = re.compile(
    r"([+-]?\d{4,})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)? ?(Z|[+-]\d\d(?::?\d\d(?::\d\d)?)?| ?UTC)?( BC)?"
)


def moment_of(text: str) -> tuple[int, bool, bool] | None:
    """Nanoseconds since 1970 of ISO 8601, or PostgreSQL's text; whether there is a zone, and a time."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    if found[9]:
        year = 1 - year
    days = days_of(year, month, day)
    h, m, s = (int(found[n] or 0) for n in (4, 5, 6))
    ns = (days * 86_400 + h * 3600 + m * 60 + s) * 10**9 + int((found[7] or "0").ljust(9, "0"))
    zone = (found[8] or "").strip()
    if zone and zone not in ("Z", "UTC"):
        parts = [int(p) for p in re.findall(r"\d\d", zone)] + [0, 0]
        shift = parts[0] * 3600 + parts[1] * 60 + parts[2]
        ns -= (1 if zone[0] == "+" else -1) * shift * 10**9
    return ns, bool(zone), found[4] is not None


def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01, of any year (Howard Hinnant's days_from_civil)."""
    y = year - (month <= 2)
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


_SPAN = re.compile(
    r"([+-]?)P(?:(-?[\d.]+)D)?(?:T(?:(-?[\d.]+)H)?(?:(-?[\d.]+)M)?(?:(-?[\d.]+)S)?)?"
)
_SPAN_CLOCK = re.compile(r"(-?)(\d+):(\d\d):(\d\d(?:\.\d+)?)")
_CLOCK = re.compile(r"(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,9}))?")


def clock_of(text: str) -> int | None:
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    return (int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])) * 10**9 + int(
        (found[4] or "0").ljust(9, "0")
    )


def span_of(text: str) -> int | None:
    """Nanoseconds of an ISO 8601 duration, whose sign is that of the whole or of its parts, or of a clock."""
    if (clock := _SPAN_CLOCK.fullmatch(text)) is not None:
        parts = (Decimal(clock[at]) * scale for at, scale in ((2, 3600), (3, 60), (4, 1)))
        return int(sum(parts) * 10**9) * (-1 if clock[1] else 1)
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    scales = ((2, 86_400), (3, 3600), (4, 60), (5, 1))
    total = sum(Decimal(found[n] or 0) * scale for n, scale in scales) * 10**9
    return int(total) * (-1 if found[1] == "-" else 1) if total == int(total) else None


def is_json_of(expected: Any, got: Any) -> bool:
    """Whether a value that was read from JSON (numbers as Decimal, objects as lists of pairs) is the expected one."""
    match expected:
        case None:
            return got is None
        case bool():
            return got is expected
        case int():
            return (
                not isinstance(got, bool)
                and isinstance(got, Decimal | str)
                and _number(got) == expected
            )
        case Float(value, _):
            if not math.isfinite(value):
                if not isinstance(got, str):
                    return False
                try:
                    return same_float(expected, float(got))
                except ValueError:
                    return False
            if not isinstance(got, Decimal | str) or (number := _number(got)) is None:
                return False
            return same_float(expected, float(got) if isinstance(got, str) else float(number)) and (
                value != 0 or _sign(got) == math.copysign(1, value)
            )
        case Decimal():
            return isinstance(got, Decimal | str) and _number(got) == expected
        case Text(raw):
            return (
                isinstance(got, str)
                and got.encode("utf-8", "surrogatepass") == raw
                and _is_utf8(raw)
            )
        case bytes():
            return isinstance(got, str) and _is_bytes(expected, got)
        case UUID():
            return got == str(expected)
        case Day(days):
            return (
                isinstance(got, str)
                and (found := moment_of(got)) is not None
                and not found[2]
                and found[0] == days * DAY
            )
        case Moment(ns, zoned):
            return (
                isinstance(got, str)
                and (found := moment_of(got)) is not None
                and found[:2] == (ns, zoned)
            )
        case Clock(ns):
            return isinstance(got, str) and clock_of(got) == ns
        case Span(ns):
            return (isinstance(got, str) and span_of(got) == ns) or (
                isinstance(got, Decimal) and any(got * u == ns for u in NS.values())
            )
        case Struct(fields):
            if not isinstance(got, Pairs):
                return False
            theirs = dict(got)
            return (
                len(theirs) == len(got)
                and set(theirs) <= {n for n, _ in fields}
                and all(is_json_of(v, theirs.get(n)) for n, v in fields)
            )
        case Entries(pairs):
            if not isinstance(got, Pairs) or len(got) != len(pairs) or len(dict(got)) != len(got):
                return False
            # jsonb orders the keys in its own way
            return all(any(_is_key(a, c) and is_json_of(b, d) for c, d in got) for a, b in pairs)
        case tuple():
            return (
                isinstance(got, list)
                and not isinstance(got, Pairs)
                and len(got) == len(expected)
                and all(map(is_json_of, expected, got))
            )
        case Opaque():
            return isinstance(got, str)
    raise AssertionError(expected)


class Pairs(list[Any]):
    """A JSON object."""


def read_json(text: bytes | str) -> Any:
    """Read JSON strictly: NaN and Infinity are errors; numbers are Decimal, objects are Pairs."""

    def refuse(name: str) -> Any:
        raise ValueError(f"not JSON: {name}")

    return json.loads(
        text, parse_int=Decimal, parse_float=Decimal, parse_constant=refuse, object_pairs_hook=Pairs
    )


def _is_key(expected: Any, got: str) -> bool:
    if isinstance(expected, bool):
        return got in (("true", "1") if expected else ("false", "0"))
    return is_json_of(expected, got)


def _number(got: Any) -> Decimal | None:
    try:
        return Decimal(got)
    except InvalidOperation:
        return None


def _sign(got: Any) -> float:
    return math.copysign(1, float(got))


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_bytes(expected: bytes, got: str) -> bool:
    """As base64, or as text of which it can be told what the bytes were: `base64:...` marks what is not UTF-8."""
    try:
        if base64.b64decode(got, validate=True) == expected:
            return True
    except ValueError:
        pass
    if got.startswith("base64:"):
        try:
            if base64.b64decode(got[7:]) == expected:
                return True
        except ValueError:
            pass
    return got.encode("utf-8", "surrogatepass") == expected
