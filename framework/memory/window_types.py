"""Rows of undeclared types in open windows: the types of the rows before them decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..columns.casting import Misfit
from ..columns.column_types import common_type, exactly
from ..columns.kinds import whole
from ..columns.reasons import reasons
from ..columns.texts import excerpt, python_values

if TYPE_CHECKING:
    from collections.abc import Callable

_pa: Any = pa


def in_types_of(
    schema: pa.Schema, rows: pa.Table, can_add: Callable[[pa.Schema], bool]
) -> tuple[pa.Table, dict[int, str]]:
    """Return rows in the types of those before them, or in wider ones that hold both.

    Args:
        schema: the types of the rows before them, which have the same columns.
        can_add: whether what was made of the rows before them can be joined with rows of other types.

    Returns:
        The rows, and the reason for each that does not fit.
    """
    refused: dict[int, str] = {}
    for at, name in enumerate(rows.column_names):
        kept, column = schema.field(name).type, rows.column(name)
        if column.type == kept or pa.types.is_null(kept):
            continue

        def widens(kind: pa.DataType, at: int = at, name: str = name) -> bool:
            return can_add(schema.set(at, pa.field(name, kind)))

        array, found = _in_type_of(name, whole(column), kept, widens)
        rows = rows.set_column(at, name, array)
        refused = found | refused
    return rows, refused


def _in_type_of(
    name: str, array: Any, kept: pa.DataType, widens: Callable[[pa.DataType], bool]
) -> tuple[Any, dict[int, str]]:
    common = kept if pa.types.is_null(array.type) else common_type(kept, array.type)
    found: tuple[Any, dict[int, str]] | None = None
    for target in () if common is None else (kept, common):
        if target == kept or widens(target):
            try:
                cast = exactly(array, target)
            except Misfit:
                continue
            if cast.bad is None or not cast.bad.any():
                return cast.array, {}
            found = found or (cast.array, reasons(name, str(target), array, cast))
    if found is not None:
        return found
    valid = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist()
    values = zip(valid, python_values(array.drop_null()), strict=True)
    none: Any = _pa.nulls(len(array), kept)
    return none, {
        row: f"column {name}: {excerpt(value)} is {array.type}, but rows of the open windows are {kept}"
        for row, value in values
    }
