"""Numbers in a JSON column that ClickHouse would store as others.

It reads a fraction as a float of 64 bits, also for a path with a type: only a text keeps more digits, where
the path is a decimal (`JSON(price Decimal(38, 20))`). Without a type, what is not finite becomes a text, and
the arrays of a path have one type in a batch: whole numbers beside fractions become floats.
"""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...columns.kinds import either, is_bytes, is_text, mask_of, rows_where
from .json_leaves import bad_leaves, has_type, leaves_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...columns.kinds import Array, Mask

_IN_DOCUMENT: Final = r"[0-9.]{16}|[0-9][eE][+-]?[0-9]"
_EXACT: Final = 2**53  # every whole number up to it is a float
_DIGITS: Final = 15  # decimals of so many are the same as the text of their floats


def changed_numbers(array: Array, typed: Collection[str]) -> Mask:
    """Return the rows with a number, at any depth, that the server would store as another.

    Args:
        array: objects, or texts of objects; without dictionaries, run ends and views.
        typed: the paths that have a type.
    """
    if is_text(array.type) or is_bytes(array.type):
        return _of_documents(array, typed)
    return either(bad_leaves(array, (), _rounded), bad_leaves(array, typed, _not_finite))


def _of_documents(texts: Array, typed: Collection[str]) -> Mask:
    if rows_where(pc.match_substring_regex(texts, _IN_DOCUMENT)) is None:
        return None
    bad: list[int] = []
    large: dict[str, list[int]] = defaultdict(list)
    with_fractions: set[str] = set()
    for row, text in enumerate(texts.to_pylist()):
        for path, value in leaves_of(text):
            if isinstance(value, Decimal):
                with_fractions.add(path)
                if _is_rounded(value):
                    bad.append(row)
            elif isinstance(value, int) and abs(value) > _EXACT and path.endswith("[]"):
                large[path].append(row)
    for path in with_fractions & large.keys():
        bad += [] if has_type(path, typed) else large[path]
    return mask_of(bad, len(texts)) if bad else None


def _not_finite(array: Array) -> Mask:
    is_float = pa.types.is_floating(array.type)
    return rows_where(pc.invert(pc.is_finite(array))) if is_float else None


def _rounded(array: Array) -> Mask:
    kind: Any = array.type
    if not pa.types.is_decimal(kind) or kind.precision <= _DIGITS:
        return None
    rows = [row for row, each in enumerate(array.to_pylist()) if each and _is_rounded(each)]
    return mask_of(rows, len(array)) if rows else None


def _is_rounded(number: Decimal) -> bool:
    """Return whether the shortest text of the nearest float is another number."""
    return Decimal(repr(float(number))) != number
