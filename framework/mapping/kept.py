"""Which values a column of a given type would change: Arrow makes 1 of 1.5 and a day of a `datetime`."""

from __future__ import annotations

from datetime import date, datetime, time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from ..columns.casting import Misfit
from ..columns.fitting import fit
from ..columns.kinds import either, is_bytes, is_list, is_nested, is_text, rows_where
from ..columns.reasons import count_values, fields_left_out
from ..columns.texts import excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..columns.kinds import Mask

_types: Any = pa.types
_FINE: Final = ("us", "ns")
_SAFE: Final[Sequence[tuple[Callable[[Any], bool], tuple[type, ...]]]] = (
    (_types.is_integer, (int,)),
    (_types.is_float64, (float, int)),
    (_types.is_boolean, (bool,)),
    (is_text, (str,)),
    (is_bytes, (bytes, str)),
    (_types.is_date32, (date,)),
    (lambda kind: _types.is_timestamp(kind) and kind.unit in _FINE, (datetime,)),
)
"""By type: the classes of values that Arrow converts as they are, or not at all; the usual one first."""


def changed(values: list[Any], kind: pa.DataType) -> dict[int, str]:
    """Return why values do not fit a type, though Arrow converts them."""
    classes = set(map(type, values)) - {type(None)}
    if any(is_kind(kind) and classes <= set(safe) for is_kind, safe in _SAFE):
        return {}
    if is_nested(kind) and _are_plain(values, kind):
        return {}
    refused = {
        row: f"{excerpt(value)}: a time of day with a zone has no type; return a datetime"
        for row, value in enumerate(values if time in classes else ())
        if isinstance(value, time) and value.tzinfo is not None
    }
    if datetime in classes and _types.is_date(kind):
        for row, value in enumerate(values):
            if isinstance(value, datetime) and value.time() != time():
                refused[row] = f"{kind} cannot hold {excerpt(value)}"
    try:
        found = [(0, pa.array(values))]
        if _types.is_temporal(found[0][1].type) and len(classes) > 1:
            # Beside times Arrow takes numbers for times.
            found = list(_alone(values))
    except Exception:  # noqa: BLE001  a value may be of any class
        found = list(_alone(values))
    for first, array in found:
        if not _keeps(array.type, kind):
            rows = np.flatnonzero(_misfits(array, kind)) + first
            reason = f"{kind} cannot hold"
            refused |= {row: f"{reason} {excerpt(values[row])}" for row in rows.tolist()}
    return refused


def _are_plain(values: list[Any], kind: pa.DataType) -> bool:
    """Return whether all values are of the classes of a nested type; Arrow takes longer to infer one."""
    try:
        msgspec.convert(values, list[_hint(kind) | None])  # type: ignore[misc]
    except (TypeError, ValueError, RecursionError):
        return False
    return True


@lru_cache(maxsize=256)
def _hint(kind: Any) -> Any:
    """Return the annotation of what Arrow keeps. Raises ValueError: there is none."""
    if _types.is_struct(kind):
        names = {f"f{at}": each.name for at, each in enumerate(kind)}
        fields = [(f"f{at}", _hint(each.type) | None, None) for at, each in enumerate(kind)]
        return msgspec.defstruct("Fields", fields, rename=names, forbid_unknown_fields=True)
    lists: Any = list
    maps: Any = dict
    if is_list(kind):
        return lists[_hint(kind.value_type) | None]
    if _types.is_map(kind) and is_text(kind.key_type):
        return maps[str, _hint(kind.item_type) | None]
    for is_kind, (hint, *_) in _SAFE:
        if is_kind(kind) and hint is not date:  # to msgspec a `datetime` is a date, too
            return hint
    raise ValueError(kind)


def _alone(values: list[Any]) -> Any:
    for row, value in enumerate(values):
        try:
            yield row, pa.array([value])
        except Exception:  # noqa: BLE001, S112  Arrow knows no type of it, and so changes nothing
            continue


def _keeps(natural: Any, kind: Any) -> bool:
    """Return whether values of an inferred type are kept, or refused by Arrow itself."""
    if natural == kind or _types.is_null(natural):
        return True
    if _types.is_dictionary(kind):
        return _keeps(natural, kind.value_type)
    if is_list(natural) and is_list(kind):
        return _keeps(natural.value_type, kind.value_type)
    if _types.is_struct(natural) and _types.is_struct(kind):
        return all(
            (at := kind.get_field_index(each.name)) >= 0 and _keeps(each.type, kind.field(at).type)
            for each in natural
        )
    if _types.is_struct(natural) and _types.is_map(kind):
        return all(_keeps(each.type, kind.item_type) for each in natural)
    if _types.is_floating(natural):
        return bool(_types.is_float64(kind))
    if _types.is_decimal(natural):
        return not _types.is_integer(kind)
    if _types.is_temporal(natural):
        return getattr(kind, "unit", None) in _FINE
    return True


def _misfits(array: Any, kind: Any) -> Any:
    """Return the rows whose value would change; a field of an object that the type lacks is a change."""
    try:
        cast = fit(array, kind)
    except Misfit:
        if not _types.is_floating(array.type):
            return np.zeros(len(array), np.bool_)  # Arrow has decided
        cast = fit(array, pa.int64())  # of a time: it is a number of its unit
    bad: Mask = either(cast.bad, cast.cut)
    for path in fields_left_out(array.type, kind, ""):
        there = [bool(count_values(array.slice(row, 1), path)) for row in range(len(array))]
        bad = either(bad, rows_where(pa.array(there)))
    return np.zeros(len(array), np.bool_) if bad is None else bad
