"""The type of a column for which values of several types arrived: the type that fits most values wins.

Types that Arrow unifies count together: int64 and double are double, structs with different fields are one
struct, and null fits every type. Of types that fit equally many values the first of this order wins: numbers,
booleans, times, text, bytes, others, and then the name of the type. So the order of values has
no effect, with one exception: Arrow takes a boolean that follows a float for 0.0 or 1.0.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from .columns.kinds import is_number
from .errors import StrategyError

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
    """Choose the type of a column.

    Args:
        values: the number of values of each type, without nulls.
    """
    families: list[_Family] = []
    for kind in sorted(values, key=lambda kind: _precedence(values[kind], kind)):
        for family in families:
            unified = _unify(family.type, kind)
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


def _unify(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one == other:
        return one
    if {pa.types.is_decimal(one), pa.types.is_decimal(other)} == {True, False} and (
        pa.types.is_floating(one) or pa.types.is_floating(other)
    ):
        return None  # Arrow names a common type, but does not convert a Decimal to a float.
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
        StrategyError: a value does not fit the wider type of its column (an integer above 2**53 beside
            floats).
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


def _replace_misfits(tables: list[pa.Table], name: str, misfits: dict[int, str]) -> None:
    """Replace by null the values of one column whose type is not that of most values."""
    values: Counter[pa.DataType] = Counter()
    for table in tables:
        column = _column(table, name)
        if column is not None and column.null_count < len(column):
            values[column.type] += len(column) - column.null_count
    choice = choose_type(values)
    begin = 0
    for at, table in enumerate(tables):
        column = _column(table, name)
        if column is not None and column.type not in choice.fits:
            reason = f"column {name}: {column.type}, but most values are {choice.type}"
            rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)) + begin
            misfits.update(dict.fromkeys(rows.tolist(), reason))
            tables[at] = table.set_column(
                table.column_names.index(name), name, pa.nulls(len(column))
            )
        begin += table.num_rows


def _column(table: pa.Table, name: str) -> Any:
    return table.column(name) if name in table.column_names else None
