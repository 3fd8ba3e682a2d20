"""Why rows do not fit, in words that name the column and the value; and what a cast leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .kinds import Lists, either, is_list, plain, rows_where
from .texts import excerpt, python_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .casting import Cast
    from .kinds import Array, Mask

ZONED_TIME_OF_DAY: Final = "a time of day with a zone has no type; return a datetime"
_ROWS_AT_ONCE: Final = 1_000  # as Python values


def reasons(
    column: str, type_name: str, array: Array, cast: Cast, skip: Mask = None
) -> dict[int, str]:
    """Return, for each row that does not fit, the reason with the column and the value.

    Args:
        type_name: the destination's name of the column's type.
        array: the column before the cast.
        skip: rows whose reason is known already.
    """
    if cast.bad is None:
        return {}
    rows = np.flatnonzero(cast.bad if skip is None else cast.bad & ~skip)
    # Arrow cannot take views
    known = array if isinstance(array.type, pa.UuidType) else plain(array)
    found = {}
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        values = python_values(known.take(pa.array(some, pa.int64())))
        for row, value in zip(some.tolist(), values, strict=True):
            place = next((name for name, where in cast.places.items() if name and where[row]), "")
            found[row] = cannot_hold(f"{column}{place}", type_name, _inside(value, place))
    return found


def cannot_hold(column: str, type_name: str, value: object) -> str:
    """Return the reason why a column cannot have a value."""
    if value is None:
        return f"column {column} ({type_name}) cannot be null"
    return f"column {column} ({type_name}) cannot hold {excerpt(value)}"


def _inside(value: Any, place: str) -> Any:
    """Return the part of a value at a place such as `.user.age`; for items of a list, the list."""
    for step in place.split(".")[1:]:
        name, brackets, _ = step.partition("[]")
        if not isinstance(value, dict) or name not in value:
            return value
        value = value[name]
        if brackets:
            return value
    return value


def fields_left_out(kind: Any, to: Any, path: str) -> Iterator[str]:
    """Yield the fields of nested values for which a type has no place: `fit` leaves them out."""
    if is_list(kind) and is_list(to):
        yield from fields_left_out(kind.value_type, to.value_type, f"{path}[]")
    elif pa.types.is_struct(kind) and pa.types.is_struct(to):
        for field in kind:
            at = to.get_field_index(field.name)
            if at < 0:
                yield f"{path}.{field.name}"
            else:
                yield from fields_left_out(field.type, to.field(at).type, f"{path}.{field.name}")


def rows_left_out(array: Array, to: Any) -> Mask:
    """Return the rows with a value in a nested object for which a type has no place; None: there is none."""
    array = plain(array)
    kind = array.type
    if is_list(kind) and is_list(to):
        lists = Lists(array)
        return lists.of_items(rows_left_out(lists.items, to.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(to):
        lists = Lists(array)
        return lists.of_items(rows_left_out(pc.struct_field(lists.items, [1]), to.item_type))
    found: Mask = None
    if pa.types.is_struct(kind) and pa.types.is_struct(to):
        for at, field in enumerate(kind):
            child, place = pc.struct_field(array, [at]), to.get_field_index(field.name)
            inside = place >= 0
            found = either(
                found,
                rows_left_out(child, to.field(place).type)
                if inside
                else rows_where(child.is_valid()),
            )
    return found


def count_values(array: Any, path: str) -> int:
    """Return the number of values at a path of `fields_left_out`, without its column: `[].tags`."""
    array = plain(array)
    if path.startswith("[]") and is_list(array.type):
        return count_values(Lists(array).items, path[2:])
    # the longest name first: `a.b` may be a field beside `a`
    fields = array.type if path and pa.types.is_struct(array.type) else ()
    for at, field in sorted(enumerate(fields), key=lambda each: -len(each[1].name)):
        if path == f".{field.name}" or path.startswith((f".{field.name}.", f".{field.name}[]")):
            child = pc.struct_field(array.filter(array.is_valid()), [at])
            return count_values(child, path.removeprefix(f".{field.name}"))
    return len(array) - int(array.null_count)
