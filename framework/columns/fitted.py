"""Rows cast to the columns of a destination, column by column, and the reasons of those that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import reason_of
from .casting import Cast, Misfit
from .kinds import Mask, either, is_text, plain, whole, without, without_rows
from .reasons import reasons
from .texts import excerpt, python_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from .kinds import Array


class TargetColumn(NamedTuple):
    """A column of a destination.

    Attributes:
        type_name: the destination's name of its type, for reasons: `numeric(10,2)`.
        cast: casts a column of the rows; raises Misfit where no value of its type fits.
    """

    name: str
    type_name: str
    cast: Callable[[Array], Cast]


class Fitted(NamedTuple):
    """Rows cast to the columns of a destination.

    Attributes:
        table: all rows; those that do not fit have null or anything.
        refused: the numbers of the rows that do not fit, with the reasons.
        general: the reasons that are about the type of a whole column, not about a value.
        cut: how many times of each column lost digits.
        left_out: how many values of a column, or of a field in one, the destination has no place for.
    """

    table: pa.Table
    refused: dict[int, str]
    general: frozenset[str] = frozenset()
    cut: Mapping[str, int] = {}
    left_out: Mapping[str, int] = {}

    def kept(self) -> pa.Table:
        """Return the rows that fit."""
        return without_rows(self.table, self.refused)


def fit_columns(rows: pa.Table, targets: Sequence[TargetColumn]) -> Fitted:
    """Cast rows to the columns of a destination; a column that the rows lack is null."""
    arrays: dict[str, Any] = {}
    refused: dict[int, str] = {}
    general: set[str] = set()
    cut: dict[str, int] = {}
    bad: Mask = None
    names = set(rows.column_names)
    for target in targets:
        array = _column(rows, target.name, names)
        cast, misfit = _cast(array, target)
        if misfit is None:
            refused |= reasons(target.name, target.type_name, array, cast, skip=bad)
        else:
            reason = f"column {target.name} ({target.type_name}) cannot hold {array.type}: {misfit}"
            general.add(reason)
            if cast.bad is not None:
                new = np.flatnonzero(cast.bad if bad is None else cast.bad & ~bad)
                refused.update(dict.fromkeys(new.tolist(), reason))
        bad = either(bad, cast.bad)
        if cast.cut is not None:
            cut[target.name] = int(np.count_nonzero(cast.cut))
        arrays[target.name] = cast.array
    return Fitted(_table(arrays), refused, frozenset(general), cut)


def _column(rows: pa.Table, name: str, names: Collection[str]) -> Array:
    return whole(rows.column(name)) if name in names else pa.nulls(rows.num_rows)


def _table(arrays: Mapping[str, Array]) -> pa.Table:
    return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))


def _cast(array: Array, target: TargetColumn) -> tuple[Cast, Misfit | None]:
    """Cast a column; where no value of its type fits, all values are bad."""
    try:
        return target.cast(array), None
    except Misfit as error:
        misfit = error
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError) as error:
        misfit = Misfit(reason_of(error))  # a retry would end like this one
    nulls = target.cast(pa.nulls(len(array)))
    wrong = array.is_valid().to_numpy(zero_copy_only=False)
    return nulls._replace(bad=either(nulls.bad, wrong) if wrong.any() else nulls.bad), misfit


def fit_letters(rows: pa.Table, targets: Sequence[TargetColumn]) -> Fitted:
    """Cast failed records to the columns of an error sink, which must accept them all.

    In text, NUL and what is not UTF-8 are escaped. Another value that does not fit becomes null, or
    the beginning of 1970 in a time that cannot be null; the column `reason` then ends with it.
    """
    by_name = {target.name: target for target in targets}
    arrays: dict[str, Any] = {target.name: None for target in targets}
    refused: dict[int, str] = {}
    lost: dict[int, list[str]] = {}
    names = set(rows.column_names)
    for name in sorted(arrays, key=lambda name: name == "reason"):  # it comes last
        target, array = by_name[name], _column(rows, name, names)
        if name == "reason" and lost and is_text(array.type):
            array = _with_what_was_lost(array, lost)
        cast, _ = _cast(array, target)
        if cast.bad is not None and is_text(array.type):
            array = pa.array(
                [None if each is None else _escaped(each) for each in _raw(array)], pa.string()
            )
            cast, _ = _cast(array, target)
        if cast.bad is not None:
            bad = np.flatnonzero(cast.bad)
            values = python_values(array.take(pa.array(bad)))
            for row, value in zip(bad.tolist(), values, strict=True):
                lost.setdefault(row, []).append(f"{name} {excerpt(value)}")
            cast = _replaced(array, cast.bad, target)
            refused |= reasons(name, target.type_name, array, cast)
        arrays[name] = cast.array
    return Fitted(_table(arrays), refused)


def _replaced(array: Array, bad: Any, target: TargetColumn) -> Cast:
    cast, _ = _cast(without(array, bad), target)
    if cast.bad is not None and pa.types.is_timestamp(array.type):
        begin = pa.scalar(0, pa.int64()).cast(array.type)
        cast, _ = _cast(pc.if_else(pa.array(bad), begin, array), target)
    return cast


def _with_what_was_lost(reason: Array, lost: Mapping[int, Sequence[str]]) -> Array:
    return pa.array(
        [
            f"{text or ''} (not stored: {', '.join(lost[row])})" if row in lost else text
            for row, text in enumerate(python_values(reason))
        ],
        pa.string(),
    )


def _raw(texts: Array) -> list[bytes | None]:
    return plain(texts).cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]


def _escaped(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace").replace("\0", "\\x00")
