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
    connect Decimal (scale)                            base64             decimal
    io.debezium.data.VariableScaleDecimal              scale and base64   decimal
    text, double                                       text, number       decimal

A field of another type, such as an integer for a time, keeps the encoded value.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.casting import Cast, Misfit
from ...columns.fitting import fit
from ...columns.kinds import either
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
_TEXTS: Final = ("ZonedTimestamp", "ZonedTime", "IsoDate", "IsoTime", "IsoTimestamp", "Text")
_OTHERS: Final = ("Date", "Decimal", "VariableScaleDecimal", "Double")
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
}
_MOST_SCALE: Final = 20_000  # PostgreSQL has up to 16,383
_UTC: Final = r"(Z|[+]00(:?00)?)$"


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
    """

    name: str
    scale: int | None = None

    @classmethod
    def of(cls, text: str) -> Encoding:
        """Parse `io.debezium.time.MicroTimestamp`, `MicroTimestamp` or `Decimal(2)`.

        Raises:
            StrategyError: there is no such encoding.
        """
        found = _NAME.fullmatch(text)
        if found is None or found[1] not in (*_UNITS, *_TEXTS, *_OTHERS):
            raise StrategyError(
                f"Debezium has no encoding {text!r}; use one of "
                f"{', '.join((*_UNITS, *_TEXTS, *_OTHERS))}, with the scale of a decimal: Decimal(2)"
            )
        if found[1] == "Decimal" and found[2] is None:
            raise StrategyError("the encoding Decimal needs the scale of the column: Decimal(2)")
        return cls(found[1], None if found[2] is None else int(found[2]))

    @property
    def annotation(self) -> Any:
        """The type of the encoded value in JSON."""
        if self.name in (*_UNITS, "Date", "UnknownNumber"):
            return int
        if self.name == "VariableScaleDecimal":
            return ScaledDecimal
        return float if self.name == "Double" else str

    def decode(self, values: Array, to: pa.DataType, field: str) -> tuple[Array, dict[int, str]]:
        """Return encoded values as a column of a type, and the reason for each that does not fit."""
        if (unknown := _UNKNOWN.get(self.name)) is not None:
            rows = np.flatnonzero(values.is_valid())
            reason = f"field {field}: {unknown.replace('FIELD', field.rpartition('.')[2])}"
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

    def __str__(self) -> str:
        return self.name if self.scale is None else f"{self.name}({self.scale})"

    def _caster(self, to: pa.DataType) -> Callable[[Array], Cast]:
        types = pa.types
        is_time = types.is_temporal(to)
        if self.name == "Date" and is_time:
            return lambda values: _after(_days(values), to)
        if self.name in _UNITS and is_time:
            kind: Any = {"timestamp": pa.timestamp, "time": _time, "duration": pa.duration}
            make = kind[self.name.lower().removeprefix("micro").removeprefix("nano")]
            return partial(_ticks, kind=make(_UNITS[self.name]), to=to)
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


def special(to: pa.DataType) -> bool:
    """Return whether Debezium has several encodings for the values of a column."""
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


def encodings_of_schema(fields: list[Mapping[str, Any]]) -> dict[str, Encoding]:
    """Return the encodings that a Connect schema names, by field: those of decimals, times and plain text."""
    found = {}
    for each in fields:
        name = each.get("name")
        if name is None and each.get("type") == "string":
            found[str(each.get("field"))] = Encoding("Text")
        scale = (each.get("parameters") or {}).get("scale")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            continue
        last = name.rpartition(".")[2]
        if last in (*_UNITS, *_TEXTS, *_OTHERS) and name != last:
            found[str(each.get("field"))] = Encoding(last, None if scale is None else int(scale))
    return found
