"""How Debezium encodes decimals and times, and the columns that are made of them.

    name of the encoding                               JSON               becomes
    io.debezium.time.Date, connect Date                days               date
    io.debezium.time.Timestamp, connect Timestamp      milliseconds       timestamp
    io.debezium.time.MicroTimestamp, NanoTimestamp     micro-, nanosec.   timestamp
    io.debezium.time.ZonedTimestamp, Iso...            text (a date ends  timestamp, date, time
                                                       with Z, too)
    io.debezium.time.Time, connect Time                milliseconds       time
    io.debezium.time.MicroTime, NanoTime               micro-, nanosec.   time
    io.debezium.time.ZonedTime                         text in UTC        time
    io.debezium.time.MicroDuration, NanoDuration       micro-, nanosec.   duration
    io.debezium.time.Interval                          ISO 8601           duration, without months
    connect Decimal (scale)                            base64             decimal
    io.debezium.data.VariableScaleDecimal              scale and base64   decimal
    text, double                                       text, number       decimal
    Base64, Base64Url, Hex (binary.handling.mode)      text               bytes

A field of another type, such as an integer for a time, keeps the encoded value. An array has the encoding of
its items.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.casting import Cast, Misfit
from ...columns.fitting import fit
from ...columns.kinds import Lists, either, is_list, null_rows
from ...columns.texts import excerpt, python_values
from ...errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...columns.kinds import Array

_pa: Any = pa
_UNITS: Final = {
    "Timestamp": "ms",
    "MicroTimestamp": "us",
    "NanoTimestamp": "ns",
    "Time": "ms",
    "MicroTime": "us",
    "NanoTime": "ns",
    "MicroDuration": "us",
    "NanoDuration": "ns",
}
_TEXTS: Final = (
    "ZonedTimestamp", "ZonedTime", "IsoDate", "IsoTime", "IsoTimestamp", "Interval", "Text",
)  # fmt: skip
_BYTES: Final[Mapping[str, Callable[[str], bytes]]] = {
    "Base64": partial(base64.b64decode, validate=True),
    "Base64Url": lambda text: base64.b64decode(text, altchars=b"-_", validate=True),
    "Hex": bytes.fromhex,
}
_NAMES: Final = (*_UNITS, *_TEXTS, *_BYTES, "Date", "Decimal", "VariableScaleDecimal", "Double")
_NAME: Final = re.compile(
    r"(?:io\.debezium\.(?:time|data)\.|org\.apache\.kafka\.connect\.data\.)?(\w+)(?:\((-?\d+)\))?"
)
_UNKNOWN: Final = {
    "UnknownNumber": (
        "the unit of the number is not known; let the converter send schemas, or set "
        "Debezium(encodings={'FIELD': 'MicroTimestamp'}), or times= as the connector's time.precision.mode"
    ),
    "UnknownText": (
        "the scale of the decimal is not known; let the converter send schemas, or set "
        "Debezium(encodings={'FIELD': 'Decimal(2)'}), or decimals= as the connector's decimal.handling.mode"
    ),
    "UnknownBytes": (
        "the connector sends bytes as text (binary.handling.mode); set Debezium(encodings={'FIELD': 'Hex'}), "
        "or 'Base64' or 'Base64Url'"
    ),
}
_MOST_SCALE: Final = 20_000  # PostgreSQL has up to 16,383
_UTC: Final = r"(Z|[+]00(:?00)?)$"
_SPAN: Final = re.compile(
    r"P(?:[+-]?0Y)?(?:[+-]?0M)?(?:([+-]?\d{1,9})D)?"
    r"(?:T(?:([+-]?\d{1,9})H)?(?:([+-]?\d{1,9})M)?(?:([+-]?\d{1,12}(?:\.\d{1,12})?)S)?)?"
)
_SECONDS: Final = (86_400, 3_600, 60, 1)


class ScaledDecimal(msgspec.Struct):
    """A `VariableScaleDecimal`: its digits are the bytes of an integer, in base64."""

    scale: int
    value: str


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of a field.

    Attributes:
        name: the last part of its name, such as `MicroTimestamp`; `Text` and `Double` are our own.
        scale: of a `Decimal`.
        of_items: the field is an array, and this is the encoding of its items.
    """

    name: str
    scale: int | None = None
    of_items: bool = False

    @classmethod
    def of(cls, text: str) -> Encoding:
        """Parse `io.debezium.time.MicroTimestamp`, `MicroTimestamp` or `Decimal(2)`.

        Raises:
            StrategyError: there is no such encoding.
        """
        found = _NAME.fullmatch(text)
        if found is None or found[1] not in _NAMES:
            raise StrategyError(
                f"Debezium has no encoding {text!r}; use one of "
                f"{', '.join(_NAMES)}, with the scale of a decimal: Decimal(2)"
            )
        if found[1] == "Decimal" and found[2] is None:
            raise StrategyError("the encoding Decimal needs the scale of the column: Decimal(2)")
        return cls(found[1], None if found[2] is None else int(found[2]))

    @property
    def annotation(self) -> Any:
        """The type of the encoded value in JSON."""
        if self.of_items:
            item = replace(self, of_items=False).annotation
            return list[item | None]  # type: ignore[valid-type]
        if self.name in (*_UNITS, "Date", "UnknownNumber"):
            return int
        if self.name == "VariableScaleDecimal":
            return ScaledDecimal
        return float if self.name == "Double" else str

    def decode(self, values: Array, to: pa.DataType, field: str) -> tuple[Array, dict[int, str]]:
        """Return encoded values as a column of a type, and the reason for each that does not fit."""
        if self.of_items and is_list(values.type) and is_list(to):
            return self._decode_items(Lists(values), to, field)
        if (unknown := _UNKNOWN.get(self.name)) is not None:
            rows = np.flatnonzero(values.is_valid())
            name = field.rpartition(".")[2].removesuffix("[]")
            reason = f"field {field}: {unknown.replace('FIELD', name)}"
            return _pa.nulls(len(values), to), dict.fromkeys(rows.tolist(), reason)
        try:
            cast = self._caster(to)(values)
        except Misfit as error:
            rows = np.flatnonzero(values.is_valid())
            return _pa.nulls(len(values), to), dict.fromkeys(
                rows.tolist(), f"field {field}: {self}: {error}"
            )
        bad = either(cast.bad, cast.cut)
        if bad is None:
            return cast.array, {}
        rows = np.flatnonzero(bad)
        shown = python_values(values.take(pa.array(rows, pa.int64())))
        reasons = {
            int(row): f"field {field}: {self} {excerpt(value)} does not fit {to}"
            for row, value in zip(rows, shown, strict=True)
        }
        return cast.array, reasons

    def _decode_items(self, lists: Lists, to: Any, field: str) -> tuple[Array, dict[int, str]]:
        of_item = replace(self, of_items=False)
        items, failures = of_item.decode(lists.items, to.value_type, f"{field}[]")
        parents = lists.parents()
        reasons = {int(parents[item]): reason for item, reason in reversed(failures.items())}
        if not to.value_field.nullable:
            absent = lists.of_items(null_rows(lists.items))
            for row in () if absent is None else np.flatnonzero(absent).tolist():
                reasons.setdefault(row, f"field {field}[]: null")
        return lists.with_items(items, to), reasons

    def __str__(self) -> str:
        return self.name if self.scale is None else f"{self.name}({self.scale})"

    def _caster(self, to: pa.DataType) -> Callable[[Array], Cast]:
        types = pa.types
        is_time = types.is_temporal(to)
        if self.name in _BYTES and types.is_binary(to):
            return partial(_bytes, decode=_BYTES[self.name])
        if self.name == "Date" and is_time:
            return lambda values: _after(_days(values), to)
        if self.name in _UNITS and is_time:
            kind: Any = {"timestamp": pa.timestamp, "time": _time, "duration": pa.duration}
            make = kind[self.name.lower().removeprefix("micro").removeprefix("nano")]
            if make is _time and types.is_duration(to):  # MySQL's TIME has up to 838 hours
                make = pa.duration
            return partial(_ticks, kind=make(_UNITS[self.name]), to=to)
        if self.name in _TEXTS and types.is_duration(to):
            return partial(_spans, to=to)
        if self.name in _TEXTS and is_time:
            return lambda values: fit(
                values if types.is_timestamp(to) else pc.replace_substring_regex(values, _UTC, ""),
                to,
            )
        if self.name in ("Decimal", "VariableScaleDecimal") and values_are_numbers(to):
            return lambda values: _after(_decimals(values, self.scale), to)
        return lambda values: fit(values, to)


def values_are_numbers(to: pa.DataType) -> bool:
    """Return whether a column takes the number of a decimal, and not its encoded form."""
    types = pa.types
    return (
        types.is_decimal(to) or types.is_floating(to) or types.is_integer(to) or types.is_string(to)
    )


def special(to: Any) -> bool:
    """Return whether Debezium has several encodings for the values of a column, or for the items of lists."""
    if is_list(to):
        return special(to.value_type)
    return pa.types.is_temporal(to) or pa.types.is_decimal(to)


def _time(unit: str) -> pa.DataType:
    kind: pa.DataType = pa.time32("ms") if unit == "ms" else _pa.time64(unit)
    return kind


def _after(made: Cast, to: Any) -> Cast:
    fitted = fit(made.array, to)
    return Cast(fitted.array, either(made.bad, fitted.bad), {}, fitted.cut)


def _days(values: Array) -> Cast:
    days = fit(values, pa.int32())
    return days._replace(array=days.array.cast(pa.date32()))


def _ticks(values: Array, kind: pa.DataType, to: Any) -> Cast:
    narrow = fit(values, pa.int32() if kind.bit_width == 32 else pa.int64())
    return _after(narrow._replace(array=narrow.array.cast(kind)), to)


def _spans(values: Array, to: Any) -> Cast:
    """Parse `P0Y0M3DT4H5M6.78S`; months and years have no length, so that none is taken."""
    found: list[int | None] = []
    bad = np.zeros(len(values), np.bool_)
    for row, text in enumerate(values.to_pylist()):
        found.append(None if text is None else _nanoseconds(text))
        bad[row] = text is not None and found[-1] is None
    return _after(Cast(pa.array(found, pa.int64()).cast(pa.duration("ns")), bad), to)


def _nanoseconds(text: str) -> int | None:
    parts = _SPAN.fullmatch(text)
    if parts is None or not any(parts.groups()):
        return None
    ticks = Fraction(0)
    for part, seconds in zip(parts.groups(), _SECONDS, strict=True):
        ticks += Fraction(part or "0") * seconds * 10**9
    return int(ticks) if ticks.denominator == 1 and abs(ticks) < 2**63 else None


def _bytes(values: Array, decode: Callable[[str], bytes]) -> Cast:
    found: list[bytes | None] = []
    bad = np.zeros(len(values), np.bool_)
    for row, text in enumerate(values.to_pylist()):
        try:
            found.append(None if text is None else decode(text))
        except ValueError:
            bad[row] = True
            found.append(None)
    return Cast(pa.array(found, pa.binary()), bad if bad.any() else None)


def _decimals(values: Array, scale: int | None) -> Cast:
    """Decode unscaled integers; each is a decimal of the column's scale, or of its own."""
    bad = np.zeros(len(values), np.bool_)
    texts: list[str | None] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            texts.append(None if value is None else _decimal(value, scale))
        except (ValueError, binascii.Error):
            bad[row] = True
            texts.append(None)
    return Cast(pa.array(texts, pa.string()), bad if bad.any() else None)


def _decimal(value: Any, scale: int | None) -> str:
    if isinstance(value, dict):
        value, scale = value["value"], value["scale"]
    raw = value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
    if not raw or scale is None or abs(scale) > _MOST_SCALE:
        raise ValueError("no digits")
    number = int.from_bytes(raw, "big", signed=True)
    if scale <= 0:
        return str(number * 10**-scale)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


class ConnectSchema(msgspec.Struct):
    """The schema of a field, or of a whole message, as Connect's JSON converter sends it."""

    field: Any = None
    type: Any = None
    name: Any = None
    items: ConnectSchema | None = None
    fields: list[ConnectSchema] | None = None
    parameters: dict[str, Any] | None = None


def encodings_of_schema(schema: ConnectSchema) -> dict[str, Encoding]:
    """Return the encodings that a schema names, by field: those of decimals, times and plain text.

    Raises:
        msgspec.ValidationError: the scale of a decimal is no integer.
    """
    found = {}
    for field in schema.fields or ():
        is_array = field.type == "array"
        described = (field.items or ConnectSchema()) if is_array else field
        encoding = _encoding_of(described)
        if encoding is not None:
            found[str(field.field)] = replace(encoding, of_items=is_array)
    return found


def _encoding_of(described: ConnectSchema) -> Encoding | None:
    name = described.name
    if name is None and described.type == "string":
        return Encoding("Text")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        return None
    last = name.rpartition(".")[2]
    if last not in _NAMES or name == last:
        return None
    scale = (described.parameters or {}).get("scale")
    try:
        return Encoding(last, None if scale is None else int(str(scale)))
    except ValueError:
        raise msgspec.ValidationError(
            f"the scale of a decimal is no integer: {excerpt(scale)}"
        ) from None
