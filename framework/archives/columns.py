"""Which columns of a Parquet file have the parts of a record, and these columns as a batch has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..columns.kinds import is_bytes, is_list, is_text
from ..errors import SettingsError
from ..record import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_STRUCT: Final = "redpanda"
"""The column in which Redpanda's Iceberg tables have everything but, or also, the value."""

_ALSO: Final = {"timestampType": ("timestamp_type",)}
_NO_TIMESTAMP: Final = -1
_HEADERS: Final = SCHEMA.field("headers").type


@dataclass(frozen=True, slots=True)
class ArchiveColumns:
    """A mapping of columns: the parts of a record by the columns that have them.

    A part that is not mapped is in the column of its own name, or in that field of the struct `redpanda`.

    Attributes:
        given: pairs of a part (a column of a batch) and a path: a column, or a field of structs (`a.b`).
    """

    given: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> ArchiveColumns:
        """Parse `value=payload,offset=meta.offset`. Raises SettingsError."""
        pairs = [pair.partition("=") for pair in (text or "").split(",") if pair.strip()]
        given = {part.strip(): path.strip() for part, _, path in pairs}
        wrong = [part for part, path in given.items() if part not in SCHEMA.names or not path]
        if wrong or len(given) < len(pairs):
            raise SettingsError(
                f"archive_columns must be pairs such as value=payload,offset=meta.offset, each of "
                f"{', '.join(SCHEMA.names)} once, not {text!r}"
            )
        return cls(tuple(sorted(given.items())))

    def find(self, schema: pa.Schema, where: str) -> dict[str, str]:
        """Return the path of each part that a file has.

        Args:
            where: the file, for messages.

        Raises:
            SettingsError: a column that was named is absent.
        """
        given = dict(self.given)
        found = {}
        for part in SCHEMA.names:
            names = (given[part],) if part in given else _candidates(part)
            path = next((name for name in names if type_of(schema, name) is not None), None)
            if path is not None:
                found[part] = path
            elif part in given:
                raise SettingsError(
                    f"archive_columns: {where} has no column {given[part]}; it has "
                    f"{', '.join(schema.names)}"
                )
        return found


def _candidates(part: str) -> Iterable[str]:
    names = (part, *_ALSO.get(part, ()))
    return (*names, *(f"{_STRUCT}.{name}" for name in names))


def type_of(schema: pa.Schema, path: str) -> Any:
    """Return the type of a column, or of a field of structs; None if there is none."""
    name, _, rest = path.partition(".")
    at = schema.get_field_index(name)
    kind = schema.field(at).type if at >= 0 else None
    while rest and kind is not None:
        name, _, rest = rest.partition(".")
        at = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        kind = kind.field(at).type if at >= 0 else None
    return kind


def column_of(table: pa.Table, path: str) -> pa.Array[Any]:
    """Return a column, or a field of structs, in one piece."""
    name, _, rest = path.partition(".")
    column: Any = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    found: pa.Array[Any] = pc.struct_field(column, rest.split(".")) if rest else column
    return found


def records_of(
    table: pa.Table, paths: Mapping[str, str], constants: Mapping[str, Any], where: str
) -> pa.RecordBatch:
    """Return rows of a file as records: the columns of a batch.

    Args:
        paths: of the parts, as `ArchiveColumns.find` returns them.
        constants: parts that are the same in all rows, or columns that are known already.

    Raises:
        SettingsError: a column has values that are no bytes, numbers, times or headers.
    """
    columns = []
    for field in SCHEMA:
        known = constants.get(field.name)
        if known is None and field.name in paths:
            known = column_of(table, paths[field.name])
        if known is None:
            known = _absent(field.name, table.num_rows, constants)
        elif not isinstance(known, pa.Array):
            known = pa.repeat(pa.scalar(known, field.type), table.num_rows)
        try:
            columns.append(_cast(known, field))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SettingsError(
                f"archive: column {paths.get(field.name, field.name)} of {where} is {known.type}, and cannot "
                f"be the {field.name} of records ({field.type}): {error}. Name another one in archive_columns"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _absent(part: str, rows: int, constants: Mapping[str, Any]) -> Any:
    kind = SCHEMA.field(part).type
    if part == "timestampType":
        return pa.repeat(pa.scalar(0 if constants.get("timed") else _NO_TIMESTAMP, kind), rows)
    if part == "timestamp":
        return pa.repeat(pa.scalar(_NO_TIMESTAMP * 1000, pa.int64()).cast(kind), rows)
    return pa.nulls(rows, kind)


def _cast(column: Any, field: pa.Field[Any]) -> Any:
    kind = column.type
    if field.name in ("key", "value") and not (
        pa.types.is_null(kind) or is_bytes(kind) or is_text(kind)
    ):
        raise pa.ArrowTypeError("raw bytes are needed")
    if field.name == "timestamp" and pa.types.is_integer(kind):  # milliseconds, as in Kafka
        return column.cast(pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(field.type)
    if field.name == "timestamp" and pa.types.is_timestamp(kind):
        if kind.tz is None:
            column = column.cast(pa.timestamp(kind.unit, tz="UTC"))
        return column.cast(field.type, safe=False)  # nanoseconds are cut off
    if field.name == "headers" and (pa.types.is_map(kind) or is_list(kind)):
        return _headers(column)
    return column.cast(field.type)


def _headers(column: Any) -> Any:
    """Return lists of pairs, of whichever names, or maps, as lists of headers."""
    if column.null_count == len(column):
        return pa.nulls(len(column), _HEADERS)
    lengths = pc.fill_null(pc.list_value_length(column), 0) if is_list(column.type) else None
    if lengths is None:
        rows = [
            each and [{"key": key, "value": value} for key, value in each]
            for each in column.to_pylist()
        ]
        return pa.array(rows, type=_HEADERS)
    item = column.flatten()
    fields = [item.field(number) for number in (0, 1)]
    pairs = pa.StructArray.from_arrays(
        [fields[0].cast(pa.string()), fields[1].cast(pa.binary())], fields=list(_HEADERS.value_type)
    )
    ends = pc.cumulative_sum(lengths.cast(pa.int64())).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(
        offsets, pairs, type=_HEADERS, mask=column.is_null() if column.null_count else None
    )
