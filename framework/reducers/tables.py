"""Rows of several batches as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from framework.errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from framework.record import Rows

__all__ = ["one_table"]


def one_table(rows: Sequence[Rows]) -> pa.Table:
    """All rows, in order, as one table; a column that only some have is null in the others.

    Types that differ become the wider one (int32 and int64, a type and null).

    Raises:
        StrategyError: a column has types that do not go together, such as numbers and text.
    """
    tables = [each.table for each in rows]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise StrategyError(
            f"batches have columns of types that do not go together ({error}); "
            "declare them, with @map_record(schema=...)"
        ) from error
