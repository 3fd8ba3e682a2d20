"""The value format `Debezium`: change events as columns, or as objects for per-record maps."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, is_typeddict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.kinds import mask_where, whole
from ...columns.texts import python_values
from ...errors import StrategyError, as_exception
from ..json.json_format import Json
from ..registry.registry import PerProcess
from ..schemas import hints_of, row_type
from ..typed import encoded_fields
from ..value_format import Decoded, DecodedObjects, ValueFormat, reason_of_value
from .change import CONTROL, Change
from .columns_envelope import ColumnsEnvelopes
from .encodings import Encoding
from .envelope import decoded_rows, refuse_nulls, refuse_unavailable
from .json_envelope import Decimals, JsonEnvelopes, Times
from .positions import POSITION, positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ...columns.kinds import Array
    from .envelope import EnvelopeReader, Envelopes, RowColumn

Order = Literal["position", "offset"]
Truncates = Literal["fail", "apply", "drop"]

_pc: Any = pc
_TIME: Final = pa.timestamp("ms", tz="UTC")
_UPSERTS: Final = ("c", "u", "r")
_NO_ENVELOPE: Final = (
    "field op: null, or missing: it is no change event of Debezium; rows that its SMT has flattened need "
    "Debezium(..., flattened=True)"
)
_TRUNCATE: Final = (
    "the table was truncated; set Debezium(truncates='apply') if the topic has one partition (in several, "
    "nothing says which changes came before), or truncates='drop' to keep the rows"
)


class Debezium(ValueFormat):
    """Change events of Debezium: what happened to the rows of a table.

    A per-record map gets a `Change`. A per-batch map gets the columns of the row (after the change; of a
    deleted row as far as the source sent it), and `op` (`c`, `u`, `d`, `r`, `t`), `before` (the row before
    the change), `source_time`, `position` and `transaction`. Heartbeats, logical messages, changes of schemas
    and the events of transactions are no change of a row: they are dropped, as tombstones are.
    docs/changes.md has a rule for each kind of event and each encoding.

    Example:
        ```python
        import msgspec
        from kmr import Debezium, Json

        class Customer(msgspec.Struct):
            id: int
            name: str

        customers = Debezium(Json(Customer))
        ```

    Args:
        inner: how events are encoded. `Json(Row)` with the type of a row, with or without `schema` and
            `payload`. `Avro` and `Protobuf` with the schema of the whole event.
        flattened: Debezium's SMT `ExtractNewRecordState` has made rows of the events. `__op`, `__deleted` and
            the other fields that it can add are used where they are; a row without them is an upsert.
        encodings: by field, the encoding of a time or decimal, where neither the event's schema nor the next
            two say it: `{"paid": "MicroTimestamp", "price": "Decimal(2)"}`.
        times: the connector's `time.precision.mode`, for events without a schema.
        decimals: the connector's `decimal.handling.mode`, for events without a schema.
        order: what orders the changes of a row in sinks that keep versions: the `position` in the source's
            log, or the `offset` of the record. None: the position, but for flattened rows the offset.
        truncates: what happens to the event of a truncated table: it `fail`s, is `apply`ed by sinks with
            `changes=True`, or is `drop`ped.
        unavailable: the connector's `unavailable.value.placeholder`.

    Raises:
        StrategyError: an argument is not allowed, or the row has a column with the name of one of a change.
    """

    def __init__(
        self,
        inner: ValueFormat,
        *,
        flattened: bool = False,
        encodings: Mapping[str, str] | None = None,
        times: Times = "adaptive",
        decimals: Decimals = "precise",
        order: Order | None = None,
        truncates: Truncates = "fail",
        unavailable: str = "__debezium_unavailable_value",
    ) -> None:
        if not isinstance(inner, ValueFormat):
            name = getattr(inner, "__name__", repr(inner))
            raise StrategyError(
                f"Debezium takes the format of the events, not {name}; write Debezium(Json({name}))"
            )
        self._inner = inner
        self._flattened = flattened
        self._encodings = {name: Encoding.of(text) for name, text in (encodings or {}).items()}
        self._times: Times = times
        self._decimals: Decimals = decimals
        self.order: Order = order or ("offset" if flattened else "position")
        self._truncates = truncates
        self._unavailable = unavailable
        self._made: PerProcess[EnvelopeReader] = PerProcess()  # a registry may be asked
        if isinstance(inner, Json) and not inner.has_schema_ids:
            _ = self.schema

    def __str__(self) -> str:
        return f"Debezium({self._inner})"

    @property
    def _reader(self) -> EnvelopeReader:
        return self._made.get(self._make_reader)

    def _make_reader(self) -> EnvelopeReader:
        if isinstance(self._inner, Json):
            return JsonEnvelopes(
                self._inner.type,
                self._encodings,
                self._times,
                self._decimals,
                flattened=self._flattened,
            )
        return ColumnsEnvelopes(self._inner, self._encodings, flattened=self._flattened)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the row, and those of its change."""
        return _schema(self._reader.columns)

    @property
    def has_schema_ids(self) -> bool:
        return self._inner.has_schema_ids

    def schema_id_of_guid(self, guid: str) -> int:
        return self._inner.schema_id_of_guid(guid)

    @property
    def is_changes(self) -> bool:
        return True

    def warm_up(self) -> None:
        self._inner.warm_up()
        if isinstance(self._inner, Json) and not self._inner.has_schema_ids:
            self.decode(pa.array([b"{}"], pa.binary()))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode events; `op` is null where a value is no change of a row."""
        failures: dict[int, str] = {}
        there = mask_where(values.is_valid())
        if isinstance(self._inner, Json) and self._inner.has_schema_ids:
            from ..registry.framing import unframe  # LLVM

            values, failures = unframe(values)
            there &= mask_where(values.is_valid())
        rows = np.flatnonzero(there)
        reader = self._reader
        schema = _schema(reader.columns)
        given: Any = values if len(rows) == len(values) else values.take(pa.array(rows, pa.int64()))
        parts = []
        order = []
        for each in reader.read(given) if len(rows) else ():
            part, failed = self._changes(each, reader.columns, schema)
            places = rows[each.rows]
            failures |= {int(places[row]): reason for row, reason in failed.items()}
            parts.append(part)
            order.append(places)
        return Decoded(_in_order(parts, order, len(values), schema), failures)

    def _changes(
        self, found: Envelopes, columns: Sequence[RowColumn], schema: pa.Schema
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        failures = found.failures
        failed = np.zeros(len(found.rows), np.bool_)
        failed[list(failures)] = True
        op, skipped = self._ops(found, failed, failures)
        upserts = mask_where(_pc.is_in(op, pa.array(_UPSERTS)))
        deletes = mask_where(_pc.is_in(op, pa.array(["d"])))
        for row in np.flatnonzero(upserts & ~found.has_after & ~failed).tolist():
            failures.setdefault(
                row,
                "field after: null, so the row is not known; MongoDB needs a capture.mode with "
                "update_full",
            )
        path = "" if self._flattened else "after."
        refuse_unavailable(found.after, columns, upserts, failures, path, self._unavailable)
        after = decoded_rows(found.after, columns, failures, path)
        refuse_nulls(after, columns, upserts & found.has_after, failures, path)
        before = None
        if found.before is not None:
            before = decoded_rows(found.before, columns, failures, "before.")
        arrays = after
        if before is not None and deletes.any():
            where = pa.array(deletes)
            arrays = [_pc.if_else(where, old, new) for old, new in zip(before, after, strict=True)]
        count = len(found.rows)
        kind: Any = schema.field("before").type
        old_rows: Any = pa.nulls(count, kind)
        if before is not None:
            old_rows = pa.StructArray.from_arrays(
                before, fields=list(kind), mask=pa.array(~found.has_before)
            )
        changes = ~skipped & ~failed
        place: Any = pa.nulls(count, POSITION)
        if self.order == "position":
            place, lost = positions(found.source, changes)
            for row, reason in lost.items():
                failures.setdefault(row, reason)
        made = [
            *arrays,
            op,
            old_rows,
            found.source["ts_ms"].cast(_TIME),
            place,
            found.transaction,
        ]
        if failures or skipped.any():
            bad = skipped.copy()
            bad[list(failures)] = True
            mask = pa.array(bad)
            made = [_pc.if_else(mask, pa.scalar(None, each.type), each) for each in made]
        return pa.RecordBatch.from_arrays(made, schema=schema), failures

    def _ops(
        self, found: Envelopes, failed: NDArray[np.bool_], failures: dict[int, str]
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return the operations, and which values are dropped; `failures` gets those that are not known."""
        op, skipped = found.op, found.other.copy()
        truncates = mask_where(_pc.is_in(op, pa.array(["t"])))
        if self._truncates == "drop":
            skipped |= truncates
        elif self._truncates == "fail":
            failures |= dict.fromkeys(np.flatnonzero(truncates).tolist(), _TRUNCATE)
        known = mask_where(_pc.is_in(op, pa.array(["c", "u", "r", "d", "t"]))) | skipped | failed
        for row in np.flatnonzero(~known).tolist():
            value = op[row].as_py()
            failures[row] = (
                _NO_ENVELOPE if value is None else f"field op: unknown operation {value!r}"
            )
        return op, skipped

    def decode_objects(self, values: pa.BinaryArray) -> DecodedObjects:
        """Decode events to `Change` objects; None for what is no change of a row."""
        columns, failures = self.decode(values)
        reader = self._reader
        make = _Maker(self._inner, reader.columns, columns)
        objects: list[Any] = []
        for row, op in enumerate(columns.column("op").to_pylist()):
            try:
                objects.append(None if op is None or row in failures else make(row, op))
            except BaseException as error:  # noqa: BLE001  the user's own class may raise anything
                failures[row] = reason_of_value(as_exception(error))
                objects.append(None)
        return DecodedObjects(objects, failures)


@lru_cache(maxsize=64)
def _schema_of(columns: tuple[RowColumn, ...]) -> pa.Schema:
    fields = [column.field for column in columns]
    for field in fields:
        if field.name in CONTROL:
            raise StrategyError(
                f"Debezium: the row has a column {field.name}, as the change; give the field another name "
                '(msgspec.field(name="...") keeps that of the encoded row)'
            )
    bare = [field.remove_metadata() for field in fields]
    return pa.schema(
        [
            *fields,
            pa.field("op", pa.string(), nullable=False),
            pa.field("before", pa.struct(bare)),
            pa.field("source_time", _TIME),
            pa.field("position", POSITION),
            pa.field("transaction", pa.string()),
        ]
    )


def _schema(columns: Sequence[RowColumn]) -> pa.Schema:
    return _schema_of(tuple(columns))


def _in_order(
    parts: Sequence[pa.RecordBatch],
    order: Sequence[NDArray[np.int64]],
    count: int,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Join the parts of a batch in the order of its values; the other values are rows of nulls."""
    if len(parts) == 1 and len(parts[0]) == count:
        return parts[0]
    at = np.full(count, -1, np.int64)
    if order:
        at[np.concatenate(order)] = np.arange(sum(map(len, order)))
    indices: Any = pa.array(at, mask=at < 0)
    table = pa.Table.from_batches(parts, schema)
    arrays = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays([array.take(indices) for array in arrays], schema=schema)


class _Maker:
    """Makes a `Change` of each row of the columns."""

    def __init__(
        self, inner: ValueFormat, columns: Sequence[RowColumn], decoded: pa.RecordBatch
    ) -> None:
        self._source = getattr(inner, "type", None) if isinstance(inner, Json) else None
        self._is_plain = self._source is None or isinstance(self._source, pa.Schema)  # dicts
        names = [column.name for column in columns]
        table = pa.Table.from_batches([decoded.select(names)])
        before: Any = decoded.column("before")
        self._has_before = before.is_valid().to_pylist()
        old = pa.Table.from_arrays(before.flatten(), names=names)
        self._fields = (
            (lambda row: dict(zip(names, row, strict=True)))
            if self._source is None
            else encoded_fields(row_type(self._source).columns, table)
        )
        self._rows = list(zip(*(python_values(whole(each)) for each in table.columns), strict=True))
        self._old = list(zip(*(python_values(whole(each)) for each in old.columns), strict=True))
        self._beside = [decoded.column(name).to_pylist() for name in CONTROL[2:]]

    def __call__(self, row: int, op: Any) -> Change[Any]:
        time, position, transaction = (column[row] for column in self._beside)
        after = None
        if op in ("c", "u", "r"):
            after = self._object(self._rows[row])
        before = None
        if op == "d" and not self._has_before[row]:
            before = (
                self._partial(self._rows[row])
                if any(each is not None for each in self._rows[row])
                else None
            )
        elif self._has_before[row]:
            before = self._partial(self._old[row])
        return Change(
            op=op,
            before=before,
            after=after,
            source_time=time,
            position=position,
            transaction=transaction,
        )

    def _object(self, row: tuple[Any, ...]) -> Any:
        fields = self._fields(row)
        return fields if self._is_plain else msgspec.convert(fields, self._source)

    def _partial(self, row: tuple[Any, ...]) -> Any:
        """Make a row of which some fields may be unknown: they are None."""
        fields = self._fields(row)
        if self._is_plain:
            return fields
        cls: Any = self._source
        optional = msgspec.convert(fields, _optional(cls))
        named = {
            column.attribute: getattr(optional, column.attribute)
            for column in row_type(cls).columns
        }
        if is_typeddict(cls):
            return {key: value for key, value in named.items() if value is not None}
        return cls(**named)


@lru_cache(maxsize=256)
def _optional(cls: Any) -> Any:
    """Return a class with the fields of a row, any of which may be None."""
    rows = row_type(cls)
    hints = hints_of(rows.cls)
    return msgspec.defstruct(
        "row",
        [(each.attribute, hints[each.attribute] | None, None) for each in rows.columns],
        rename={each.attribute: each.key for each in rows.columns},
    )
