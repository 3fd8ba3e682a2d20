"""Values that a JSON column of ClickHouse would store as others.

It keeps paths, not objects: `{"a.b": 1}` becomes `{"a": {"b": 1}}`. An array has one type: true becomes 1
beside numbers, and null an empty array or object beside others, also those of other rows. A path with a
type makes 1 of 1.5. Texts become times: see `json_times`; numbers other numbers: see `json_numbers`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.casting import Cast, Misfit
from ...columns.kinds import (
    Lists,
    either,
    is_bytes,
    is_list,
    is_nested,
    is_text,
    mask_of,
    rows_where,
)
from .json_numbers import changed_numbers
from .json_times import changed_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...columns.kinds import Array, Mask

_SUSPECT: Final = r'(?s)"[^"]*(\.|\\u002[eE])[^"]*"\s*:|\[.*(true|false|null)'
_DOT: Final = " key with a dot"
_TIME: Final = " value that becomes another time"
_NUMBER: Final = " value that becomes another number"
_ITEMS: Final = "[]"
_NULLS: Final = "an array of nulls"
_NESTED: Final = "an array of arrays or objects"
_WITH_NESTED: Final = r"\[\s*[\[{]"
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def as_paths(array: Array, typed: Sequence[tuple[str, Callable[[Array], Cast]]]) -> Cast:
    """Return a column for a JSON column, with the rows that it would change.

    Args:
        array: without dictionaries, run ends and views.
        typed: the paths that have a type, each with the cast to it.
    """
    if is_text(array.type) or is_bytes(array.type):
        places = _in_texts(array)
    else:
        places = {_DOT: _dotted(array), _ITEMS: _with_empty_items(array)}
    paths = [path for path, _ in typed]
    places[_TIME] = changed_times(array, paths)
    places[_NUMBER] = changed_numbers(array, paths)
    for path, cast in typed:
        places[f".{path}"] = _misfits(array, path, cast)
    found = {place: rows for place, rows in places.items() if rows is not None}
    bad: Mask = None
    for rows in found.values():
        bad = either(bad, rows)
    return Cast(array, bad, found)


def without_nameless(array: Array) -> Cast:
    """Leave out the fields without a name, which no tuple of the server has: rows with a value there are bad.

    Raises:
        Misfit: no field of an object has a name.
    """
    kind = array.type
    if is_list(kind) and _has_nameless(kind.value_type):
        lists = Lists(array)
        items = without_nameless(lists.items)
        return Cast(lists.with_items(items.array), lists.of_items(items.bad))
    if not pa.types.is_struct(kind) or not _has_nameless(kind):
        return Cast(array)
    bad: Mask = None
    fields, children = [], []
    for at, field in enumerate(kind):
        inside = pc.struct_field(array, [at])
        if field.name:
            made = without_nameless(inside)
            bad = either(bad, made.bad)
            children.append(made.array)
            fields.append(pa.field(field.name, made.array.type))
        else:
            bad = either(bad, rows_where(inside.is_valid()))
    if not fields:
        raise Misfit("a field without a name is no element of a tuple")
    mask = array.is_null() if array.null_count else None
    return Cast(pa.StructArray.from_arrays(children, fields=fields, mask=mask), bad)


def _has_nameless(kind: Any) -> bool:
    if pa.types.is_struct(kind) and any(not field.name for field in kind):
        return True
    return any(_has_nameless(kind.field(at).type) for at in range(kind.num_fields))


def _dotted(array: Array) -> Mask:
    """Mark rows with an object, at any depth, that has a value under a key with a dot."""
    kind = array.type
    bad: Mask = None
    if pa.types.is_map(kind):
        lists = Lists(array)
        keys = pc.struct_field(lists.items, [0])
        if is_text(keys.type):
            bad = lists.of_items(rows_where(pc.match_substring(keys, ".")))
        return either(bad, lists.of_items(_dotted(pc.struct_field(lists.items, [1]))))
    if is_list(kind):
        lists = Lists(array)
        return lists.of_items(_dotted(lists.items))
    if pa.types.is_struct(kind):
        for at, field in enumerate(kind):
            inside = pc.struct_field(array, [at])
            bad = either(
                bad, rows_where(inside.is_valid()) if "." in field.name else _dotted(inside)
            )
    return bad


def _with_empty_items(array: Array) -> Mask:
    """Mark rows with an array, at any depth, of arrays or objects with null, which becomes an empty one."""
    kind = array.type
    bad: Mask = None
    if is_list(kind):
        lists = Lists(array)
        nulls = rows_where(lists.items.is_null()) if is_nested(lists.items.type) else None
        return lists.of_items(either(nulls, _with_empty_items(lists.items)))
    if pa.types.is_map(kind):
        lists = Lists(array)
        return lists.of_items(_with_empty_items(pc.struct_field(lists.items, [1])))
    if pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            bad = either(bad, _with_empty_items(pc.struct_field(array, [at])))
    return bad


def _in_texts(text: Array) -> dict[str, Mask]:
    """Mark texts that are no object, and objects with such a key, or with such an array."""
    wrong = [row for row, each in enumerate(text.to_pylist()) if not _is_object(each)]
    found: dict[str, list[int]] = {"": wrong, _DOT: [], _ITEMS: []}
    suspect = rows_where(pc.match_substring_regex(text, _SUSPECT))
    if suspect is None:
        suspect = np.zeros(0, np.bool_)
    nulls: dict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(suspect).tolist():
        for place, path in _places(_document(text[row].as_py())):
            if place == _NULLS:
                nulls[path].append(row)
            elif place != _NESTED:
                found[place].append(row)
    if nulls:
        for each in text.filter(pc.match_substring_regex(text, _WITH_NESTED)).to_pylist():
            for place, path in _places(_document(each)):
                found[_ITEMS] += nulls.pop(path, []) if place == _NESTED else []
    return {place: mask_of(rows, len(text)) for place, rows in found.items() if rows}


def _is_object(text: str | bytes | None) -> bool:
    if text is None:
        return True
    try:
        _OBJECT.decode(text)
    except (ValueError, RecursionError):  # also for lone surrogates, which the server takes
        try:
            return isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False
    return True


def _document(text: str | bytes) -> Any:
    """Parse a document; None if it is none: the server refuses it."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _places(document: Any) -> set[tuple[str, str]]:
    """Return which keys and arrays of a document may be stored as others: what they are, and their paths."""
    try:
        return set(_special(document, ""))
    except RecursionError:  # deeper than the server takes
        return set()


def _special(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            if "." in key:
                yield _DOT, path
            yield from _special(each, f"{path}.{key}")
    elif isinstance(value, list):
        kinds = {type(each) for each in value}
        has_null, nested = type(None) in kinds, kinds & {list, dict}
        if (bool in kinds and kinds - {bool, type(None)}) or (has_null and nested):
            yield _ITEMS, path
        if nested:
            yield _NESTED, path
        elif kinds == {type(None)}:
            yield _NULLS, path
        for each in value:
            yield from _special(each, f"{path}[]")


def _misfits(array: Array, path: str, cast: Callable[[Array], Cast]) -> Mask:
    """Mark the rows whose value at a path does not fit its type. A value that is not there fits."""
    names = path.split(".")
    if pa.types.is_struct(array.type):
        inside = _field(array, names)
        return None if inside is None else _cast(inside, cast)
    if not (pa.types.is_map(array.type) or is_text(array.type) or is_bytes(array.type)):
        return None  # no object: the server refuses it
    as_object = dict if pa.types.is_map(array.type) else _document
    objects = (None if each is None else as_object(each) for each in array.to_pylist())
    values = [_at(each, names) for each in objects]
    try:
        return _cast(pa.array(values), cast)
    except (pa.ArrowException, OverflowError):  # of several types, or too large for Arrow
        alone = [None if each is None else _cast_alone(each, cast) for each in values]
        return mask_of([row for row, each in enumerate(alone) if each], len(values))


def _field(structs: Array, names: Sequence[str]) -> Array | None:
    for name in names:
        kind: Any = structs.type
        at = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if at < 0:
            return None
        structs = pc.struct_field(structs, [at])
    return structs


def _at(document: Any, names: Sequence[str]) -> Any:
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _cast(array: Array, cast: Callable[[Array], Cast]) -> Mask:
    try:
        return cast(array).bad
    except Misfit:
        return rows_where(array.is_valid())


def _cast_alone(value: Any, cast: Callable[[Array], Cast]) -> bool:
    try:
        bad = _cast(pa.array([value]), cast)
    except (pa.ArrowException, OverflowError):
        bad = _cast(pa.array([str(value)]), cast)
    return bad is not None and bool(bad[0])
