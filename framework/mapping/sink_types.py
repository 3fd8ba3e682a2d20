"""Values that the type of a batch's column would hide from a sink, refused where each still has its class.

The rows of a per-record map that declares none get one type for each column of a batch: an int beside floats
becomes a float, and a key that a dict lacks becomes null, like a key whose value is None. A column of 32-bit
floats, or of maps, has to tell them apart; a column of text takes each as it is written alone, one of JSON
each as it is, and one of numbers those that are beyond 64 bits.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from ..columns.casting import Cast, Misfit
from ..columns.fitting import fit
from ..columns.kinds import is_list, is_text
from ..columns.texts import excerpt, python_values, text_of
from ..values.kept import cannot_hold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

ByType: TypeAlias = "dict[pa.DataType, tuple[list[int], list[pa.Array[Any]]]]"
"""Values by the type that Arrow infers for them: their rows, and their arrays in that order."""

_ALONE: Final[Sequence[Callable[[Any], bool]]] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_decimal,
    pa.types.is_date32,
    lambda kind: isinstance(kind, pa.UuidType),
    is_text,
)
_WRITTEN: Final[Sequence[Callable[[Any], bool]]] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    is_text,
    lambda kind: pa.types.is_decimal(kind) and kind.scale == 0,
)
_NUMBERS: Final = frozenset((int, float, Decimal))
_INT64: Final = 2**63
_FLOAT_BITS: Final = 24
_GREATEST_BITS: Final = 128
_DECLARE: Final = "declare the rows with dict[str, ... | None], or leave the key out"


def hidden_values(name: str, values: list[Any], kind: pa.DataType) -> dict[int, str]:
    """Return why values do not fit a column of a sink, though the type of their own column would hide it.

    Args:
        name: of the column.
        values: of an undeclared column of one batch.
        kind: what the sink's column stores.
    """
    if not _matters(kind):
        return {}
    return {
        row: reason
        for row, value in enumerate(values)
        if value is not None and (reason := _hidden(value, kind, f"column {name}")) is not None
    }


def number_texts(values: list[Any], classes: AbstractSet[type], kind: pa.DataType) -> list[Any]:
    """Return numbers of several classes as texts for a column of text: as one column, 5 would be 5.0.

    Other values are returned as they are, and so are numbers that Arrow does not have.

    Args:
        classes: those of the values.
    """
    numbers = classes - {type(None)}
    if not (is_text(kind) and len(numbers) > 1 and numbers <= _NUMBERS):
        return values
    texts: list[Any] = [None] * len(values)
    for of in numbers:
        rows = [row for row, value in enumerate(values) if type(value) is of]
        try:
            made = python_values(text_of(pa.array([values[row] for row in rows])))
        except (pa.ArrowException, OverflowError):
            return values
        for row, text in zip(rows, made, strict=True):
            texts[row] = text
    return texts


def with_decimals(value: Any) -> Any:
    """Return whole numbers beyond 64 bits as decimals, also in lists and dicts: a sink may hold them."""
    if type(value) is int:
        return value if -_INT64 <= value < _INT64 else Decimal(value)
    if isinstance(value, dict):
        return {key: with_decimals(each) for key, each in value.items()}
    return [with_decimals(each) for each in value] if isinstance(value, list) else value


def takes_each_alone(kind: Any, by_type: ByType) -> bool:
    """Return whether values of several types are for a column of this type, each as it is alone.

    As one column they would have one type, and those of the others would be refused. Times are left out:
    a sink may read their texts in a zone of its own.
    """
    if len(by_type) < 2 or not any(is_kind(kind) for is_kind in _ALONE):
        return False
    return not is_text(kind) or all(any(is_kind(each) for is_kind in _WRITTEN) for each in by_type)


def unstorable(by_type: ByType, kind: Any) -> list[pa.DataType]:
    """Return the types of which a column of this type holds no value; none if it holds none of any.

    A text column may stand for one whose values a server casts: it may hold any.
    """
    if len(by_type) < 2 or _has_text(kind):
        return []
    found = [each for each, (_, arrays) in by_type.items() if not _holds_some(arrays[0], kind)]
    return found if len(found) < len(by_type) else []


def _has_text(kind: Any) -> bool:
    return is_text(kind) or any(_has_text(kind.field(at).type) for at in range(kind.num_fields))


def _holds_some(array: Any, kind: Any) -> bool:
    try:
        fit(array, kind)
    except (Misfit, pa.ArrowException):
        return False
    return True


def for_sink(
    by_type: ByType, values: list[Any], kind: Any, refused: dict[int, str]
) -> pa.Array[Any]:
    """Return values of several types as a column of the type that a sink stores.

    Args:
        refused: gets the reasons of those that do not fit it, which become null.
    """
    order: list[int] = []
    arrays: list[Any] = [pa.nulls(1, kind)]
    for rows, parts in by_type.values():
        array = pa.concat_arrays(parts)
        try:
            cast = fit(array, kind)
        except (Misfit, pa.ArrowException):
            cast = Cast(pa.nulls(len(array), kind), np.ones(len(array), np.bool_))
        bad = () if cast.bad is None else np.flatnonzero(cast.bad).tolist()
        refused |= {rows[at]: cannot_hold(kind, values[rows[at]]) for at in bad}
        order += rows
        arrays.append(cast.array)
    at = np.zeros(len(values), np.int64)
    at[order] = np.arange(1, len(order) + 1)
    at[list(refused)] = 0
    column: pa.Array[Any] = pa.concat_arrays(arrays).take(pa.array(at))
    return column


def _matters(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_matters(each.type) for each in kind)
    if is_list(kind):
        return _matters(kind.value_type)
    return bool(pa.types.is_float32(kind) or pa.types.is_map(kind))


def _hidden(value: Any, kind: Any, path: str) -> str | None:
    """Return why a value, or one inside of it, does not fit a type and the sink would not see it."""
    if pa.types.is_float32(kind):
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        wrong = is_whole and not _is_exact(int(value))
        return f"{path}: {kind} cannot hold {excerpt(value)}" if wrong else None
    if isinstance(value, dict):
        if pa.types.is_map(kind):
            inside = ((key, each, kind.item_type) for key, each in value.items())
        elif pa.types.is_struct(kind):
            inside = ((each.name, value.get(each.name), each.type) for each in kind)
        else:
            return None
        for key, each, of in inside:
            if each is None and pa.types.is_map(kind):
                return (
                    f"{path}.{key}: null, which undeclared rows cannot tell from no key; {_DECLARE}"
                )
            if each is not None and (found := _hidden(each, of, f"{path}.{key}")) is not None:
                return found
    elif isinstance(value, list | tuple) and is_list(kind):
        items = (_hidden(each, kind.value_type, f"{path}[]") for each in value if each is not None)
        return next((found for found in items if found is not None), None)
    return None


def _is_exact(number: int) -> bool:
    """Return whether a 32-bit float has this number."""
    number = abs(number)
    lowest = (number & -number).bit_length()
    return number.bit_length() <= _GREATEST_BITS and number.bit_length() - lowest < _FLOAT_BITS
