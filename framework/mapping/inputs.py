"""Records as the arguments of a map: values and keys are decoded by their formats."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..columns.fitting import fit
from ..columns.reasons import reasons as fit_reasons
from ..errors import StrategyError
from ..lookups.versions import RECORD_TIME
from ..record import OFFSET_MARK, RECORD_OFFSET, SCHEMA, Record, to_records
from ..values.debezium.json_envelope import payloads_of
from ..values.json.json_format import Json
from ..values.registry.id_headers import framed
from ..values.typed import TypedFormat
from ..values.value_format import REQUIRED
from .results import Failure, MapResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ..values.value_format import ValueFormat

Tombstones = Literal["drop", "null", "fail"]
Changes = Literal["keyed"]
Parameters = Literal["record", "value", "value and record"]

_pc: Any = pc
_BESIDE: Final = ("topic", "partition", "offset", "timestamp", "key", "headers")
"""The columns of records that stay beside those of values."""

_OFFSET: Final[pa.Field[Any]] = pa.field(RECORD_OFFSET, pa.int64(), nullable=False)
_FIELDS: Final = {field.name: field for field in SCHEMA}
_BESIDE_FIELDS: Final = _FIELDS | {"offset": SCHEMA.field("offset").with_metadata(OFFSET_MARK)}

_RENAME: Final = (
    'give the field another name (msgspec.field(name="...") keeps that of the encoded value)'
)
_TOMBSTONE: Final = "value: null (a tombstone)"
_NO_KEY: Final = "key: null, and so is the value: nothing says what is deleted"
_OP: Final[pa.Field[Any]] = pa.field("op", pa.string(), nullable=False)

PART: Final = 4_096
"""Records whose objects are in memory at a time."""


class Decoding(NamedTuple):
    """Decodes the value of a call when it is called.

    Attributes:
        decode: returns the object of a value, or raises any exception.
        reason: says why a value cannot be decoded.
    """

    decode: Callable[[Any], Any]
    reason: Callable[[Any, Exception], str]


class Arguments(NamedTuple):
    """The calls of a per-record function.

    Attributes:
        offsets: that of each call.
        first: the first argument of each call: the record, the value, or what `decoding` makes it of.
        records: those of the calls; None where neither the function nor a table needs them.
        failures: the records that could not be decoded: there is no call for them.
        decoding: None: the values are decoded.
    """

    offsets: list[int]
    first: list[Any]
    records: list[Record] | None
    failures: list[Failure]
    decoding: Decoding | None = None

    @property
    def lists(self) -> tuple[list[Any], ...]:
        """The arguments of all calls: a list for each parameter of `Inputs.caller`."""
        return (self.first,) if self.records is None else (self.first, self.records)

    @property
    def items(self) -> list[tuple[Any, ...]]:
        """The same, call by call."""
        return list(zip(*self.lists, strict=False))


@dataclass(frozen=True, slots=True)
class Inputs:
    """How records become arguments.

    Attributes:
        value: the format of values; None: the map gets their bytes.
        key: the format of keys; None: the map gets their bytes.
        tombstones: the treatment of null values, see `kmr.Strategy`.
        parameters: what a per-record function is called with.
        changes: `keyed`: a value is an upsert, a null value the delete of its key, see `kmr.Strategy`.
        is_timed: look-up tables need the time of the record of each call (`as_of="record"`).
    """

    value: ValueFormat | None = None
    key: ValueFormat | None = None
    tombstones: Tombstones = "drop"
    parameters: Parameters = "record"
    changes: Changes | None = None
    is_timed: bool = False

    @property
    def _are_changes(self) -> bool:
        """Whether the rows are changes; then a column of the key is the one of the value of that name."""
        return self.changes is not None or (self.value is not None and self.value.is_changes)

    @property
    def schema(self) -> pa.Schema:
        """The columns of values and keys.

        Raises:
            StrategyError: values and keys have a column of the same name, or one has `kmr_offset`.
        """
        fields: list[pa.Field[Any]] = []
        if self.value is not None:
            fields += self.value.schema
        if self.changes is not None:
            fields = [_known_in_upserts(field) for field in fields]
            if not self._has_op:
                fields.append(_OP)
        if self.tombstones == "null":
            fields = [field.with_nullable(nullable=True) for field in fields]
        fields += self._key_fields() if not self._are_changes else self._new_key_fields()
        names = [field.name for field in fields]
        if len(set(names)) < len(names):  # made for each batch: count only then
            both = min(name for name in names if names.count(name) > 1)
            raise StrategyError(f"value= and key= both have a column {both}; {_RENAME}")
        if RECORD_OFFSET in names:
            raise StrategyError(f"the value has a column {RECORD_OFFSET}, as the record; {_RENAME}")
        return pa.schema(fields)

    def _key_fields(self) -> list[pa.Field[Any]]:
        """Return the columns of keys; any may be null. `value`, that of plain formats, is named `key`."""
        if self.key is None:
            return []
        return [
            field.with_name("key" if field.name == "value" else field.name).with_nullable(
                nullable=True
            )
            for field in self.key.schema
        ]

    @property
    def _has_op(self) -> bool:
        return self.value is not None and self.value.is_changes

    def _new_key_fields(self) -> list[pa.Field[Any]]:
        """Return the columns of keys that values do not have."""
        names = () if self.value is None else self.value.schema.names
        return [field for field in self._key_fields() if field.name not in names]

    def _beside(self, decoded: Sequence[str]) -> list[str]:
        """Return the columns of records that a per-batch map gets beside the decoded ones of these names."""
        if self.value is None and self.key is None:
            return SCHEMA.names
        taken = {*decoded, *(["key"] if self.key is not None else [])}
        names = [*(["value"] if self.value is None else []), *_BESIDE]
        return [name for name in names if name not in taken]

    def warm_up(self) -> None:
        """Let the formats load what they decode with. Call it in a thread."""
        for each in (self.value, self.key):
            if each is not None:
                each.warm_up()

    def columns(
        self, records: pa.RecordBatch, numbered: pa.RecordBatch | None = None
    ) -> tuple[pa.RecordBatch, list[Failure]]:
        """Return the columns for a per-batch function, without the records that cannot be decoded.

        Args:
            numbered: the same records with what `kmr_offset` and the failures have in the place of their
                offsets, for a function that takes records of several partitions.
        """
        named, fields = (records, _BESIDE_FIELDS) if numbered is None else (numbered, _FIELDS)
        decoded, good, failures = self._decode(named)
        names = self._beside(decoded.schema.names)
        schema = pa.schema([*decoded.schema, *(fields[name] for name in names), _OFFSET])
        columns = pa.RecordBatch.from_arrays(
            [*decoded.columns, *map(records.column, names), named.column("offset")], schema=schema
        )
        return columns if good is None else columns.filter(pa.array(good)), failures

    def rows(self, records: pa.RecordBatch) -> MapResult:
        """Return the columns of values and keys as the rows of a strategy without a map."""
        decoded, good, failures = self._decode(records)
        offsets = records.column("offset").to_numpy()
        if good is not None:
            decoded, offsets = decoded.filter(pa.array(good)), offsets[good]
        table = pa.Table.from_batches([decoded]) if len(decoded) else None
        return MapResult(table, offsets, tuple(failures))

    def caller(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of one item of each of `Arguments.lists`, or of a batch."""
        if not self.is_timed:
            return function
        takes_both = self.parameters == "value and record"

        def at_record_time(*arguments: Any) -> Any:
            RECORD_TIME.set(arguments[-1].timestamp_us)
            return function(*arguments) if takes_both else function(arguments[0])

        return at_record_time

    def parts(self, records: pa.RecordBatch) -> deque[pa.RecordBatch]:
        """Divide records for calls of a per-record function, so that few of their objects are in memory.

        Not where the format decodes many values at once.
        """
        size = PART if self.value is None or self.value.decodes_singly else max(1, len(records))
        return deque(records.slice(first, size) for first in range(0, len(records), size))

    def arguments(
        self,
        records: pa.RecordBatch,
        numbered: pa.RecordBatch | None = None,
        *,
        later: bool = False,
    ) -> Arguments:
        """Return the arguments of the calls of a per-record function.

        Args:
            numbered: the same records with other numbers in the place of their offsets, which `Arguments`
                has then: for records of several partitions.
            later: values may be left to `Arguments.decoding`, where the format decodes them one by one.
        """
        numbered = records if numbered is None else numbered
        offsets: Any = numbered.column("offset").to_pylist()
        if self.value is None:
            return Arguments(offsets, to_records(records), None, [])
        values: Any = records.column("value")
        needs_records = self.is_timed or self.parameters == "value and record"
        decoding: Decoding | None = None
        if later and isinstance(self.value, TypedFormat) and self._are_singly(values):
            objects: list[Any] = values.to_pylist()
            failures = dict(self.value.rounded(values, self.value.digits))
            decoding = Decoding(self.value.decoder, self.value.reason)
            beside = to_records(records, objects) if needs_records else None
        else:
            given, unframed = framed(self.value, records, "value")
            objects, failures = self.value.decode_objects(given)
            failures |= unframed
            beside = to_records(records) if needs_records else None
        absent = values.is_null()
        if self.value.is_changes:
            absent = pa.array([each is None for each in objects])
        good, failed = self._settle_nulls(values, failures, numbered, absent)
        if good is None:
            return Arguments(offsets, objects, beside, [], decoding)
        kept = good.tolist()
        if beside is not None:
            beside = list(compress(beside, kept))
        return Arguments(
            list(compress(offsets, kept)), list(compress(objects, kept)), beside, failed, decoding
        )

    def _are_singly(self, values: Any) -> bool:
        """Return whether each value is decoded as it is, without a schema's id, and none is null as it is."""
        assert self.value is not None  # noqa: S101  the caller has looked
        has_ids = self.value.has_schema_ids
        return not has_ids and not (self.tombstones == "null" and values.null_count)

    def _decode(
        self, records: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_] | None, list[Failure]]:
        """Return the columns of values and keys, which rows to keep (None: all), and the failures."""
        columns: list[Any] = []
        reasons: dict[int, str] = {}
        values: Any = records.column("value")
        keys: Any = records.column("key")
        if self.key is not None:
            given, unframed = framed(self.key, records, "key")
            decoded, failures = self.key.decode(self._plain(given))
            columns += decoded.columns
            reasons |= {
                row: f"key: {reason.removeprefix('value: ')}"
                for row, reason in (failures | unframed).items()
            }
        if self.value is not None:
            given, unframed = framed(self.value, records, "value")
            decoded, failures = self.value.decode(given)
            columns[:0] = decoded.columns
            reasons |= failures | unframed
        absent = values.is_null()
        if self._are_changes:
            columns, absent = self._changed(columns, values, keys, reasons)
        good, failed = self._settle_nulls(values, reasons, records, absent)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), good, failed

    def _plain(self, keys: Any) -> Any:
        """Return the keys of changes without the schema that Debezium's converter may send with them."""
        if not self._are_changes or not isinstance(self.key, Json):
            return keys
        return keys if {"schema", "payload"} & {*self.key.schema.names} else payloads_of(keys)

    def _changed(
        self, columns: list[Any], values: Any, keys: Any, reasons: dict[int, str]
    ) -> tuple[list[Any], Any]:
        """Return the columns of changes, and which rows are no change.

        Where a row is deleted, the columns of its key take the place of the value's.
        """
        assert self.value is not None  # noqa: S101  a strategy with changes has `value`
        names = self.value.schema.names
        found = columns[: len(names)]
        op: Any = found[names.index("op")] if self._has_op else None
        tombstones = values.is_null()
        if self.changes is not None:
            op = _pc.if_else(tombstones, "d", "u" if op is None else op)
            for row in np.flatnonzero(_pc.and_(tombstones, keys.is_null())).tolist():
                reasons.setdefault(row, _NO_KEY)
        more = []
        for field, column in zip(self._key_fields(), columns[len(names) :], strict=True):
            if field.name not in names:
                more.append(column)
                continue
            at = names.index(field.name)
            own = found[at]
            lacking = _pc.and_(_pc.equal(op, "d").fill_null(fill_value=False), own.is_null())
            if _pc.any(lacking).as_py():
                cast = fit(column, own.type)
                for row, reason in fit_reasons(field.name, str(own.type), column, cast).items():
                    reasons.setdefault(row, f"key: {reason}")
                found[at] = _pc.if_else(lacking, cast.array, own)
        if self._has_op:
            found[names.index("op")] = op
        else:
            found.append(op)
        return [*found, *more], op.is_null()

    def _settle_nulls(
        self, values: Any, reasons: dict[int, str], records: pa.RecordBatch, absent: Any
    ) -> tuple[NDArray[np.bool_] | None, list[Failure]]:
        """Apply `tombstones`; return which rows to keep (None: all), and the failures.

        Args:
            absent: the rows that are not mapped, unless `tombstones` says something else of them.
        """
        nulls = 0
        if self.value is not None and self.tombstones != "null":
            absent = absent.to_numpy(zero_copy_only=False)
            nulls = int(np.count_nonzero(absent))
        if not nulls and not reasons:
            return None, []
        good = np.ones(len(values), np.bool_)
        if nulls:
            good &= ~absent
            if self.tombstones == "fail":
                null = values.is_null().to_numpy(zero_copy_only=False)
                reasons = dict.fromkeys(np.flatnonzero(null).tolist(), _TOMBSTONE) | reasons
        rows = sorted(reasons)
        good[rows] = False
        offsets = records.column("offset").to_numpy()[rows].tolist() if rows else []
        return good, [Failure(o, reasons[row]) for o, row in zip(offsets, rows, strict=True)]


def _known_in_upserts(field: pa.Field[Any]) -> pa.Field[Any]:
    """Return a column of changes: null in deleted rows, as its mark says if it never is in others."""
    if field.nullable or field.name == "op":
        return field
    return field.with_nullable(nullable=True).with_metadata(REQUIRED)


RAW: Final = Inputs()
"""Records as they are."""
