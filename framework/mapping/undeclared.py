"""A column of values that a function returned without a declared type: of the type that fits most of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..columns.column_types import TypeChoice, choose_type, common_type, least_misfits
from ..columns.kinds import JSON_OBJECTS, is_nested
from ..columns.reasons import ZONED_TIME_OF_DAY
from ..columns.texts import excerpt, json_texts
from ..errors import as_exception, reason_of
from ..record import Header
from ..values.foreign import are_foreign, plain_foreign
from ..values.kept import cannot_hold
from ..values.python_columns import convert, to_column
from ..values.readable import DEEPEST, ENDLESS, readable
from ..values.row_classes import fields_of, is_row_class
from .sink_types import (
    ByType,
    for_sink,
    hidden_values,
    number_texts,
    takes_each_alone,
    unstorable,
    with_decimals,
)

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_CONTAINERS: Final = frozenset((list, dict, tuple, set, frozenset))
_SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes, datetime, date, Decimal))
_BUILT_IN: Final = _CONTAINERS | _SCALARS
_MOMENT: Final = pa.timestamp("us", tz="UTC")
_as_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SAMPLE: Final = 64  # values of a column
_MOST_ALIKE: Final = 32  # sets of keys
_ZONE: Final = attrgetter("tzinfo")


def undeclared(
    values: list[Any],
    name: str,
    refused: dict[int, str],
    misfits: dict[int, str],
    sink_type: pa.DataType | None,
) -> pa.Array[Any]:
    """Convert values to a column of the type that fits most of them; the others become null.

    Args:
        name: of the column.
        refused: gets the reasons of values that do not fit, by row.
        misfits: the same, of rows for which `name` is in the reason.
        sink_type: what the sink's column stores; None: it is not known.
    """
    if sink_type == JSON_OBJECTS:
        return _objects(values, name, refused, misfits)
    column = _column(values, name, refused, misfits, sink_type)
    if _depth(column.type) <= DEEPEST:
        return column
    deep = {row for row, value in enumerate(values) if _levels(value) > DEEPEST}
    refused |= dict.fromkeys(deep, ENDLESS)
    kept = [None if row in deep else value for row, value in enumerate(values)]
    return _column(kept, name, refused, misfits, sink_type)


def _objects(
    values: list[Any], name: str, refused: dict[int, str], misfits: dict[int, str]
) -> pa.Array[Any]:
    """Convert objects that are alike to one column; others to texts, unless JSON lacks a type of theirs."""
    alone: dict[int, str] = {}
    column = None if _vary(values) else undeclared(values, name, alone, misfits, None)
    if column is not None and not alone:
        return column
    if (texts := _as_documents(values, refused)) is not None:
        return texts
    if column is not None:
        refused |= alone
        return column
    return undeclared(values, name, refused, misfits, None)


def _vary(values: list[Any]) -> bool:
    """Return whether objects have many sets of keys: a column of them would be mostly nulls."""
    inside: list[Any] = values[:: 1 + len(values) // _SAMPLE]
    seen: dict[int, Any] = {}
    while inside:
        inside = [each for each in inside if type(each) in (dict, list) and not seen.get(id(each))]
        seen.update((id(each), each) for each in inside)
        inside = [
            item for each in inside for item in (each.values() if type(each) is dict else each)
        ]
    return len({frozenset(each) for each in seen.values() if type(each) is dict}) > _MOST_ALIKE


def _depth(kind: Any) -> int:
    """Return how many levels of lists and objects a type has."""
    if not is_nested(kind):
        return 0
    return 1 + max((_depth(kind.field(at).type) for at in range(kind.num_fields)), default=0)


def _levels(value: Any) -> int:
    """Return how many levels of lists and objects a value has, which does not contain itself."""
    levels, inside = 0, [value]
    while inside := [
        each
        for some in inside
        if isinstance(some, Mapping | list | tuple | set | frozenset)
        for each in (some.values() if isinstance(some, Mapping) else some)
    ]:
        levels += 1
    return levels


def _column(
    values: list[Any],
    name: str,
    refused: dict[int, str],
    misfits: dict[int, str],
    sink_type: pa.DataType | None,
) -> pa.Array[Any]:
    classes = frozenset(map(type, values))
    if not classes <= _SCALARS:
        values = readable(values, refused)
    if not _CONTAINERS.isdisjoint(classes):
        values = list(map(_without_headers, values))
    if isinstance(sink_type, pa.JsonType):
        sink_type = pa.string()
        if not _CONTAINERS.isdisjoint(classes):
            values = [_json_alone(row, each, refused) for row, each in enumerate(values)]
            classes = frozenset(map(type, values))
    if sink_type is not None and (hidden := hidden_values(name, values, sink_type)):
        misfits.update(hidden)
        values = [None if row in hidden else value for row, value in enumerate(values)]
    if sink_type is not None and (texts := number_texts(values, classes, sink_type)) is not values:
        return to_column(texts, pa.string(), refused)
    if not classes <= _BUILT_IN and any(map(_counts_itself, classes)):
        values = [_plain_or_refused(row, value, refused) for row, value in enumerate(values)]
        classes = frozenset(map(type, values))
    with suppress(Exception):  # a value may be of any class
        if classes == {datetime} and set(map(id, map(_ZONE, values))) == {id(UTC)}:
            return to_column(values, _MOMENT, refused)  # four times as fast
        column: pa.Array[Any] = pa.array(values)
        column.validate(full=is_nested(column.type))
        if not refused and _are_as_they_were(values, classes, column.type):
            return column
    return _of_several_types(values, refused, sink_type)


def _of_several_types(
    values: list[Any], refused: dict[int, str], sink_type: pa.DataType | None
) -> pa.Array[Any]:
    given = [_plain_or_refused(row, value, refused) for row, value in enumerate(values)]
    values = given
    if sink_type is not None:
        values = list(map(with_decimals, given))
        if (texts := number_texts(values, frozenset(map(type, values)), sink_type)) is not values:
            return to_column(texts, pa.string(), refused)
    by_type = _by_type(values, refused)
    if sink_type is not None and takes_each_alone(sink_type, by_type):
        return for_sink(by_type, given, sink_type, refused)
    kind = _choose_type(by_type, given, refused, sink_type)
    return to_column(
        [None if row in refused else value for row, value in enumerate(values)], kind, refused
    )


def _json_text(value: Any) -> str | None:
    """Return a value as JSON; a text is JSON already."""
    return value if value is None or isinstance(value, str) else _as_json(value)


def _as_documents(values: list[Any], refused: dict[int, str]) -> pa.Array[Any] | None:
    """Return values as texts of JSON, each as it is; None if some have a type that JSON lacks."""
    texts: list[str | None] = []
    for row, value in enumerate(values):
        try:
            text = _json_text(value)
        except TypeError:
            return None
        except Exception as error:  # noqa: BLE001  not finite, too deep
            text, refused[row] = None, f"{excerpt(value)}: {reason_of(error)}"
        texts.append(text)
    return to_column(texts, pa.string(), refused)


def _json_alone(row: int, value: Any, refused: dict[int, str]) -> Any:
    """Return a value for a column of JSON as text: in one column all objects would have the same keys.

    An object or list with a value that JSON has no form for, such as a time, is as the sink would write it.
    """
    with suppress(Exception):  # a value may be of any class
        return _json_text(value)
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return value
    plain = _plain_or_refused(row, value, refused)
    try:
        texts, why = json_texts(pa.array([plain]))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return plain
    if why:
        refused[row] = f"{why[0]} (JSON) cannot hold {excerpt(value)}"
    return texts[0].as_py()


def _counts_itself(cls: type) -> bool:
    """Return whether a class of lists has a length of its own: Arrow ends the process where that raises."""
    return issubclass(cls, (list, tuple)) and cls.__len__ not in (list.__len__, tuple.__len__)


def _without_headers(value: Any) -> Any:
    """Return the headers of a record as objects: to Arrow they are lists of texts."""
    if isinstance(value, tuple | list) and any(type(each) is Header for each in value):
        return [each._asdict() if type(each) is Header else each for each in value]
    return value


def _plain_or_refused(row: int, value: Any, refused: dict[int, str]) -> Any:
    """Return a value as `_plain`; None if its class raises."""
    try:
        return _plain(value)
    except BaseException as error:  # noqa: BLE001
        failure = as_exception(error)
        refused[row] = ENDLESS if isinstance(failure, RecursionError) else reason_of(failure)
        return None


def _are_as_they_were(values: list[Any], classes: AbstractSet[type], kind: pa.DataType) -> bool:
    """Return whether Arrow changed no value.

    Beside a time it takes a number for a time, beside numbers a UUID, a boolean or NumPy's for a number; it
    drops the zone of a time of day, and of a point in time beside one without.
    """
    if are_foreign(classes, kind):
        return False
    if pa.types.is_temporal(kind):
        return len(classes - {type(None)}) <= 1 and not (
            getattr(kind, "tz", None) is None and any(map(_has_zone, values))
        )
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        known = classes - {type(None)}
        return len(known) <= 1 or known <= {int, float}
    return True


def _has_zone(value: Any) -> bool:
    return isinstance(value, datetime | time) and value.tzinfo is not None


def _plain(value: Any) -> Any:
    """Return a value that Arrow has a type for: Enums by their values, objects of row classes as dicts."""
    if isinstance(value, np.integer | np.floating) and not isinstance(value, np.timedelta64):
        return value.item()
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return _plain(fields_of(value)) if is_row_class(type(value)) else plain_foreign(value)


def _by_type(values: list[Any], refused: dict[int, str]) -> ByType:
    """Convert values; `refused` gets those that no type fits."""
    rows_of_class: dict[Any, list[int]] = {}
    for row, value in enumerate(values):
        if isinstance(value, time) and _has_zone(value):
            refused[row] = f"{excerpt(value)}: {ZONED_TIME_OF_DAY}"
        elif value is not None:
            rows_of_class.setdefault((type(value), _has_zone(value)), []).append(row)
    found: ByType = {}
    for rows in rows_of_class.values():
        parts = list(convert(values, rows, None, refused))
        if len(parts) > 1:
            # A part's type depends on its neighbours, so each value votes with its own type.
            parts = [([row], pa.array([values[row]])) for some, _ in parts for row in some]
        for some, array in parts:
            of_type, arrays = found.setdefault(array.type, ([], []))
            of_type.extend(some)
            arrays.append(array)
    return found


def _choose_type(
    by_type: ByType, values: list[Any], refused: dict[int, str], sink_type: pa.DataType | None
) -> pa.DataType:
    """Choose the type that fits most values; `refused` gets those that it does not fit.

    A type of which the sink's column holds no value does not count, unless all are such ones.
    """
    if sink_type is not None:
        for kind in unstorable(by_type, sink_type):
            rows, _ = by_type.pop(kind)
            refused |= {row: cannot_hold(sink_type, values[row]) for row in rows}
    choice = choose_type({kind: len(rows) for kind, (rows, _) in by_type.items()})
    for kind, (rows, _) in by_type.items():
        if kind in choice.fits:
            continue
        wider = common_type(choice.type, kind)
        if wider is not None:
            choice = TypeChoice(wider, choice.fits | {kind})
            continue
        reason = f"is {kind}, but most values are {choice.type}"
        refused.update({row: f"{excerpt(values[row])} {reason}" for row in rows})
    return least_misfits({kind: by_type[kind][1] for kind in choice.fits}, choice.type)
