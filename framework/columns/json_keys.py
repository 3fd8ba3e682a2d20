"""Keys that are twice in an object of a JSON text: most readers keep one of the values, in silence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .kinds import rows_where

if TYPE_CHECKING:
    from .kinds import Array, Mask


class _Twice(Exception):
    pass


def repeated_keys(text: Array) -> Mask:
    """Mark the JSON texts with an object, at any depth, that has a key twice. Text that is no JSON is not."""
    if not pc.any(pc.match_substring(text, ":")).as_py():
        return None
    return rows_where(pa.array([each is not None and _repeats(each) for each in text.to_pylist()]))


def _repeats(text: str) -> bool:
    try:
        _DECODER.decode(text)
    except _Twice:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _object(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len({key for key, _ in pairs}) < len(pairs):
        raise _Twice


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=len, parse_int=len)
