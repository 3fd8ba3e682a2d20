"""The type of a column for which values of several types arrived: the type that fits most values wins.

Types that Arrow unifies count together: int64 and double are double, structs with different fields are one
struct, points in time of several zones are UTC, and null fits every type. Of types that fit equally many
values the first of this order wins: numbers, booleans, times, text, bytes, others, and then the name of the
type. So the order of values has no effect, with one exception: Arrow takes a boolean that follows a float for
0.0 or 1.0.

A value that its column's type cannot hold (2**53 + 1 beside floats) is refused alone; where most values are
such ones, the others are refused.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from ..errors import StrategyError
from .casting import Cast, Misfit
from .fitting import fit
from .kinds import either, is_number, whole
from .reasons import reasons
from .texts import excerpt, python_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CONFLICTS: Final = (pa.ArrowInvalid, pa.ArrowTypeError)


class MixedTypes(StrategyError):
    """Rows cannot be joined to one table: a column has values of incompatible types."""


class TypeChoice(NamedTuple):
    """The type of a column, and the types of values that it fits."""

    type: pa.DataType
    fits: frozenset[pa.DataType]


@dataclass(slots=True)
class _Family:
    type: pa.DataType
    members: list[pa.DataType]
    values: int


def choose_type(values: Mapping[pa.DataType, int]) -> TypeChoice:
    """Choose the type of a column; `values`: the number of values of each type, without nulls."""
    families: list[_Family] = []
    for kind in sorted(values, key=lambda kind: _precedence(values[kind], kind)):
        for family in families:
            unified = common_type(family.type, kind)
            if unified is not None:
                family.type = unified
                family.members.append(kind)
                family.values += values[kind]
                break
        else:
            families.append(_Family(kind, [kind], values[kind]))
    if not families:
        return TypeChoice(pa.null(), frozenset())
    best = min(families, key=lambda family: _precedence(family.values, family.type))
    return TypeChoice(best.type, frozenset(best.members))


_ORDER: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    is_number,
    pa.types.is_boolean,
    pa.types.is_temporal,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
)


def _precedence(values: int, kind: pa.DataType) -> tuple[int, int, str]:
    rank = next((at for at, matches in enumerate(_ORDER) if matches(kind)), len(_ORDER))
    return -values, rank, str(kind)


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that fits the values of two types; None if there is none."""
    if one == other:
        return one
    if {pa.types.is_decimal(one), pa.types.is_decimal(other)} == {True, False} and (
        pa.types.is_floating(one) or pa.types.is_floating(other)
    ):
        return None  # Arrow names a common type, but does not convert a Decimal to a float.
    zones: set[str | None] = {getattr(kind, "tz", None) for kind in (one, other)}
    if len(zones) == 2 and None not in zones:  # the same points in time
        one, other = (pa.timestamp(cast("Any", kind).unit, "UTC") for kind in (one, other))
    schemas = [pa.schema([pa.field("", kind)]) for kind in (one, other)]
    try:
        unified: pa.DataType = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except _CONFLICTS:
        return None
    return unified


class JoinedTables(NamedTuple):
    """The rows of several tables in one, in order.

    Attributes:
        misfits: the reason for each row with a value that does not fit its column; the value is null.
    """

    table: pa.Table
    misfits: dict[int, str]


def join_tables(tables: Sequence[pa.Table]) -> JoinedTables:
    """Join tables; a column that only some have is null in the others.

    Raises:
        StrategyError: the columns have no common type.
    """
    with suppress(*_CONFLICTS):
        return JoinedTables(pa.concat_tables(tables, promote_options="permissive"), {})
    fitting = list(tables)
    misfits: dict[int, str] = {}
    for name in dict.fromkeys(name for table in tables for name in table.column_names):
        _replace_misfits(fitting, name, misfits)
    try:
        return JoinedTables(pa.concat_tables(fitting, promote_options="permissive"), misfits)
    except _CONFLICTS as error:
        raise StrategyError(
            f"batches have columns of incompatible types ({error}); "
            "declare them with @map_record(schema=...)"
        ) from error


def joined_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables as `join_tables`. Raises MixedTypes if a column has types that cannot be joined."""
    joined = join_tables(tables)
    for reason in joined.misfits.values():
        raise MixedTypes(f"{reason}; declare the types with @map_record(schema=...)")
    return joined.table


def _replace_misfits(tables: list[pa.Table], name: str, misfits: dict[int, str]) -> None:
    """Replace by null the values of one column whose type is not that of most values."""
    values: Counter[pa.DataType] = Counter()
    for table in tables:
        column = _column(table, name)
        if column is not None and column.null_count < len(column):
            values[column.type] += len(column) - column.null_count
    choice = choose_type(values)
    columns = [_column(table, name) for table in tables]
    of_type = {
        kind: [whole(each) for each in columns if each is not None and each.type == kind]
        for kind in choice.fits
    }
    target = least_misfits(of_type, choice.type)
    begin = 0
    for at, (table, column) in enumerate(zip(tables, columns, strict=True)):
        if column is not None and column.type != target:
            array = whole(column)
            if column.type in choice.fits:
                fitted = exactly(array, target)
                found = reasons(name, str(target), array, fitted)
            else:
                fitted = Cast(pa.nulls(len(array)))
                found = other_types(name, array, choice.type)
            misfits.update({begin + row: reason for row, reason in found.items()})
            tables[at] = table.set_column(table.column_names.index(name), name, fitted.array)
        begin += table.num_rows


def least_misfits(arrays: Mapping[pa.DataType, Sequence[Any]], common: pa.DataType) -> pa.DataType:
    """Return the type that most values fit as they are: the common one, or that of some of them."""

    def misfits(target: pa.DataType) -> int:
        count = 0
        for array in chain.from_iterable(arrays.values()):
            try:
                bad = exactly(array, target).bad
            except Misfit:
                return everything
            count += 0 if bad is None else int(bad.sum())
        return count

    everything = sum(map(len, chain.from_iterable(arrays.values()))) + 1
    fewest = misfits(common)
    for kind in sorted(arrays, key=str) if fewest else ():
        if (here := misfits(kind)) < fewest:
            common, fewest = kind, here
    return common


def exactly(array: Any, target: pa.DataType) -> Cast:
    """Cast to a type; a time that would lose digits does not fit."""
    made = fit(array, target)
    return made._replace(bad=either(made.bad, made.cut))


def other_types(name: str, array: Any, chosen: pa.DataType) -> dict[int, str]:
    """Return why the values of a column are not of the type that most values are."""
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist()
    valid = array.drop_null() if array.null_count else array
    return {
        row: f"column {name}: {excerpt(value)} is {array.type}, but most values are {chosen}"
        for row, value in zip(rows, python_values(valid), strict=True)
    }


def _column(table: pa.Table, name: str) -> Any:
    return table.column(name) if name in table.column_names else None
