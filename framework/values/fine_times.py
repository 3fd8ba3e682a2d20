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
    from collections.abc import Iterator, Sequence

    from .schemas import SchemaField

_FINE: Final = r"[0-9][.,][0-9]{6}0*[1-9]"
FINE: Final = re.compile(_FINE.encode())
"""What bytes of a value have that hold such a text; other texts and numbers may have it too."""
_IN_VALUES: Final = rf":[0-9]{_FINE}|{_FINE}[0-9]*S"


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
    if not pc.match_substring_regex(one, _IN_VALUES)[0].as_py():
        return []
    found = rows_where(pc.match_substring_regex(values, _IN_VALUES))
    return [] if found is None else np.flatnonzero(found).tolist()


def rounded(columns: Sequence[SchemaField], value: Any) -> str | None:
    """Return the reason why a decoded value of plain objects cannot be a row; None if it can."""
    if not isinstance(value, dict):
        return None
    found = _in_fields(columns, value, "")
    return next(found, None)


def _in_fields(columns: Sequence[SchemaField], value: dict[Any, Any], path: str) -> Iterator[str]:
    for column in columns:
        inner = f"{path}.{column.key}" if path else column.key
        yield from _in(column.kind, column.type, value.get(column.key), inner)


def _in(kind: Any, type_: Any, value: Any, path: str) -> Iterator[str]:
    match value:
        case str() if has_times(type_) and FINE.search(value.encode(errors="replace")):
            yield (
                f"field {path}: {excerpt(value)} has more than 6 digits of a second; make the field text, "
                "or send fewer"
            )
        case list() if hasattr(kind, "item_type"):
            item, _, _ = item_of(kind.item_type)
            for each in value:
                yield from _in(item, type_.value_type, each, f"{path}[]")
        case dict() if isinstance(kind, inspect.DictType):
            item, _, _ = item_of(kind.value_type)
            for each in value.values():
                yield from _in(item, type_.item_type, each, f"{path}[]")
        case dict() if pa.types.is_struct(type_):
            yield from _in_fields(nested_columns(kind, type_), value, path)
