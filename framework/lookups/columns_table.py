"""A table of Arrow columns, for per-batch maps.

Rows are in a base, one large table, and an overlay, the rows that are newer. An index says where the row of a
key is. When the overlay has grown, both become a new base. So a table that a map has does not change.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ..columns.kinds import is_bytes, is_text, whole
from ..columns.texts import python_values
from ..errors import StrategyError
from ..record import RECORD_OFFSET
from .store import Rejected, Store
from .table import UNSET, LookupTable, NoRow, chosen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from .lookup import Lookup
    from .source import TableSource

_DELETED: Final = -1
_UNKNOWN: Final = -2
_MOST_NEW: Final = 10_000
"""Rows of an overlay that do not make a new base yet, and as many as a part of the base."""
_LIVE_PART: Final = 16
"""An overlay is copied with each change of a table that maps have; of one that is loaded, with none."""
_KEY_BYTES: Final = 120
"""A key and its place in the index."""


class ColumnsTable(LookupTable):
    """The rows of a store at one moment."""

    def __init__(
        self,
        name: str,
        source: TableSource,
        base: pa.RecordBatch,
        index: dict[Any, int],
        overlay: pa.RecordBatch,
        changed: dict[Any, int],
        count: int,
    ) -> None:
        super().__init__(name, source)
        self._keys = source.keys
        self._base, self._index = base, index
        self._overlay, self._changed = overlay, changed
        self._count = count

    @classmethod
    def of(cls, name: str, source: TableSource, rows: pa.RecordBatch) -> ColumnsTable:
        """Make a table of rows that do not change; of rows with one key, the last one."""
        index = {key: row for row, key in enumerate(keys_of(rows, source.keys))}
        return cls(name, source, rows, index, rows.slice(0, 0), {}, len(index))

    def __len__(self) -> int:
        return self._count

    def get(self, key: Any, default: Any = UNSET) -> Any:
        (row,) = self._places([key])
        if row < 0:
            return self._missing(key, default)
        part, at = (
            (self._base, row) if row < len(self._base) else (self._overlay, row - len(self._base))
        )
        one = part.slice(int(at), 1)
        return {
            name: python_values(column)[0]
            for name, column in zip(one.schema.names, one.columns, strict=True)
        }

    def join(
        self,
        batch: Any,
        *,
        on: str | Sequence[str],
        columns: Sequence[str] | Mapping[str, str] | None = None,
        found: str | None = None,
    ) -> Any:
        of_key = (on,) if isinstance(on, str) else tuple(on)
        if len(of_key) != len(self._keys):
            raise StrategyError(
                f"{self.name}.join: the key has the fields {', '.join(self._keys)}; on= names {len(of_key)}"
            )
        for each in of_key:
            if each not in batch.schema.names:
                raise StrategyError(
                    f"{self.name}.join: the batch has no column {each}, which on= names; it has "
                    f"{', '.join(batch.schema.names)}"
                )
        taken = batch.schema.names if found is None else [*batch.schema.names, found]
        names = chosen(self.name, self._base.schema.names, self._keys, columns, taken)
        keys = self._keys_of(batch, of_key)
        places = self._places(keys)
        if found is not None:
            batch = batch.append_column(found, pa.array(places >= 0))
        elif self._source.missing == "dead-letter" and (places < 0).any():
            raise self._no_rows(batch, keys, np.flatnonzero(places < 0))
        for column, new in names.items():
            field = self._base.schema.field(column).with_name(new).with_nullable(nullable=True)
            batch = batch.append_column(field, self._take(column, places))
        return batch

    def _no_rows(self, batch: Any, keys: list[Any], missing: NDArray[np.int64]) -> NoRow:
        """Return the error of the records that have none, by their offsets where the batch has them."""
        error = self._no_row(keys[missing[0]])
        if RECORD_OFFSET in batch.schema.names:
            offsets = batch.column(RECORD_OFFSET).take(pa.array(missing)).to_pylist()
            error.records = {
                offset: self._no_row(keys[row])
                for offset, row in zip(offsets, missing, strict=True)
            }
        return error

    def _keys_of(self, batch: Any, on: Sequence[str]) -> list[Any]:
        """Return the keys of a batch as the index has them."""
        values = []
        for name, key in zip(on, self._keys, strict=True):
            column, kind = batch.column(name), self._base.schema.field(key).type
            if isinstance(column, pa.ChunkedArray):
                column = whole(column)
            if column.type != kind and not compare_equal(column.type, kind):
                raise StrategyError(
                    f"{self.name}.join: column {name} is {column.type}, the key {key} is {kind}; cast it"
                )
            values.append(python_values(column))
        return values[0] if len(values) == 1 else list(zip(*values, strict=True))

    def _places(self, keys: list[Any]) -> NDArray[np.int64]:
        """Return the row of each key, those of the overlay after those of the base; below 0: none."""
        count = len(keys)
        rows = np.fromiter(map(self._index.get, keys, repeat(_DELETED)), np.int64, count)
        if not self._changed:
            return rows
        newer = np.fromiter(map(self._changed.get, keys, repeat(_UNKNOWN)), np.int64, count)
        known = newer != _UNKNOWN
        rows[known] = np.where(newer[known] == _DELETED, _DELETED, newer[known] + len(self._base))
        return rows

    def _take(self, column: str, places: NDArray[np.int64]) -> Any:
        split = len(self._base)
        is_new = places >= split
        old: Any = pa.array(places, mask=(places < 0) | is_new)
        found: Any = self._base.column(column).take(old)
        if not is_new.any():
            return found
        at: Any = pa.array(places - split, mask=~is_new)
        new: Any = self._overlay.column(column).take(at)
        order = np.arange(len(places)) + np.where(is_new, len(places), 0)
        return pa.concat_arrays([found, new]).take(pa.array(order))

    def to_arrow(self) -> pa.Table:
        gone = np.zeros(len(self._base), np.bool_)
        gone[[self._index[key] for key in self._changed if key in self._index]] = True
        kept = self._base.filter(pa.array(~gone)) if gone.any() else self._base
        new = sorted(row for row in self._changed.values() if row != _DELETED)
        return pa.Table.from_batches([kept, self._overlay.take(pa.array(new, pa.int64()))])


class ColumnsStore(Store):
    """Keeps the newest row of each key."""

    def __init__(self, name: str, lookup: Lookup) -> None:
        super().__init__(name, lookup)
        self._schema = pa.schema([field.with_nullable(nullable=True) for field in lookup.columns])
        self._base = self._empty = pa.RecordBatch.from_pylist([], schema=self._schema)
        self._index: dict[Any, int] = {}
        self._new: list[pa.RecordBatch] = []
        self._changed: dict[Any, int] = {}
        self._first = 0  # number of the first row of the batch that is applied, in the overlay
        self._count = 0
        self._is_live = False

    def apply(self, records: pa.RecordBatch) -> None:
        super().apply(records)
        part = _LIVE_PART if self._is_live else 2
        if len(self._changed) > max(_MOST_NEW, len(self._base) // part):
            self._merge()

    def table(self) -> LookupTable:
        self._is_live = True
        overlay = self._joined()
        self._new = [overlay] if len(overlay) else []
        changed = dict(self._changed)
        return ColumnsTable(
            self.name, self.lookup, self._base, self._index, overlay, changed, self._count
        )

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        rows = self._base.nbytes + sum(each.nbytes for each in self._new)
        return rows + _KEY_BYTES * (self._count + len(self._owners) + len(self._changed))

    def _joined(self) -> pa.RecordBatch:
        if not self._new:
            return self._empty
        (batch,) = pa.Table.from_batches(self._new).combine_chunks().to_batches() or [self._empty]
        return batch

    def _merge(self) -> None:
        """Make a new base of the base and the overlay; tables that maps have keep the old one."""
        every = ColumnsTable(
            self.name, self.lookup, self._base, self._index, self._joined(), self._changed, 0
        ).to_arrow()
        # What is as large goes first: the next index needs its memory.
        self._base, self._new, self._index, self._changed = self._empty, [], {}, {}
        (self._base,) = every.combine_chunks().to_batches() or [self._empty]
        del every
        self._index = {key: row for row, key in enumerate(keys_of(self._base, self.lookup.keys))}

    def _decode(self, values: pa.BinaryArray) -> Iterator[tuple[Any, Any] | Rejected | None]:
        decoded, failures = self.lookup.value.decode(values)
        columns = decoded.select(self._schema.names).cast(self._schema)
        self._first = sum(map(len, self._new))
        self._new.append(columns)
        absent = values.is_null().to_pylist()
        ops = decoded.column("op").to_pylist() if self.lookup.value.is_changes else None
        for row, key in enumerate(keys_of(columns, self.lookup.keys)):
            op = "" if ops is None else ops[row]
            if row in failures:
                yield Rejected(failures[row])
            elif absent[row] or op is None:
                yield None
            elif op == "t":
                yield Rejected("the table was truncated; a look-up table cannot follow that")
            else:
                yield key, None if op == "d" else self._first + row

    def _has(self, key: Any) -> bool:
        row = self._changed.get(key)
        return key in self._index if row is None else row != _DELETED

    def _put(self, key: Any, row: Any) -> None:
        self._count += not self._has(key)
        self._changed[key] = row

    def _drop(self, key: Any) -> None:
        if not self._has(key):
            return
        self._count -= 1
        if key in self._index:
            self._changed[key] = _DELETED
        else:
            del self._changed[key]


def compare_equal(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether equal values of two types are equal as keys: as Python's objects."""
    return any(
        all(pa.types.is_null(each) or is_one(each) for each in (one, other))
        for is_one in (_is_number, is_text, is_bytes, pa.types.is_timestamp, pa.types.is_date)
    )


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def keys_of(columns: pa.RecordBatch, names: Sequence[str]) -> list[Any]:
    """Return the key of each row."""
    values = [python_values(columns.column(name)) for name in names]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))
