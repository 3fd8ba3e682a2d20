"""Rows cast to the columns of a destination, column by column, and the reasons of those that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from .casting import Cast, Misfit
from .kinds import Mask, either, whole
from .reasons import reasons

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .kinds import Array


class Target(NamedTuple):
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
        if not self.refused:
            return self.table
        keep = np.ones(self.table.num_rows, dtype=np.bool_)
        keep[list(self.refused)] = False
        return self.table.filter(pa.array(keep))


def fit_columns(rows: pa.Table, targets: Sequence[Target]) -> Fitted:
    """Cast rows to the columns of a destination; a column that the rows lack is null."""
    arrays: dict[str, Any] = {}
    refused: dict[int, str] = {}
    general: set[str] = set()
    cut: dict[str, int] = {}
    bad: Mask = None
    for target in targets:
        is_there = target.name in rows.column_names
        array = whole(rows.column(target.name)) if is_there else pa.nulls(rows.num_rows)
        try:
            cast = target.cast(array)
        except Misfit as misfit:
            reason = f"column {target.name} ({target.type_name}) cannot hold {array.type}: {misfit}"
            wrong = array.is_valid().to_numpy(zero_copy_only=False)
            new = np.flatnonzero(wrong if bad is None else wrong & ~bad)
            refused.update(dict.fromkeys(new.tolist(), reason))
            general.add(reason)
            bad = either(bad, wrong)
            cast = target.cast(pa.nulls(len(array)))
        refused |= reasons(target.name, target.type_name, array, cast, skip=bad)
        bad = either(bad, cast.bad)
        if cast.cut is not None:
            cut[target.name] = int(np.count_nonzero(cast.cut))
        arrays[target.name] = cast.array
    table = pa.Table.from_arrays(list(arrays.values()), names=list(arrays))
    return Fitted(table, refused, frozenset(general), cut)
