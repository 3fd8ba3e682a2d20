"""The values of a JSON column at each of its paths: of objects in Arrow, and of texts of objects."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.kinds import Lists, either, is_list, mask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ...columns.kinds import Array, Mask


def bad_leaves(
    array: Array, typed: Collection[str], check: Callable[[Array], Mask], path: str = ""
) -> Mask:
    """Mark the objects with a value, at any depth, that a check marks among the values of its path.

    Args:
        array: without dictionaries, run ends and views.
        typed: the paths that have a type: they are not checked.
    """
    kind = array.type
    if has_type(path, typed):
        return None
    if pa.types.is_struct(kind):
        bad: Mask = None
        for at, field in enumerate(kind):
            inside = pc.struct_field(array, [at])
            bad = either(bad, bad_leaves(inside, typed, check, f"{path}.{field.name}"))
        return bad
    if pa.types.is_map(kind):
        lists = Lists(array)
        bad = None
        keys, items = (pc.struct_field(lists.items, [at]) for at in range(2))
        for key, rows in _by_key(keys):
            mask = bad_leaves(items.take(pa.array(rows)), typed, check, f"{path}.{key}")
            if mask is not None:
                bad = either(bad, mask_of(rows[mask], len(items)))
        return lists.of_items(bad)
    if is_list(kind):
        lists = Lists(array)
        return lists.of_items(bad_leaves(lists.items, typed, check, f"{path}[]"))
    return check(array)


def _by_key(keys: Array) -> Iterator[tuple[Any, Any]]:
    """Yield the keys of maps, each with the rows that have it."""
    encoded: Any = keys.dictionary_encode()
    indices = np.asarray(encoded.indices)
    order = np.argsort(indices, kind="stable")
    ends = np.cumsum(np.bincount(indices, minlength=len(encoded.dictionary)))
    return zip(encoded.dictionary.to_pylist(), np.split(order, ends[:-1]), strict=False)


def leaves_of(text: str | bytes | None) -> list[tuple[str, Any]]:
    """Return the values of the object of a text, each with its path; fractions are decimals.

    Of what is no object there are none: the server refuses it.
    """
    try:
        document = None if text is None else json.loads(text, parse_float=Decimal)
        return list(_leaves(document, "")) if isinstance(document, dict) else []
    except (ValueError, RecursionError):
        return []


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, f"{path}[]")
    else:
        yield path, value


def has_type(path: str, typed: Collection[str]) -> bool:
    """Return whether a path has a type, or is inside of one that has."""
    return any(path == f".{each}" or path.startswith((f".{each}.", f".{each}[")) for each in typed)
