"""Envelopes in JSON, with and without `schema` and `payload`, and rows that Debezium's SMT has flattened.

The encoding of a time or decimal is known from the message's own schema, from `encodings=`, or from its JSON
type and the connector's settings. So values are decoded in passes: the first value of a pass says which
fields are text, and those that differ are left to the next pass.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
)

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.kinds import is_list, mask_where
from ...errors import StrategyError
from ..json.json_format import Json
from ..schemas import NAMED_BY_KEYS, hints_of, row_type
from .encodings import ConnectSchema, Encoding, encodings_of_schema, special
from .envelope import Envelopes, Raw, RowColumn, no_source
from .mongo import documents
from .positions import SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ...columns.kinds import Array
    from ..schemas import RowType
    from ..typed import Source

Times = Literal[
    "adaptive",
    "adaptive_time_microseconds",
    "connect",
    "isostring",
    "microseconds",
    "nanoseconds",
]
_WRAPPED: Final = rb"^\s*\{\s*\"(schema|payload)\"\s*:"
"""The beginning of a message with a schema."""

Decimals = Literal["precise", "string", "double"]

_pc: Any = pc
_PREFIX: Final = {"connect": "", "microseconds": "Micro", "nanoseconds": "Nano"}
_HEARTBEAT: Final = r'^\s*\{(\s*"ts_(ms|us|ns)"\s*:\s*\d+\s*,?)+\s*\}\s*$'
_SAMPLES: Final = 16  # values of a pass that are looked at

Encodings = tuple[tuple[str, Encoding], ...]


_TEXT: Final = Encoding("Text")
_TEXT_OF_BYTES: Final = Encoding("UnknownBytes")
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
"""Floats as the converter of JSON sends them: as text."""


class EnvelopeTransaction(msgspec.Struct):
    """The transaction of an envelope."""

    id: str | None = None


_Source: Any = msgspec.defstruct(
    "source",
    [(field.name, (str if field.type == pa.string() else int) | None, None) for field in SOURCE],
)


class EnvelopeWithSchema(msgspec.Struct):
    """A message of the JSON converter with `schemas.enable`."""

    payload: msgspec.Raw
    schema: msgspec.Raw = msgspec.Raw(b"null")


class JsonEnvelopes:
    """Reads envelopes, or flattened rows, in JSON; see `EnvelopeReader`."""

    def __init__(
        self,
        source: Source,
        encodings: Mapping[str, Encoding],
        times: Times,
        decimals: Decimals,
        *,
        flattened: bool,
    ) -> None:
        self._source = source
        self._times = times
        self._decimals = decimals
        self._flattened = flattened
        rows = row_type(source)
        if rows.is_pydantic:
            raise StrategyError(
                f"Debezium(Json({rows.cls.__name__})): rows of changes are no pydantic model; give a Struct, "
                "dataclass, TypedDict or pyarrow.Schema"
            )
        self.columns = [
            RowColumn(each.name, each.key, each.type, not each.nullable) for each in rows.columns
        ]
        of_items = {each.key for each in self.columns if is_list(each.type)}
        self._given = {
            key: replace(each, of_items=key in of_items) for key, each in encodings.items()
        }
        self._bytes = {each.key for each in self.columns if pa.types.is_binary(each.type)}
        self._special = {each.key: each.type for each in self.columns if special(each.type)}
        self._floats = [each.key for each in self.columns if pa.types.is_floating(each.type)]
        if unknown := set(encodings) - {each.key for each in self.columns}:
            raise StrategyError(
                f"Debezium: encodings= names {', '.join(sorted(unknown))}, which is no field of the row"
            )

    def read(self, values: pa.BinaryArray) -> Sequence[Envelopes]:
        return [
            each
            for rows, payloads, schema in _unwrapped(values)
            for each in self._passes(rows, payloads, schema)
        ]

    def _passes(
        self, rows: NDArray[np.int64], payloads: Any, schema: bytes | None
    ) -> Iterator[Envelopes]:
        try:
            named = _encodings_of(schema).items()
        except msgspec.ValidationError as error:
            found = self._decode(rows, payloads, *self._sniff(payloads, self._given))
            yield replace(found, failures=dict.fromkeys(range(len(rows)), f"schema: {error}"))
            return
        known = {key: each for key, each in named if each.name != "Text" or key in self._special}
        known |= {
            key: _TEXT_OF_BYTES for key, each in named if each == _TEXT and key in self._bytes
        }
        known |= self._given
        usual = self._sniff(payloads, known)
        found = self._decode(rows, payloads, *usual)
        left = sorted(found.failures)
        if not left:
            yield found
            return
        yield _some(found, np.delete(np.arange(len(rows)), left))
        # Those that are unlike the first ones are decoded as they are themselves.
        alike: dict[tuple[Encodings, bool], list[tuple[int, bytes]]] = {}
        for at in left:
            payload, form = self._alone(payloads.slice(at, 1), known)
            alike.setdefault(form, []).append((at, payload))
        for form, some in alike.items():
            places, texts = zip(*some, strict=True)
            yield self._decode(rows[list(places)], pa.array(texts, pa.binary()), *form)

    def _alone(
        self, payload: Any, known: Mapping[str, Encoding]
    ) -> tuple[bytes, tuple[Encodings, bool]]:
        """Return one event, with its own encodings; floats that JSON has no number for are text."""
        value = payload[0].as_py()
        encodings, is_document = form = self._sniff(payload, known)
        try:
            message = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return value, form
        rows = [row for row in self._rows_of(message) if isinstance(row, dict)]
        texts = {key for key in self._floats for row in rows if row.get(key) in _NO_NUMBERS}
        if not texts:
            return value, form
        for row in rows:
            row |= {key: str(row[key]) for key in texts if isinstance(row.get(key), int | float)}
        encodings = tuple(sorted((dict(encodings) | dict.fromkeys(texts, _TEXT)).items()))
        return msgspec.json.encode(message), (encodings, is_document)

    def _sniff(self, payloads: Any, known: Mapping[str, Encoding]) -> tuple[Encodings, bool]:
        """Return the encodings of the special fields, and whether rows are documents in text (MongoDB)."""
        found = {key: each for key, each in known.items() if key in self._keys}
        unknown = [key for key in self._special if key not in found]
        is_document = False
        if unknown or not self._flattened:
            for payload in payloads[:_SAMPLES].to_pylist():
                try:
                    message = msgspec.json.decode(payload)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                for row in self._rows_of(message):
                    if isinstance(row, str):
                        is_document = True
                        continue
                    for key in unknown:
                        value = row.get(key)
                        guess = self._guess(value, self._special[key])
                        if guess is not None and key not in found:
                            found[key] = guess
        for key in unknown:  # all are null
            found.setdefault(key, replace(_TEXT, of_items=is_list(self._special[key])))
        return tuple(sorted(found.items())), is_document

    @property
    def _keys(self) -> set[str]:
        return {each.key for each in self.columns}

    def _rows_of(self, message: Any) -> list[Any]:
        if not isinstance(message, dict):
            return []
        rows = [message] if self._flattened else [message.get("after"), message.get("before")]
        return [row for row in rows if isinstance(row, dict | str)]

    def _guess(self, value: Any, to: Any) -> Encoding | None:
        """Return the encoding of a value without a schema, from the connector's settings; None of null."""
        types = pa.types
        if is_list(to):
            items = [each for each in value if each is not None] if isinstance(value, list) else []
            of_item = self._guess(items[0], to.value_type) if items else None
            return of_item and replace(of_item, of_items=True)
        if value is None:
            return None
        if types.is_decimal(to):
            if isinstance(value, dict):
                return Encoding("VariableScaleDecimal")
            if isinstance(value, int | float):
                return Encoding("Double")
            return Encoding("Text") if self._decimals == "string" else Encoding("UnknownText")
        if isinstance(value, str):
            return Encoding("Text")
        if types.is_date(to):
            return Encoding("Date")
        if types.is_duration(to) and self._times not in ("connect", "nanoseconds"):
            return Encoding("MicroDuration")
        kind = "Time" if types.is_time(to) else "Timestamp"
        if types.is_duration(to):
            return Encoding("UnknownNumber")
        if self._times in _PREFIX:
            return Encoding(f"{_PREFIX[self._times]}{kind}")
        if kind == "Time" and self._times == "adaptive_time_microseconds":
            return Encoding("MicroTime")
        return Encoding("UnknownNumber")

    def _decode(
        self, rows: NDArray[np.int64], payloads: Any, encodings: Encodings, is_document: bool
    ) -> Envelopes:
        if self._flattened:
            return self._flat(rows, payloads, encodings)
        wire = _envelope(self._source, encodings, is_document=is_document)
        columns, failures = Json(wire).decode(payloads)
        named: dict[str, Any] = dict(zip(columns.schema.names, columns.columns, strict=True))
        before, after = named["before"], named["after"]
        if is_document:
            old, new = (_wire(self._source, encodings, filled=each) for each in (False, True))
            before = documents(before, old, failures, "before")
            after = documents(after, new, failures, "after")
        of = dict(encodings)
        source = named["source"]
        return Envelopes(
            rows,
            self._raw(before, of) if before.null_count < len(before) else None,
            self._raw(after, of),
            mask_where(before.is_valid()),
            mask_where(after.is_valid()),
            named["op"],
            _others(named, payloads),
            dict(zip(SOURCE.names, source.flatten(), strict=True)),
            named["transaction"].flatten()[0],
            failures,
        )

    def _raw(self, structs: Any, encodings: Mapping[str, Encoding]) -> list[Raw]:
        return [
            Raw(values, encodings.get(column.key))
            for column, values in zip(self.columns, structs.flatten(), strict=True)
        ]

    def _flat(self, rows: NDArray[np.int64], payloads: Any, encodings: Encodings) -> Envelopes:
        wire = _flat_row(self._source, encodings)
        columns, failures = Json(wire).decode(payloads)
        of, count = dict(encodings), len(self.columns)
        after = [
            Raw(values, of.get(column.key))
            for column, values in zip(self.columns, columns.columns[:count], strict=True)
        ]
        meta: dict[str, Any] = dict(zip(_FLAT, columns.columns[count:], strict=True))
        deleted = _pc.equal(_pc.utf8_lower(meta["__deleted"]), "true").fill_null(fill_value=False)
        op = _pc.coalesce(meta["__op"], _pc.if_else(deleted, "d", "u"))
        op = _pc.if_else(deleted, "d", op)
        source = no_source(len(rows)) | {
            name: _pc.coalesce(meta[f"__source_{name}"], meta[f"__{name}"])
            for name in SOURCE.names
            if name != "ts_ms"
        }
        source["ts_ms"] = meta["__source_ts_ms"]
        everywhere = np.ones(len(rows), np.bool_)
        return Envelopes(
            rows,
            None,
            after,
            np.zeros(len(rows), np.bool_),
            everywhere,
            op,
            ~everywhere,
            source,
            meta["__transaction_id"],
            failures,
        )


_FLAT: Final[dict[str, Any]] = {
    "__op": str,
    "__deleted": str,
    "__transaction_id": str,
    **{
        f"{prefix}{field.name}": str if field.type == pa.string() else int
        for field in SOURCE
        for prefix in ("__source_", "__")
    },
}
"""The fields that the SMT adds to a row (`add.fields`, `delete.tombstone.handling.mode=rewrite`)."""


def _some(found: Envelopes, places: NDArray[np.int64]) -> Envelopes:
    """Return the envelopes at some places, none of which has failed."""
    at = pa.array(places)

    def raw(columns: Sequence[Raw]) -> list[Raw]:
        return [Raw(each.values.take(at), each.encoding) for each in columns]

    return Envelopes(
        found.rows[places],
        None if found.before is None else raw(found.before),
        raw(found.after),
        found.has_before[places],
        found.has_after[places],
        found.op.take(at),
        found.other[places],
        {name: column.take(at) for name, column in found.source.items()},
        found.transaction.take(at),
        {},
    )


def _others(named: Mapping[str, Any], payloads: Array) -> NDArray[np.bool_]:
    """Return which values are heartbeats, messages, changes of schemas, or transactions."""
    op = named["op"]
    others = mask_where(_pc.equal(op, "m"))
    if not op.null_count:
        return others
    is_status = _pc.is_in(named["status"], pa.array(["BEGIN", "END"]))
    transactions = _pc.and_(is_status, pc.match_substring(payloads, '"event_count"'))
    schemas = _pc.and_(
        named["source"].is_valid(),
        _pc.or_(named["ddl"].is_valid(), named["databaseName"].is_valid()),
    )
    heartbeats = pc.match_substring_regex(payloads, _HEARTBEAT)
    found = op.is_null()
    found = _pc.and_(found, _pc.or_(heartbeats, _pc.or_(transactions, schemas)))
    return others | mask_where(found)


def _unwrapped(
    values: pa.BinaryArray,
) -> Iterator[tuple[NDArray[np.int64], Any, bytes | None]]:
    """Yield the rows and payloads of each schema; None for values without one.

    Messages of one converter begin with the same bytes up to the payload: those are cut off at once.
    """
    some: Any = values
    rows = np.arange(len(some))
    while len(rows):
        first: bytes = some[0].as_py()
        schema, start = _start_of_payload(first)
        if start is None:
            same = _pc.invert(_pc.match_substring_regex(some, _WRAPPED))
            chosen = mask_where(same)
            chosen[0] = True
            yield rows[chosen], some.filter(pa.array(chosen)), None
        else:
            same = _pc.starts_with(some, first[:start])
            chosen = mask_where(same)
            payloads = _pc.binary_slice(some.filter(pa.array(chosen)), start, -1)
            yield rows[chosen], payloads, schema
        rows, some = rows[~chosen], some.filter(pa.array(~chosen))


def payloads_of(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return values without the schema that a converter sends with each; others, and nulls, as they are."""
    some: Any = values
    present = mask_where(some.is_valid())
    if not _pc.any(_pc.match_substring_regex(some, _WRAPPED)).as_py():
        return values
    found = [
        (rows, payloads if schema is not None else _each_payload(payloads))
        for rows, payloads, schema in _unwrapped(some.filter(pa.array(present)))
    ]
    order = np.argsort(np.concatenate([rows for rows, _ in found]))
    joined: Any = pa.concat_arrays([payloads for _, payloads in found]).take(pa.array(order))
    unwrapped: pa.BinaryArray = joined.take(pa.array(np.cumsum(present) - 1, mask=~present))
    return unwrapped


def _each_payload(values: Any) -> Any:
    """Return the payloads of values that are unlike others; of those without a schema, the values."""
    payloads = []
    for value in values.to_pylist():
        try:
            payloads.append(bytes(msgspec.json.decode(value, type=EnvelopeWithSchema).payload))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            payloads.append(value)
    return pa.array(payloads, values.type)


def _start_of_payload(value: bytes) -> tuple[bytes | None, int | None]:
    """Return a message's schema, and where the payload begins that ends before the last byte."""
    try:
        whole = msgspec.json.decode(value, type=EnvelopeWithSchema)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None, None
    payload = bytes(whole.payload)
    if not value.endswith(payload + b"}"):
        return None, None
    start = len(value) - len(payload) - 1
    return bytes(whole.schema), start


@lru_cache(maxsize=64)
def _encodings_of(schema: bytes | None) -> dict[str, Encoding]:
    """Return the encodings of the fields of rows that a message's schema names.

    Raises:
        msgspec.ValidationError: it is no schema.
    """
    described = None if schema is None else msgspec.json.decode(schema, type=ConnectSchema | None)
    described = described or ConnectSchema()
    for each in described.fields or ():
        if each.field in ("after", "before") and each.type == "struct":
            return encodings_of_schema(each)
    return encodings_of_schema(described)


def _members(
    rows: RowType, encodings: Encodings, *, filled: bool = True
) -> list[tuple[str, Any, Any]]:
    """Return the fields of an encoded row: each may be null, or missing.

    Args:
        filled: a missing field has the default of the class; in a row before its change it is not known.
    """
    hints, of = hints_of(rows.cls), dict(encodings)
    members = []
    for at, column in enumerate(rows.columns):
        encoding = of.get(column.key)
        hint = hints[column.attribute] if encoding is None else encoding.annotation
        default = column.default
        is_encoded = encoding is not None and default != []
        if column.required or default is msgspec.NODEFAULT or is_encoded or not filled:
            default = None
        members.append((f"f{at}", hint | None, default))
    return members


@lru_cache(maxsize=256)
def _wire(source: Source, encodings: Encodings, *, filled: bool) -> Any:
    """Return the class of an encoded row."""
    rows = row_type(source)
    rename = {f"f{at}": column.key for at, column in enumerate(rows.columns)}
    return msgspec.defstruct(
        "row",
        _members(rows, encodings, filled=filled),
        rename=rename,
        namespace={NAMED_BY_KEYS: True},
    )


@lru_cache(maxsize=256)
def _envelope(source: Source, encodings: Encodings, *, is_document: bool) -> Any:
    old = str if is_document else _wire(source, encodings, filled=False)
    new = str if is_document else _wire(source, encodings, filled=True)
    return msgspec.defstruct(
        "envelope",
        [
            ("before", old | None, None),
            ("after", new | None, None),
            ("source", _Source | None, None),
            ("op", str | None, None),
            ("transaction", EnvelopeTransaction | None, None),
            ("status", str | None, None),
            ("ddl", str | None, None),
            ("databaseName", str | None, None),
        ],
    )


@lru_cache(maxsize=256)
def _flat_row(source: Source, encodings: Encodings) -> Any:
    rows = row_type(source)
    members = _members(rows, encodings)
    rename = {f"f{at}": column.key for at, column in enumerate(rows.columns)}
    for at, (key, kind) in enumerate(_FLAT.items()):
        members.append((f"m{at}", kind | None, None))
        rename[f"m{at}"] = key
    return msgspec.defstruct("row", members, rename=rename)
