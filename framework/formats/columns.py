"""Build Arrow columns of records: from pieces of bytes, of one repeated value, or from Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..record import SCHEMA
from . import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_LARGEST_MILLISECONDS = (2**63 - 1) // 1000
_CACHED_ROWS = 1 << 16
_CACHED_COLUMNS = 64
# pyarrow's stubs distinguish column types that are all the same here.
_pa: Any = pa
_BINARY, _STRING = pa.binary(), pa.string()
_HEADERS: Any = SCHEMA.field("headers").type
_HEADER_FIELDS = list(_HEADERS.value_type)


class Row(NamedTuple):
    """One record in Python values; not for the fast path."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Constants:
    """Columns of one repeated value, made once and then sliced: 20 times cheaper than making them anew.

    Caches at most 64 columns of at most 65,536 rows; longer ones are made each time. Thread-safe: at
    worst two threads make the same column.
    """

    def __init__(self) -> None:
        self._columns: dict[tuple[str, object], pa.Array[Any]] = {}

    def column(self, name: str, value: object, rows: int) -> pa.Array[Any]:
        """Return `value` repeated `rows` times as the column `name` of `SCHEMA`."""
        column = self._columns.get((name, value))
        if column is not None and len(column) >= rows:
            return column.slice(0, rows)
        if rows > _CACHED_ROWS:
            return _repeat(name, value, rows)
        if column is None and len(self._columns) >= _CACHED_COLUMNS:
            self._columns.clear()
        column = _repeat(name, value, max(1024, 1 << (rows - 1).bit_length()))
        self._columns[name, value] = column
        return column.slice(0, rows)


def number_column(name: str, values: NDArray[Any]) -> pa.Array[Any]:
    """Return the values as the column `name` of `SCHEMA`, without copying; the widths must be equal."""
    kind = SCHEMA.field(name).type
    return pa.Array.from_buffers(kind, len(values), [None, _pa.py_buffer(values)])


def binary_column(
    data: NDArray[np.uint8],
    starts: NDArray[np.int32],
    offsets: NDArray[np.int32],
    nulls: int,
    kind: pa.DataType = _BINARY,
) -> pa.Array[Any]:
    """Return the pieces of `data` that begin at `starts` (negative: null), sized by `offsets`."""
    return pa.Array.from_buffers(
        kind,
        len(starts),
        [
            _pa.py_buffer(kernels.bitmap(starts)) if nulls else None,
            _pa.py_buffer(offsets.copy()),  # a view would keep the whole table of which it is a row
            kernels.gather(data, starts, offsets),
        ],
        nulls,
    )


def header_column(
    data: NDArray[np.uint8], starts: NDArray[np.int32], counts: NDArray[np.int32], pairs: int
) -> pa.Array[Any]:
    """Return the headers that begin at `starts`, `pairs` in all; without headers null, as in Spark.

    Header keys are UTF-8 by the protocol, but clients do not check that: invalid bytes become U+FFFD.
    """
    lists, table, nulls = kernels.parse_headers(data, starts, counts, pairs)
    key_starts, key_offsets, value_starts, value_offsets = table
    key_starts, value_starts = key_starts[:pairs], value_starts[:pairs]
    keys = binary_column(data, key_starts, key_offsets, 0, _STRING)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        raw: list[Any] = binary_column(data, key_starts, key_offsets, 0).to_pylist()
        keys = pa.array([key.decode("utf-8", "replace") for key in raw], _STRING)
    values = binary_column(data, value_starts, value_offsets, nulls)
    absent = len(counts) - int(np.count_nonzero(counts))
    return pa.Array.from_buffers(
        _HEADERS,
        len(counts),
        [_pa.py_buffer(kernels.bitmap(counts - 1)) if absent else None, _pa.py_buffer(lists)],
        absent,
        children=[pa.StructArray.from_arrays([keys, values], fields=_HEADER_FIELDS)],
    )


def from_rows(topic: str, partition: int, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return the records of one partition as columns of `SCHEMA`; takes about 1 µs each."""
    columns: list[Any] = [
        [row.key for row in rows],
        [row.value for row in rows],
        [topic] * len(rows),
        [partition] * len(rows),
        [row.offset for row in rows],
        [_microseconds(row.timestamp_ms) for row in rows],
        [row.timestamp_type for row in rows],
        [list(row.headers) or None for row in rows],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def _repeat(name: str, value: object, rows: int) -> pa.Array[Any]:
    kind = SCHEMA.field(name).type
    column: pa.Array[Any] = (
        _pa.nulls(rows, kind) if value is None else _pa.repeat(pa.scalar(value, kind), rows)
    )
    return column


def _microseconds(milliseconds: int) -> int:
    return min(max(milliseconds, -_LARGEST_MILLISECONDS), _LARGEST_MILLISECONDS) * 1000
