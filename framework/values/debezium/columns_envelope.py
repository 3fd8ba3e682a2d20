"""Envelopes of formats whose columns are those of the whole event: Avro and Protobuf."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.kinds import is_list, mask_where
from ...errors import StrategyError
from .encodings import Encoding
from .envelope import Envelopes, Raw, RowColumn, no_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..value_format import ValueFormat

_pa: Any = pa
_pc: Any = pc

_TYPES: dict[str, pa.DataType] = {
    "Date": pa.date32(),
    "Timestamp": pa.timestamp("ms", tz="UTC"),
    "MicroTimestamp": pa.timestamp("us", tz="UTC"),
    "NanoTimestamp": pa.timestamp("ns", tz="UTC"),
    "ZonedTimestamp": pa.timestamp("us", tz="UTC"),
    "IsoTimestamp": pa.timestamp("us", tz="UTC"),
    "IsoDate": pa.date32(),
    "IsoTime": pa.time64("us"),
    "Time": pa.time32("ms"),
    "MicroTime": pa.time64("us"),
    "NanoTime": pa.time64("ns"),
    "ZonedTime": pa.time64("us"),
    "MicroDuration": pa.duration("us"),
    "NanoDuration": pa.duration("ns"),
    "VariableScaleDecimal": pa.string(),
}


class ColumnsEnvelopes:
    """Reads envelopes that a format decodes to columns; see `EnvelopeReader`.

    The columns of the rows are those of `after`. A field of an encoding that its schema or `encodings=` names
    gets the type that the encoding means.
    """

    def __init__(
        self, inner: ValueFormat, encodings: Mapping[str, Encoding], *, flattened: bool
    ) -> None:
        if flattened:
            raise StrategyError(
                f"Debezium({inner}, flattened=True): only flattened JSON is read; read flattened rows of "
                f"another format as they are, with value={inner} and changes='keyed'"
            )
        self._inner = inner
        schema = inner.schema
        missing = [name for name in ("after", "op", "source") if name not in schema.names]
        if missing or not pa.types.is_struct(schema.field("after").type):
            raise StrategyError(
                f"Debezium({inner}): its columns {', '.join(schema.names)} are no envelope; it needs the "
                "schema of the whole event, with before, after, source and op"
            )
        fields = list(schema.field("after").type)
        known = {**named_encodings(inner), **encodings}
        if unknown := set(encodings) - {field.name for field in fields}:
            raise StrategyError(
                f"Debezium: encodings= names {', '.join(sorted(unknown))}, which is no field of the row"
            )
        self._encodings: list[Encoding | None] = []
        self.columns = []
        for field in fields:
            encoding = known.get(field.name)
            kind: Any = field.type
            if encoding is not None and is_list(kind) and is_encoded(kind.value_type):
                encoding = replace(encoding, of_items=True)
                kind = pa.list_(_type_of(encoding))
            elif encoding is not None and is_encoded(kind):
                kind = _type_of(encoding)
            else:
                encoding = None
            self._encodings.append(encoding)
            self.columns.append(RowColumn(field.name, field.name, kind, not field.nullable))

    def read(self, values: pa.BinaryArray) -> Sequence[Envelopes]:
        columns, failures = self._inner.decode(values)
        count = len(values)
        named: dict[str, Any] = dict(zip(columns.schema.names, columns.columns, strict=True))
        after, before = named["after"], named.get("before")
        has_before = np.zeros(count, np.bool_)
        if before is not None:
            has_before = mask_where(before.is_valid())
        op = named["op"]
        messages = mask_where(_pc.equal(op, "m"))
        return [
            Envelopes(
                np.arange(count),
                self._raw(before) if has_before.any() else None,
                self._raw(after),
                has_before,
                mask_where(after.is_valid()),
                op,
                messages,
                _source(named["source"], count),
                _field(named.get("transaction"), "id", pa.string(), count),
                failures,
            )
        ]

    def _raw(self, structs: Any) -> list[Raw]:
        of = dict(zip(structs.type.names, structs.flatten(), strict=True))
        return [
            Raw(of.get(column.key, _pa.nulls(len(structs), column.type)), encoding)
            for column, encoding in zip(self.columns, self._encodings, strict=True)
        ]


def is_encoded(kind: pa.DataType) -> bool:
    """Return whether a column still holds the encoded form of a time or decimal."""
    types = pa.types
    return (
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_binary(kind)
        or types.is_struct(kind)
    )


def _type_of(encoding: Encoding) -> pa.DataType:
    if encoding.name == "Decimal":
        return pa.decimal128(38, max(0, encoding.scale or 0))
    return _TYPES.get(encoding.name, pa.string())


def _source(source: Any, count: int) -> dict[str, Any]:
    """Return the columns of `SOURCE`; fields that the source does not have are null."""
    found = no_source(count)
    for name, field in found.items():
        found[name] = _field(source, name, field.type, count)
    return found


def _field(struct: Any, name: str, kind: pa.DataType, count: int) -> Any:
    if struct is None or not pa.types.is_struct(struct.type) or name not in struct.type.names:
        return _pa.nulls(count, kind)
    column = struct.flatten()[struct.type.get_field_index(name)]
    return column.cast(kind)


def named_encodings(inner: ValueFormat) -> dict[str, Encoding]:
    """Return the encodings that an Avro schema names (`connect.name`), by the field of the row."""
    schema = getattr(inner, "reader_schema", None)
    if schema is None:
        return {}
    types: dict[str, Any] = {}
    _collect(schema, types)
    found: dict[str, Encoding] = {}
    for field in schema.get("fields", ()):
        row = _definition(field["type"], types)
        if field["name"] not in ("before", "after") or not isinstance(row, dict):
            continue
        for each in row.get("fields", ()):
            kind = _definition(each["type"], types)
            is_array = isinstance(kind, dict) and kind.get("type") == "array"
            if is_array:
                kind = _definition(kind["items"], types)
            name = str(kind.get("connect.name")) if isinstance(kind, dict) else ""
            last = name.rpartition(".")[2]
            if last in _TYPES:
                found[each["name"]] = Encoding(last, of_items=is_array)
    return found


def _collect(kind: Any, types: dict[str, Any]) -> None:
    """Add the definitions inside of a schema to `types`, by their names."""
    if isinstance(kind, list):
        for each in kind:
            _collect(each, types)
    elif isinstance(kind, dict):
        if "name" in kind:
            types[kind["name"]] = kind
        for field in kind.get("fields", ()):
            _collect(field["type"], types)
        for key in ("type", "items", "values"):
            _collect(kind.get(key), types)


def _definition(kind: Any, types: dict[str, Any]) -> Any:
    """Return the one type beside null that a type is."""
    if isinstance(kind, list):
        rest = [each for each in kind if each != "null"]
        return _definition(rest[0], types) if len(rest) == 1 else kind
    return types.get(kind, kind) if isinstance(kind, str) else kind
