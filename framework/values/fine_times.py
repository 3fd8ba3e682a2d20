"""Times in text with more digits of a second than Python's times have: a decoder would round them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from ..columns.kinds import rows_where
from ..columns.texts import excerpt
from .schemas import item_of, nested_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .schemas import SchemaField

_MANY_DIGITS: Final = r"\.[0-9]{7}"
_FINE: Final = r"[0-9]\.[0-9]{6}0*[1-9]"
FINE: Final = re.compile(_FINE.encode())
"""What bytes of a value have that hold such a text; other texts and numbers may have it too."""
_IN_VALUES: Final = rf":[0-9]{_FINE}|{_FINE}[0-9]*S"

# The extension type -1: 30 bits of nanoseconds and 34 of seconds, or 32 and 64.
_TIMESTAMP: Final = re.compile(rb"\xd7\xff(.{8})|\xc7\x0c\xff(.{12})", re.DOTALL)


def has_times(kind: Any) -> bool:
    """Return whether values of a type hold times or spans, at any depth."""
    if kind.num_fields:
        return any(has_times(kind.field(at).type) for at in range(kind.num_fields))
    return pa.types.is_temporal(kind) and not pa.types.is_date(kind)


def rows_in_question(values: pa.BinaryArray) -> list[int]:
    """Return the rows whose bytes may have such a text. Mostly it is one search in all bytes."""
    ends: Any
    _, ends, data = values.buffers()
    if ends is None or data is None:
        return []
    bounds = np.frombuffer(ends, np.int32)[values.offset : values.offset + len(values) + 1]
    first, last = int(bounds[0]), int(bounds[-1])
    together = pa.array([0, last - first], pa.int32()).buffers()[1]
    one = pa.Array.from_buffers(pa.binary(), 1, [None, together, data.slice(first, last - first)])
    if not pc.match_substring_regex(one, _MANY_DIGITS)[0].as_py():
        return []
    found = rows_where(pc.match_substring_regex(values, _IN_VALUES))
    return [] if found is None else np.flatnonzero(found).tolist()


def rounded(
    columns: Sequence[SchemaField], value: Any, known: Mapping[str, str] = {}
) -> str | None:
    """Return the reason why a decoded value of plain objects cannot be a row; None if it can.

    Args:
        known: the times for which texts in the value stand.
    """
    if not isinstance(value, dict):
        return None
    for field, text in _texts_of_times(columns, value, ""):
        shown = known.get(text, text)
        if FINE.search(shown.encode(errors="replace")):
            return (
                f"field {field}: {excerpt(shown)} has more than 6 digits of a second; make the field "
                "text, or send fewer"
            )
    return None


def timestamps_as_text(raw: bytes) -> tuple[bytes, dict[str, str]]:
    """Put texts for the timestamps of a MessagePack value that have nanoseconds; return them with the times.

    Bytes that only look like a timestamp may be replaced, too.
    """
    known: dict[str, str] = {}

    def text(found: re.Match[bytes]) -> bytes:
        short, long = found.groups()
        if short is not None:
            bits = int.from_bytes(short)
            seconds, nanoseconds = bits & (2**34 - 1), bits >> 34
        else:
            nanoseconds = int.from_bytes(long[:4])
            seconds = int.from_bytes(long[4:], signed=True)
        if nanoseconds % 1000 == 0 or nanoseconds >= 10**9 or abs(seconds) >= 2**53:
            return found[0]
        stands = f"{len(known):0{len(found[0]) - 1}d}"
        known[stands] = f"{np.datetime64(seconds, 's')}.{nanoseconds:09d}Z"
        return bytes([0xA0 + len(stands)]) + stands.encode()

    return _TIMESTAMP.sub(text, raw), known


def _texts_of_times(
    columns: Sequence[SchemaField], value: dict[Any, Any], path: str
) -> Iterator[tuple[str, str]]:
    for column in columns:
        inner = f"{path}.{column.key}" if path else column.key
        yield from _in(column.kind, column.type, value.get(column.key), inner)


def _in(kind: Any, type_: Any, value: Any, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case str() if has_times(type_):
            yield path, value
        case list() if hasattr(kind, "item_type"):
            item, _, _ = item_of(kind.item_type)
            for each in value:
                yield from _in(item, type_.value_type, each, f"{path}[]")
        case dict() if isinstance(kind, inspect.DictType):
            item, _, _ = item_of(kind.value_type)
            for each in value.values():
                yield from _in(item, type_.item_type, each, f"{path}[]")
        case dict() if pa.types.is_struct(type_):
            yield from _texts_of_times(nested_columns(kind, type_), value, path)
