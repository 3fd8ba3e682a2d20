"""What the envelopes of some values say, whatever they were encoded in."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.kinds import Lists, mask_where, rows_where
from ..value_format import REQUIRED
from .positions import SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ...columns.kinds import Array
    from .encodings import Encoding

_pc: Any = pc
_UNAVAILABLE: Final = (
    "the source did not send it, because it is large and did not change; "
    "set REPLICA IDENTITY FULL, or leave the field out"
)


class RowColumn(NamedTuple):
    """A column of the rows that change.

    Attributes:
        key: the field's name in an encoded row.
        required: null is allowed in deleted rows alone.
    """

    name: str
    key: str
    type: pa.DataType
    required: bool

    @property
    def field(self) -> pa.Field[Any]:
        """The column in a schema; any may be null in a deleted row."""
        return pa.field(self.name, self.type, metadata=REQUIRED if self.required else None)


class Raw(NamedTuple):
    """A column of rows before its encoding is undone; None: it has none."""

    values: Array
    encoding: Encoding | None


@dataclass(frozen=True, slots=True)
class Envelopes:
    """The envelopes of some values.

    Attributes:
        rows: the numbers of the values, ascending.
        before: the columns of the rows before the change; None if no value has one.
        after: those of the rows after the change.
        has_before: which values have a row before the change.
        has_after: which values have a row after the change.
        op: as in the envelope; null for what is no change of a row.
        other: which values are no change of a row: heartbeats, changes of schemas, transactions.
        source: the columns of `SOURCE`.
        transaction: ids of transactions.
        failures: by the place among `rows`, the reason for each value that cannot be decoded.
    """

    rows: NDArray[np.int64]
    before: Sequence[Raw] | None
    after: Sequence[Raw]
    has_before: NDArray[np.bool_]
    has_after: NDArray[np.bool_]
    op: Array
    other: NDArray[np.bool_]
    source: Mapping[str, Array]
    transaction: Array
    failures: dict[int, str]


class EnvelopeReader(Protocol):
    """Reads the envelopes of one encoding."""

    @property
    def columns(self) -> Sequence[RowColumn]:
        """The columns of the rows that change."""

    def read(self, values: pa.BinaryArray) -> Sequence[Envelopes]:
        """Read values that are not null; each is in one of the results."""


def no_source(rows: int) -> dict[str, Array]:
    """Return the columns of `SOURCE` for values without a source."""
    return {field.name: pa.nulls(rows, field.type) for field in SOURCE}


def decoded_rows(
    raw: Sequence[Raw], columns: Sequence[RowColumn], failures: dict[int, str], path: str
) -> list[Array]:
    """Return the columns of rows; `failures` gets the values that do not fit."""
    from ...columns.fitting import fit
    from ...columns.reasons import reasons

    made = []
    for column, (values, encoding) in zip(columns, raw, strict=True):
        if encoding is not None:
            array, refused = encoding.decode(values, column.type, f"{path}{column.key}")
        elif values.type == column.type:
            array, refused = values, {}
        else:
            cast = fit(values, column.type)
            array = cast.array
            refused = reasons(f"{path}{column.key}", str(column.type), values, cast)
        for row, reason in refused.items():
            failures.setdefault(row, reason)
        made.append(array)
    return made


def refuse_nulls(
    made: Sequence[Array],
    columns: Sequence[RowColumn],
    upserts: NDArray[np.bool_],
    failures: dict[int, str],
    path: str,
) -> None:
    """Refuse rows after a change that lack a required field."""
    for array, column in zip(made, columns, strict=True):
        if column.required and array.null_count:
            lacking = mask_where(array.is_null()) & upserts
            for row in np.flatnonzero(lacking).tolist():
                failures.setdefault(row, f"field {path}{column.key}: null, or missing")


def refuse_unavailable(
    raw: Sequence[Raw],
    columns: Sequence[RowColumn],
    upserts: NDArray[np.bool_],
    failures: dict[int, str],
    path: str,
    text: str,
) -> None:
    """Refuse rows after a change with a value that the source did not send."""
    for (values, _), column in zip(raw, columns, strict=True):
        found = unavailable(values, text)
        if found is not None:
            for row in np.flatnonzero(found & upserts).tolist():
                failures[row] = f"field {path}{column.key}: {_UNAVAILABLE}"


def unavailable(values: Array, text: str) -> NDArray[np.bool_] | None:
    """Return which values stand for one that the source did not send; None if there are none.

    Debezium sends the placeholder as text; bytes in base64 or hexadecimal; hstore as its only key and value,
    also in JSON; an array of texts with it as its only item, one of integers or dates with its bytes as
    items, one of UUIDs with the UUID that Java makes of its bytes.
    """
    kind, encoded = values.type, text.encode()
    if pa.types.is_map(kind):
        pairs = Lists(values)
        alone = (pairs.lengths == 1) & mask_where(values.is_valid())
        keys = unavailable(pc.struct_field(pairs.items, [0]), text)
        return (
            None if keys is None else np.isin(np.arange(len(values)), pairs.parents()[keys]) & alone
        )
    if pa.types.is_list(kind):
        of_numbers = pa.types.is_integer(kind.value_type)
        size = len(encoded) if of_numbers else 1
        lengths = _pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(lengths == size)
        items: Any = values.take(pa.array(rows)).flatten()
        if of_numbers:
            numbers = items.fill_null(0).to_numpy(zero_copy_only=False).reshape(-1, size)
            same = (numbers == np.frombuffer(encoded, np.uint8)).all(axis=1)
        elif (same := unavailable(items, text)) is None:
            return None
        found = np.zeros(len(values), np.bool_)
        found[rows] = same
        return found
    if isinstance(kind, pa.UuidType):
        marks: Any = _pc.equal(values.storage, pa.scalar(_java_uuid(encoded).bytes, pa.binary(16)))
    elif pa.types.is_string(kind):
        texts = [
            text,
            base64.b64encode(encoded).decode(),
            encoded.hex(),
            str(_java_uuid(encoded)),
            f'{{"{text}":"{text}"}}',
        ]
        marks = _pc.is_in(values, pa.array(texts))
    elif pa.types.is_binary(kind):
        marks = _pc.equal(values, pa.scalar(encoded, kind))
    else:
        return None
    return rows_where(marks)


def _java_uuid(text: bytes) -> UUID:
    """Return `UUID.nameUUIDFromBytes` of Java."""
    return UUID(bytes=hashlib.md5(text, usedforsecurity=False).digest(), version=3)
