"""Which values a column of a given type would change: Arrow makes 1 of 1.5 and a day of a `datetime`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from ..columns.casting import Misfit
from ..columns.fitting import fit
from ..columns.kinds import either, is_bytes, is_list, is_nested, is_text
from ..columns.reasons import ZONED_TIME_OF_DAY
from ..columns.texts import excerpt
from .foreign import plain_foreign
from .readable import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_types: Any = pa.types
_FINE: Final = ("us", "ns")
_DECIMAL_PLACES: Final = {32: 9, 64: 18, 128: 38, 256: 76}
_PLACES: Final = 10_000  # the most of a decimal for other types
_LISTS: Final = (list, tuple, set, frozenset)
_NUMBERS: Final = frozenset((int, float))
_BYTES_AND_TEXT: Final = (str, bytes, bytearray, memoryview)
_SAFE: Final[Sequence[tuple[Callable[[Any], bool], tuple[type, ...]]]] = (
    (_types.is_integer, (int,)),
    (_types.is_float64, (float, int)),
    (_types.is_boolean, (bool,)),
    (_types.is_decimal, (Decimal, int)),
    (is_text, (str,)),
    (is_bytes, (bytes, str)),
    (_types.is_date32, (date,)),
    (lambda kind: _types.is_timestamp(kind) and kind.unit in _FINE, (datetime,)),
)
"""By type: the classes of values that Arrow converts as they are, or not at all; the usual one first."""


def are_kept(values: list[Any], kind: Any) -> bool:
    """Return whether Arrow converts values of these classes as they are, or not at all; None is kept."""
    classes = set(map(type, values)) - {type(None)}
    return Decimal not in classes and classes <= _safe(kind)


def changed(values: list[Any], kind: Any) -> dict[int, str]:
    """Return why values do not fit a type, though Arrow converts them."""
    classes = set(map(type, values)) - {type(None)}
    if Decimal in classes and (finer := _finer(values, kind)):
        others = [None if row in finer else each for row, each in enumerate(values)]
        return {row: cannot_hold(kind, values[row]) for row in finer} | changed(others, kind)
    if classes <= _safe(kind):
        return {}
    if _types.is_dictionary(kind):
        return changed(values, kind.value_type)
    if is_nested(kind) and _are_plain(values, kind):
        return {}
    unread: dict[int, str] = {}
    values = readable(values, unread)
    if unread:
        return unread | changed(values, kind)
    if is_nested(kind):
        return _changed_inside(values, kind)
    refused = {
        row: f"{excerpt(value)}: {ZONED_TIME_OF_DAY}"
        for row, value in enumerate(values if time in classes else ())
        if isinstance(value, time) and value.tzinfo is not None
    }
    refused |= {
        row: cannot_hold(kind, value)
        for row, value in enumerate(values if _types.is_date(kind) else ())
        if isinstance(value, datetime) and value.time() != time()
    }
    refused |= {
        row: cannot_hold(kind, value)
        for row, value in enumerate(values)
        if isinstance(value, bool | np.bool_) and not _types.is_boolean(kind)
    }
    try:
        # Beside a number Arrow takes `int(value)`, beside times it takes numbers for times.
        alike = len(classes) == 1 or classes <= _NUMBERS
        found = [(0, pa.array(list(map(plain_foreign, values))))] if alike else None
    except Exception:  # noqa: BLE001  a value may be of any class
        found = None
    if found is None:
        found = list(_alone(values, kind, refused))
    for first, array in found:
        if not _keeps(array.type, kind):
            rows = (np.flatnonzero(_misfits(array, kind)) + first).tolist()
            refused |= {row: cannot_hold(kind, values[row]) for row in rows}
    return refused


@lru_cache(maxsize=256)
def _safe(kind: pa.DataType) -> frozenset[type]:
    """Return the classes of values that Arrow converts to a type as they are, or not at all."""
    return frozenset(cls for is_kind, classes in _SAFE if is_kind(kind) for cls in classes)


def _finer(values: list[Any], kind: Any) -> set[int]:
    """Return the rows of decimals with more places than any type of the same width can have.

    For them Arrow reads behind its table of powers of ten: it makes 0 of 1e-77, and 1e-999999999 ends the
    process.
    """
    most = _DECIMAL_PLACES[kind.bit_width] if _types.is_decimal(kind) else _PLACES
    return {
        row
        for row, each in enumerate(values)
        if isinstance(each, Decimal)
        and each.is_finite()
        and (each.adjusted() < -most or (len(str(each)) > most and _places(each) > most))
    }


def _places(value: Decimal) -> int:
    return -int(value.as_tuple().exponent)


def cannot_hold(kind: pa.DataType, value: object) -> str:
    """Return the reason why a type does not have a value."""
    return f"{kind} cannot hold {excerpt(value)}"


_AT: Final = "at "


def _changed_inside(values: list[Any], kind: Any) -> dict[int, str]:
    """Return why a part of nested values would change, or be left out: `at age: int8 cannot hold 300`."""
    left_out: set[int] = set()
    reasons: dict[int, str] = {}
    for name, numbers, items, of in _inside(values, kind, left_out):
        for at, reason in changed(items, of).items():
            row = numbers[at]
            reasons.setdefault(row, _at(name, reason) if name else cannot_hold(kind, values[row]))
    return reasons | {row: cannot_hold(kind, values[row]) for row in left_out - reasons.keys()}


def _at(name: str, reason: str) -> str:
    inner = reason.removeprefix(_AT)
    return f"{_AT}{name}{': ' if inner == reason else '.'}{inner}"


def refused_inside(value: Any, kind: Any) -> str:
    """Return the reason why Arrow refuses a nested value; of an object, the first field that it refuses."""
    for name, _, items, of in _inside([value], kind, set()):
        for item in items if name else ():
            try:
                pa.array([item], of)
            except Exception:  # noqa: BLE001  a value may be of any class
                inner = refused_inside(item, of) if is_nested(of) else cannot_hold(of, item)
                return _at(name, inner)
    return cannot_hold(kind, value)


def _inside(
    values: list[Any], kind: Any, left_out: set[int]
) -> Iterator[tuple[str, list[int], list[Any], Any]]:
    """Yield the parts of nested values: the field's name, their rows, the parts, and their type.

    Args:
        left_out: gets the rows of objects with a field that the type lacks, and of what is no such object,
            map or list: Arrow takes pairs for an object, and bytes for a list of numbers.
    """
    if _types.is_struct(kind):
        names = {each.name for each in kind}
        objects = [(row, each) for row, each in enumerate(values) if isinstance(each, dict)]
        left_out.update(_others(values, objects))
        for row, each in objects:
            if any(each[name] is not None for name in each.keys() - names):
                left_out.add(row)
        for field in kind:
            yield (
                field.name,
                [row for row, _ in objects],
                [each.get(field.name) for _, each in objects],
                field.type,
            )
    elif _types.is_map(kind):
        maps = [
            (row, each.items() if isinstance(each, dict) else each)
            for row, each in enumerate(values)
            if isinstance(each, dict | list | tuple)
        ]
        left_out.update(_others(values, maps))
        found = [
            (row, *pair)
            for row, pairs in maps
            for pair in pairs
            if isinstance(pair, tuple) and len(pair) == 2  # Arrow refuses others
        ]
        yield "", [row for row, *_ in found], [key for _, key, _ in found], kind.key_type
        yield "", [row for row, *_ in found], [item for *_, item in found], kind.item_type
    else:
        several = [
            (row, items) for row, each in enumerate(values) if (items := _items(each)) is not None
        ]
        left_out.update(_others(values, several))
        lists = [(row, each) for row, items in several for each in items]
        yield "", [row for row, _ in lists], [each for _, each in lists], kind.value_type


def _others(values: list[Any], found: Iterable[tuple[int, Any]]) -> set[int]:
    """Return the rows that have a value, but are not among some rows."""
    rows = {row for row, value in enumerate(values) if value is not None}
    return rows.difference(row for row, _ in found)


def _items(value: Any) -> list[Any] | None:
    """Return the items of a collection that Arrow takes for a list; None if it is none."""
    try:
        is_collection = isinstance(value, (*_LISTS, Sequence)) or hasattr(value, "__array__")
        return list(value) if is_collection and not isinstance(value, _BYTES_AND_TEXT) else None
    except BaseException:  # noqa: BLE001  a value may be of any class
        return None


def _are_plain(values: list[Any], kind: pa.DataType) -> bool:
    """Return whether all values are of the classes of a nested type; Arrow takes longer to infer one."""
    try:
        msgspec.convert(values, list[_hint(kind) | None])  # type: ignore[misc]
    except Exception:  # noqa: BLE001  a value may be of any class
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
        # To msgspec a `datetime` is a date, too; each decimal is looked at.
        if is_kind(kind) and hint not in (date, Decimal):
            return hint
    raise ValueError(kind)


def _alone(values: list[Any], kind: Any, refused: dict[int, str]) -> Any:
    """Yield each value as a column; `refused` gets those of which Arrow would take `int(value)`."""
    for row, value in enumerate(values):
        try:
            yield row, pa.array([plain_foreign(value)])
        except Exception:  # noqa: BLE001  a value may be of any class
            # A long number fits a decimal; a text with half a pair, and a coroutine, have their own reasons.
            if not isinstance(value, int | str) and not iscoroutine(value):
                refused[row] = cannot_hold(kind, value)


def _keeps(natural: Any, kind: Any) -> bool:
    """Return whether values of an inferred type are kept, or refused by Arrow itself."""
    if natural == kind or _types.is_null(natural):
        return True
    if _types.is_floating(natural):
        return bool(_types.is_float64(kind))
    if _types.is_decimal(natural):
        return not (_types.is_integer(kind) or _types.is_temporal(kind))
    if isinstance(natural, pa.BaseExtensionType):
        return False
    if _types.is_temporal(natural):
        unit = getattr(kind, "unit", None)
        return unit == "ns" or (unit == "us" and getattr(natural, "unit", None) != "ns")
    return True


def _misfits(array: Any, kind: Any) -> Any:
    """Return the rows whose value would change."""
    try:
        cast = fit(array, kind)
    except Misfit:
        if not _types.is_floating(array.type):
            return array.is_valid().to_numpy(zero_copy_only=False)
        cast = fit(array, pa.int64())  # of a time: it is a number of its unit
    bad = either(cast.bad, cast.cut)
    return np.zeros(len(array), np.bool_) if bad is None else bad
