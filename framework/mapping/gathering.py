"""Rows of a per-record function become columns part by part, so that few of their objects are in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .results import (
    MapResult,
    from_rows,
    kept_records,
    refuse_nulls,
    same_keys,
    typed_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..values.schemas import RowType
    from .results import Failure


class GatheredRows:
    """The rows of a batch, of which each part has become columns, or values by column.

    Rows of declared columns become columns at once. Those without become lists of values, because the values
    of the whole batch decide the types; they stay rows once their keys differ.

    Args:
        schema: the class of the rows or their columns, if they are declared.
        sink_types: as those of `results.from_rows`.
    """

    def __init__(
        self, schema: RowType | pa.Schema | None, sink_types: Mapping[str, pa.DataType]
    ) -> None:
        self._schema = schema
        self._sink_types = sink_types
        self._tables: list[pa.Table] = []
        self._misfits: dict[int, str] = {}
        self._numbers: list[Any] = []
        self._count = 0
        self._values: dict[str, list[Any]] = {}
        self._rows: list[Any] = []

    def add(self, rows: list[Any], numbers: list[int]) -> None:
        """Add the rows of a part, with the number of the record of each."""
        if not rows:
            return
        if self._schema is not None:
            misfits: dict[int, str] = {}
            self._tables.append(typed_table(self._schema, rows, misfits))
            self._misfits.update({self._count + row: reason for row, reason in misfits.items()})
        elif not self._rows and (values := same_keys(rows, list(self._values) or None)) is not None:
            for name, some in values.items():
                self._values.setdefault(name, []).extend(some)
        else:
            if self._values:
                columns, self._values = self._values, {}
                self._rows = [
                    dict(zip(columns, row, strict=True))
                    for row in zip(*columns.values(), strict=True)
                ]
            self._rows += rows
        self._numbers.append(np.array(numbers, dtype=np.int64))
        self._count += len(rows)

    def result(self, failures: list[Failure]) -> MapResult:
        """Return all rows as columns, without those of records that have a value that does not fit."""
        numbers = np.concatenate(self._numbers) if self._numbers else np.empty(0, np.int64)
        if not self._tables:
            rows = self._values or self._rows
            return from_rows(None, rows, numbers, failures, self._sink_types)
        table = pa.concat_tables(self._tables).combine_chunks()
        refuse_nulls(table, self._misfits)
        return kept_records(table, numbers, self._misfits, failures)
