"""Confluent's wire format: a zero byte, and the id of the schema in 4 bytes, before each value."""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ...formats.machine_code import BYTES, INT32S, INT64S, load
from ..decoding.pieces import gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ...formats.machine_code import Ints, Kernel

_pa: Any = pa

PREFIX: Final = 5
"""Bytes before a value."""

NULL, UNFRAMED, OTHER_MESSAGE = -1, -2, -3
"""In place of the id of a schema: the value is null; it does not begin with an id. In place of the size of a
prefix also: the value is another message of its schema."""


class RawValues(NamedTuple):
    """The bytes of values, without copying: value n is `data[offsets[n]:offsets[n + 1]]`.

    Attributes:
        nulls: which values are null; None if no value is.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int32]
    nulls: NDArray[np.bool_] | None


NO_SCHEMA_ID: Final = "the value does not begin with the id of a schema (a zero byte and 4 bytes)"
"""The reason of an `UNFRAMED` value."""


def raw_values(values: pa.BinaryArray) -> RawValues:
    """Return the bytes of a column."""
    column: Any = values
    _, starts, data = column.buffers()
    first, rows = column.offset, len(column)
    offsets = np.frombuffer(starts if rows else bytes(4), np.int32)
    offsets = offsets[first : first + rows + 1] if rows else offsets[:1]
    # A slice of a column has the bytes of all: only its own may be copied.
    used = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    return RawValues(
        used,
        offsets - offsets[0] if offsets[0] else offsets,
        column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None,
    )


def prefix(schema_id: int) -> bytes:
    """Return the bytes before a value of a schema."""
    return struct.pack(">bI", 0, schema_id)


def schema_ids(values: RawValues) -> NDArray[np.int64]:
    """Return the id of the schema of each value, `NULL` or `UNFRAMED`."""
    ids = np.empty(len(values.offsets) - 1, np.int64)
    _kernels()["_schema_ids"](values.data, values.offsets, ids)
    if values.nulls is not None:
        ids[values.nulls] = NULL
    return ids


@cache
def _kernels() -> dict[str, Kernel]:
    return load(
        __name__,
        {"_schema_ids": (BYTES, INT32S, INT64S), "_prefix_sizes": (BYTES, INT32S, BYTES, INT64S)},
    )


def _schema_ids(data: Ints, offsets: Ints, ids: Ints) -> None:
    for row in range(len(ids)):
        at = np.uint64(offsets[row])
        if offsets[row + 1] - offsets[row] < PREFIX or data[at] != 0:
            ids[row] = UNFRAMED
            continue
        number = np.int64(0)
        for i in range(1, PREFIX):
            number = (number << 8) | np.int64(data[at + np.uint64(i)])
        ids[row] = number


def unframe(values: pa.BinaryArray) -> tuple[pa.BinaryArray, dict[int, str]]:
    """Take the prefixes off; values without one become null, and their rows are the failures."""
    raw = raw_values(values)
    ids = schema_ids(raw)
    failures = dict.fromkeys(np.flatnonzero(ids == UNFRAMED).tolist(), NO_SCHEMA_ID)
    # Not `binary_slice` of Arrow 26: it fails for columns of short values and nulls.
    starts = raw.offsets.astype(np.int64)
    pieces = (starts[:-1] + PREFIX << 32) | (np.maximum(np.diff(starts) - PREFIX, 0))
    offsets, data, _ = gather(raw.data, pieces, ids >= 0)
    valid = _pa.py_buffer(np.packbits(ids >= 0, bitorder="little"))
    buffers = [valid, _pa.py_buffer(offsets), _pa.py_buffer(data)]
    return _pa.Array.from_buffers(pa.binary(), len(ids), buffers), failures


def message_prefix(path: Sequence[int]) -> bytes:
    """Return the bytes between the id and a Protobuf message: which message of its schema it is.

    Args:
        path: the position of the message type in its file, and in each type that it is inside of.
    """
    if list(path) == [0]:
        return b"\0"
    return b"".join(_zigzag(number) for number in (len(path), *path))


def _zigzag(number: int) -> bytes:
    number *= 2  # none is negative
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def prefix_sizes(values: RawValues, path: Sequence[int]) -> NDArray[np.int64]:
    """Return the bytes before each Protobuf message, `NULL`, `UNFRAMED`, or `OTHER_MESSAGE`."""
    expected = [np.frombuffer(message_prefix(path), np.uint8)]
    if list(path) == [0]:  # the long form of the same
        expected.append(np.frombuffer(b"\2\0", np.uint8))
    sizes = np.full(len(values.offsets) - 1, OTHER_MESSAGE, np.int64)
    for bytes_ in expected:
        _kernels()["_prefix_sizes"](values.data, values.offsets, bytes_, sizes)
    if values.nulls is not None:
        sizes[values.nulls] = NULL
    return sizes


def _prefix_sizes(data: Ints, offsets: Ints, expected: Ints, sizes: Ints) -> None:
    for row in range(len(sizes)):
        at = np.uint64(offsets[row])
        size = offsets[row + 1] - offsets[row]
        if size <= PREFIX or data[at] != 0:
            sizes[row] = UNFRAMED
        elif size >= PREFIX + len(expected):
            same = True
            for i in range(len(expected)):
                same &= data[at + np.uint64(PREFIX + i)] == expected[i]
            if same:
                sizes[row] = PREFIX + len(expected)
