"""Ids of schemas in headers, where newer serializers of Confluent put them, become prefixes of the values.

A header has a zero byte and the id in 4 bytes, or a byte 1 and the schema's GUID in 16; of Protobuf also the
position of the message. A value without the header begins with its id, as in `framing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .registry import UnknownSchema

if TYPE_CHECKING:
    from ..value_format import ValueFormat

VALUE_HEADER: Final = "__value_schema_id"
KEY_HEADER: Final = "__key_schema_id"
_ID, _GUID = 5, 17  # bytes, with the first
_BY_ID, _BY_GUID = 0, 1  # the first byte

_pc: Any = pc


def framed(
    format_: ValueFormat, records: pa.RecordBatch, name: Literal["value", "key"]
) -> tuple[pa.BinaryArray, dict[int, str]]:
    """Return values or keys as their format reads them: after the ids that headers have.

    Args:
        records: with the columns of `kmr.record.SCHEMA`; given rows have no headers.

    Returns:
        The values, and the reason for each whose header names no schema; it is null. The last header of a
        record counts.
    """
    column: Any = records.column(name)
    if not format_.has_schema_ids or "headers" not in records.schema.names:
        return column, {}
    headers: Any = records.column("headers")
    if headers.null_count == len(headers):
        return column, {}
    header = VALUE_HEADER if name == "value" else KEY_HEADER
    pairs = pc.list_flatten(headers)
    named = np.flatnonzero(_pc.equal(_pc.struct_field(pairs, [0]), header))
    if not len(named):
        return column, {}
    contents = _pc.struct_field(pairs, [1]).take(pa.array(named)).to_pylist()
    parents = pc.list_parent_indices(headers).to_numpy()[named].tolist()
    prefixed: list[bytes | None] = column.to_pylist()
    failures: dict[int, str] = {}
    for row, content in dict(zip(parents, contents, strict=True)).items():
        value = prefixed[row]
        if value is None:
            continue
        try:
            prefixed[row] = _prefix(content or b"", format_) + value
        except (UnknownSchema, ValueError) as error:
            failures[row] = f"header {header}: {error}"
            prefixed[row] = None
    return pa.array(prefixed, column.type), failures


def schema_id_of(value: bytes | None, headers: list[tuple[str, bytes | None]]) -> int | None:
    """Return the id of a value's schema, from its header or prefix; None: there is none, or a GUID."""
    content = dict(headers).get(VALUE_HEADER) or value or b""
    if len(content) < _ID or content[0] != _BY_ID:
        return None
    return int.from_bytes(content[1:_ID])


def _prefix(content: bytes, format_: ValueFormat) -> bytes:
    from .framing import prefix  # LLVM

    if content[:1] == bytes([_BY_ID]) and len(content) >= _ID:
        return content
    if content[:1] == bytes([_BY_GUID]) and len(content) >= _GUID:
        guid = UUID(bytes=content[1:_GUID])
        return prefix(format_.schema_id_of_guid(str(guid))) + content[_GUID:]
    raise ValueError(
        f"{content[:20]!r} is no id of a schema: a zero byte and 4 bytes, or a byte 1 and a GUID"
    )
