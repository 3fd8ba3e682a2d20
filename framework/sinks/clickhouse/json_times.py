"""Texts in a JSON column that ClickHouse would make another time of.

It makes a time of a text that looks like one: `2024-02-30` becomes 2024-03-01. Once a path has times, it
reads more of its texts so, in the order of the rows: `""` becomes 1970-01-01, `123456` 1970-01-02, and
`9999-12-31` 2149-06-06. No setting turns it off for data in Arrow. A path with a type (`JSON(born String)`)
keeps its texts.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.casting import parts
from ...columns.kinds import either, is_bytes, is_text, mask_of, rows_where
from .json_leaves import bad_leaves, has_type, leaves_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...columns.kinds import Array, Mask

_DATE: Final = r"(1[0-9]|2[0-2])[0-9]{2}[-/:](0?[1-9]|1[0-2])[-/:](0?[1-9]|[12][0-9]|3[01])"
_CLOCK: Final = r"[ T][0-9]{2}:[0-9]{2}:[0-9]{2}"
_IN_DOCUMENT: Final = f'"{_DATE}({_CLOCK}|")'
_TIME: Final = rf"^{_DATE}({_CLOCK}(\.[0-9]*)?)?$"
_KEPT: Final = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}({_CLOCK}(\.[0-9]{{1,9}})?)?$"
_BESIDE: Final = (
    r"^(|-[0-9]+(\.[0-9]*)?|[0-9]{5,}(\.[0-9]*)?"
    r"|[0-9]{4}[^0-9][0-9]{1,2}[^0-9][0-9]{1,2}([ T][0-9]{2}[^0-9][0-9]{2}[^0-9][0-9]{2}(\.[0-9]*)?)?)$"
)
_SECONDS: Final = pa.timestamp("s")
_EARLIEST, _LATEST = (
    0,
    4_294_944_000,
)  # seconds since 1970; Date, DateTime and DateTime64 have all between


def changed_times(array: Array, typed: Collection[str]) -> Mask:
    """Return the rows with a text or date, at any depth, of which the server would make another time.

    Args:
        array: objects, or texts of objects; without dictionaries, run ends and views.
        typed: the paths that have a type: the server makes no times there.
    """
    if is_text(array.type) or is_bytes(array.type):
        return _of_documents(array, typed)
    return bad_leaves(array, typed, _of_leaves)


def _of_documents(texts: Array, typed: Collection[str]) -> Mask:
    if rows_where(pc.match_substring_regex(texts, _IN_DOCUMENT)) is None:
        return None
    found: dict[str, tuple[list[int], list[str]]] = defaultdict(lambda: ([], []))
    for row, text in enumerate(texts.to_pylist()):
        for path, value in leaves_of(text):
            if isinstance(value, str) and not has_type(path, typed):
                found[path][0].append(row)
                found[path][1].append(value)
    bad: list[int] = []
    for rows, values in found.values():
        if (mask := _of_texts(pa.array(values))) is not None:
            bad += np.asarray(rows)[mask].tolist()
    return mask_of(bad, len(texts)) if bad else None


def _of_leaves(array: Array) -> Mask:
    if pa.types.is_date(array.type):
        return _of_texts(array.cast(pa.date32()).cast(pa.string()))
    return _of_texts(array) if is_text(array.type) else None


def _of_texts(texts: Array) -> Mask:
    """Return the rows of the texts of one path that would be changed."""
    times = pc.match_substring_regex(texts, _TIME)
    if rows_where(times) is None:
        return None
    written = pc.if_else(pc.match_substring_regex(texts, _KEPT), texts, pa.scalar(None, texts.type))
    moments = parts(pc.utf8_slice_codeunits(written, 0, 19), lambda part: part.cast(_SECONDS))
    seconds = moments.array.cast(pa.int64())
    kept = pc.is_valid(seconds)
    within = pc.and_(
        pc.greater_equal(seconds, pa.scalar(_EARLIEST)), pc.less(seconds, pa.scalar(_LATEST))
    )
    if moments.bad is not None:
        kept = pc.and_(kept, pa.array(~moments.bad))
    inside = pc.fill_null(pc.and_(kept, within), pa.scalar(value=False))
    bad = rows_where(pc.and_(times, pc.invert(kept)))
    has_inside = rows_where(pc.and_(times, inside)) is not None
    beside = pc.and_(
        pc.match_substring_regex(texts, _BESIDE), pc.invert(inside if has_inside else kept)
    )
    return either(bad, rows_where(beside))
