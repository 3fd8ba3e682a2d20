"""Rows for encoders: cast to the columns of a format, and as Python values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..columns.fitted import TargetColumn, fit_columns
from ..columns.fitting import fit
from ..columns.kinds import either, null_rows, whole, with_leaves
from ..columns.reasons import rows_left_out
from ..columns.texts import excerpt
from .value_format import RowsDoNotFit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..columns.casting import Cast
    from ..columns.kinds import Array

_pa: Any = pa


class DoesNotFit(ValueError):
    """A value has no place in the format; the message names the field and the value."""


def fit_rows(rows: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Cast rows to the columns of a format; a column that they lack stays out.

    Args:
        what: the format, for messages.

    Raises:
        RowsDoNotFit: a value does not fit as it is, is null where the format has no null, or is in a column
            that the format lacks.
    """
    known, given = set(schema.names), set(rows.column_names)
    rows = without_columns(
        rows,
        {
            name: f"{what} has no field {name}; add it there, or leave the column out of the rows"
            for name in rows.column_names
            if name not in known
        },
    )
    targets = [
        TargetColumn(field.name, str(field.type), partial(_cast, field))
        for field in schema
        if field.name in given
    ]
    if not targets:
        return rows
    fitted = fit_columns(rows, targets)
    refuse(fitted.refused)
    return fitted.table


def without_columns(rows: pa.Table, problems: Mapping[str, str]) -> pa.Table:
    """Return rows without the columns that a format cannot have, if they have no value there.

    Args:
        problems: the reasons, by the names of the columns.

    Raises:
        RowsDoNotFit: rows have a value there.
    """
    failures: dict[int, str] = {}
    for name, reason in problems.items():
        there = whole(rows.column(name)).is_valid().to_numpy(zero_copy_only=False)
        failures.update(dict.fromkeys(np.flatnonzero(there).tolist(), reason))
    if failures:
        raise RowsDoNotFit(failures, problems.values())
    return rows.drop_columns(list(problems)) if problems else rows


def refuse(failures: Mapping[int, str]) -> None:
    """Raise RowsDoNotFit if there are failures."""
    if failures:
        raise RowsDoNotFit(failures)


def _cast(field: pa.Field[Any], array: Array) -> Cast:
    made = fit(array, field.type)
    bad = either(either(made.bad, made.cut), rows_left_out(array, field.type))
    if not field.nullable:
        bad = either(bad, null_rows(array))
    return made._replace(bad=bad)


def encode_each(rows: Iterable[Any], encode: Callable[[Any], bytes]) -> pa.BinaryArray:
    """Encode rows one by one. Raises RowsDoNotFit: the function raised an error for some rows."""
    # A value is freed once it is copied, so that the next one is made in the processor's cache.
    encoded = bytearray()
    offsets = [0]
    failures: dict[int, str] = {}
    for number, row in enumerate(rows):
        try:
            encoded += encode(row)
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
            failures[number] = str(error) if isinstance(error, DoesNotFit) else repr(error)
        offsets.append(len(encoded))
    refuse(failures)
    buffers = [None, _pa.py_buffer(np.array(offsets, np.int32)), _pa.py_buffer(encoded)]
    column: pa.BinaryArray = _pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return column


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as Python values; times are integers in their unit, maps are lists of pairs."""
    kinds = [with_leaves(kind, _as_number) for kind in table.schema.types]
    columns = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(table.columns, kinds, strict=True)
    ]
    return pa.table(columns, names=table.column_names).to_pylist()


def _as_number(kind: Any) -> Any:
    if pa.types.is_null(kind):
        return pa.bool_()  # Arrow casts lists and maps of nulls to arrays that are too short
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(kind) else kind


def dict_of(pairs: Iterable[tuple[Any, Any]], path: str) -> dict[Any, Any]:
    """Return the pairs of a map as a dict. Raises DoesNotFit: a key is there twice, or is nested."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if isinstance(key, dict | list):
            raise DoesNotFit(f"field {path}: its key {excerpt(key)} is an object or a list")
        if key in found:
            raise DoesNotFit(f"field {path}: its key {key!r} is there twice")
        found[key] = value
    return found
