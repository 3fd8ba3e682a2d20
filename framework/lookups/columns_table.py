"""A table of Arrow columns, for per-batch maps.

Rows are in a base, one large table, and an overlay, the rows that are newer. An index says where the row of a
key is. When the overlay has grown, both become a new base. So a table that a map has does not change.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from ..columns.kinds import is_bytes, is_number, is_text, whole
from ..columns.texts import python_values
from ..errors import StrategyError
from ..record import RECORD_OFFSET
from .column_versions import ColumnVersions
from .store import Rejected, Store
from .table import UNSET, LookupTable, NoRow, chosen
from .versions import TooOld, microseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

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
_TIMESTAMP: Final = "timestamp"
"""The column of a record's time in the batch of a map."""


class RowIndex(Protocol):
    """Finds rows of a base and an overlay by their keys, at one moment."""

    def __len__(self) -> int: ...

    @property
    def since(self) -> int | None:
        """The earliest time of a lookup, in microseconds since 1970; None: lookups have no time."""

    def places(self, keys: Sequence[Any], times: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return the row of each key, those of the overlay after those of the base; below 0: none."""

    def rows(self, base: pa.RecordBatch, overlay: pa.RecordBatch) -> pa.Table:
        """Return the newest row of each key."""


class NewestIndex:
    """Finds the newest rows."""

    since = None

    def __init__(
        self, index: dict[Any, int], changed: dict[Any, int], count: int, base_rows: int
    ) -> None:
        self._index, self._changed = index, changed
        self._count, self._base_rows = count, base_rows

    def __len__(self) -> int:
        return self._count

    def places(self, keys: Sequence[Any], _times: NDArray[np.int64] | None) -> NDArray[np.int64]:
        count = len(keys)
        rows = np.fromiter(map(self._index.get, keys, repeat(_DELETED)), np.int64, count)
        if not self._changed:
            return rows
        newer = np.fromiter(map(self._changed.get, keys, repeat(_UNKNOWN)), np.int64, count)
        known = newer != _UNKNOWN
        rows[known] = np.where(newer[known] == _DELETED, _DELETED, newer[known] + self._base_rows)
        return rows

    def rows(self, base: pa.RecordBatch, overlay: pa.RecordBatch) -> pa.Table:
        gone = np.zeros(len(base), np.bool_)
        gone[[self._index[key] for key in self._changed if key in self._index]] = True
        kept = base.filter(pa.array(~gone)) if gone.any() else base
        new = sorted(row for row in self._changed.values() if row != _DELETED)
        return pa.Table.from_batches([kept, overlay.take(pa.array(new, pa.int64()))])


class ColumnsTable(LookupTable):
    """The rows of a store at one moment."""

    def __init__(
        self,
        name: str,
        source: TableSource,
        base: pa.RecordBatch,
        overlay: pa.RecordBatch,
        index: RowIndex,
    ) -> None:
        super().__init__(name, source)
        self._keys = source.keys
        self._base, self._overlay = base, overlay
        self._index = index
        self._count = len(index)

    @classmethod
    def of(cls, name: str, source: TableSource, rows: pa.RecordBatch) -> ColumnsTable:
        """Make a table of rows that do not change; of rows with one key, the last one."""
        index = {key: row for row, key in enumerate(keys_of(rows, source.keys))}
        newest = NewestIndex(index, {}, len(index), len(rows))
        return cls(name, source, rows, rows.slice(0, 0), newest)

    def __len__(self) -> int:
        return self._count

    def get(self, key: Any, default: Any = UNSET, *, at: datetime | None = None) -> Any:
        times: Any = None
        if (since := self._index.since) is not None:
            moment = microseconds(self.name, at)
            if moment < since:
                raise TooOld.of(self.name, moment, since)
            times = np.array([moment])
        elif at is not None:
            raise self._no_versions()
        (row,) = self._index.places([key], times)
        if row < 0:
            return self._missing(key, default)
        part, place = (
            (self._base, row) if row < len(self._base) else (self._overlay, row - len(self._base))
        )
        one = part.slice(int(place), 1)
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
        at: str | None = None,
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
        places = self._places(batch, keys, at)
        if found is not None:
            batch = batch.append_column(found, pa.array(places >= 0))
        elif self._source.missing == "dead-letter" and (places < 0).any():
            raise _failing(
                batch, np.flatnonzero(places < 0), lambda row: self._no_row(keys[int(row)])
            )
        for column, new in names.items():
            field = self._base.schema.field(column).with_name(new).with_nullable(nullable=True)
            batch = batch.append_column(field, self._take(column, places))
        return batch

    def _places(self, batch: Any, keys: list[Any], at: str | None) -> NDArray[np.int64]:
        """Return the row of each row of a batch, at its time if the table has versions; below 0: none."""
        since = self._index.since
        if since is None:
            if at is not None:
                raise self._no_versions()
            return self._index.places(keys, None)
        column = self._times_of(batch, at)
        times, is_known = column.fill_null(since), column.is_valid()
        times = times.to_numpy(zero_copy_only=False)
        if (times < since).any():
            raise _failing(
                batch,
                np.flatnonzero(times < since),
                lambda row: TooOld.of(self.name, int(times[row]), since),
            )
        places = self._index.places(keys, times)
        places[~is_known.to_numpy(zero_copy_only=False)] = _DELETED
        return places

    def _times_of(self, batch: Any, at: str | None) -> Any:
        """Return the times of the lookups in microseconds since 1970."""
        name = at or _TIMESTAMP
        if name not in batch.schema.names:
            why = "which at= names" if at else "the record's time: keep it, or name another by at="
            raise StrategyError(f"{self.name}.join: the batch has no column {name}, {why}")
        column = batch.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = whole(column)
        if not pa.types.is_timestamp(column.type):
            raise StrategyError(
                f"{self.name}.join: column {name} is {column.type}, and the time of a lookup is a timestamp"
            )
        return column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())

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
        return self._index.rows(self._base, self._overlay)


def _failing(batch: Any, rows: NDArray[np.int64], error_of: Callable[[Any], NoRow]) -> NoRow:
    """Return the error of some rows of a batch, by their offsets where the batch has them."""
    error = error_of(rows[0])
    if RECORD_OFFSET in batch.schema.names:
        offsets = batch.column(RECORD_OFFSET).take(pa.array(rows)).to_pylist()
        error.records = {
            offset: error_of(row) for offset, row in zip(offsets, rows.tolist(), strict=True)
        }
    return error


class NewestRows:
    """Where the newest row of each key is."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._index: dict[Any, int] = {}
        self._changed: dict[Any, int] = {}
        self._count = 0
        self.is_live = False

    def stamps(self, _records: pa.RecordBatch) -> Iterable[None]:
        """Return what `put` needs to know of each record."""
        return repeat(None)

    def __contains__(self, key: Any) -> bool:
        row = self._changed.get(key)
        return key in self._index if row is None else row != _DELETED

    def put(self, key: Any, row: int, _stamp: None) -> None:
        """Replace the row of a key by one of the overlay."""
        self._count += key not in self
        self._changed[key] = row

    def drop(self, key: Any, _stamp: None) -> None:
        """Remove the row of a key, if there is one."""
        if key not in self:
            return
        self._count -= 1
        if key in self._index:
            self._changed[key] = _DELETED
        else:
            del self._changed[key]

    def __len__(self) -> int:
        return self._count

    @property
    def news(self) -> int:
        """How many keys have changed since the base was made."""
        return len(self._changed)

    @property
    def nbytes(self) -> int:
        """The memory of the keys, estimated."""
        return _KEY_BYTES * (self._count + len(self._changed))

    def index(self, base_rows: int) -> NewestIndex:
        """Return what finds the rows that there are now."""
        return NewestIndex(self._index, dict(self._changed), self._count, base_rows)

    def compact(self, base: pa.RecordBatch, overlay: pa.RecordBatch) -> pa.Table:
        """Return the rows of a new base; `renumber` is called with it."""
        made = NewestIndex(self._index, self._changed, self._count, len(base)).rows(base, overlay)
        self._index, self._changed = {}, {}
        return made

    def renumber(self, base: pa.RecordBatch) -> None:
        """Note where the rows of the new base are."""
        self._index = {key: row for row, key in enumerate(keys_of(base, self._keys))}


class ColumnsStore(Store):
    """Makes Arrow columns of the records."""

    def __init__(self, name: str, lookup: Lookup) -> None:
        self._where: NewestRows | ColumnVersions = (
            NewestRows(lookup.keys) if lookup.as_of is None else ColumnVersions(lookup.keep)
        )
        super().__init__(name, lookup, self._where)
        self._schema = pa.schema([field.with_nullable(nullable=True) for field in lookup.columns])
        self._base = self._empty = pa.RecordBatch.from_pylist([], schema=self._schema)
        self._new: list[pa.RecordBatch] = []
        self._first = 0  # number of the first row of the batch that is applied, in the overlay

    def _tidy(self, *, is_pressed: bool) -> None:
        part = _LIVE_PART if self._where.is_live else 2
        news = self._where.news
        if news > max(_MOST_NEW, len(self._base) // part) or (is_pressed and news):
            self._merge()

    def table(self) -> LookupTable:
        self._where.is_live = True
        overlay = self._joined()
        self._new = [overlay] if len(overlay) else []
        index = self._where.index(len(self._base))
        return ColumnsTable(self.name, self.lookup, self._base, overlay, index)

    @property
    def nbytes(self) -> int:
        rows = self._base.nbytes + sum(each.nbytes for each in self._new)
        return rows + self._where.nbytes + _KEY_BYTES * len(self._owners)

    def _joined(self) -> pa.RecordBatch:
        if not self._new:
            return self._empty
        (batch,) = pa.Table.from_batches(self._new).combine_chunks().to_batches() or [self._empty]
        return batch

    def _merge(self) -> None:
        """Make a new base of the base and the overlay; tables that maps have keep the old one."""
        every = self._where.compact(self._base, self._joined())
        # What is as large goes first: the next index needs its memory.
        self._base, self._new = self._empty, []
        (self._base,) = every.combine_chunks().to_batches() or [self._empty]
        del every
        self._where.renumber(self._base)

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
            elif absent[row] or op is None or (op == "d" and _is_null(key)):
                yield None  # a delete without the row: the record's key names it
            elif op == "t":
                yield Rejected("the table was truncated; a look-up table cannot follow that")
            else:
                yield key, None if op == "d" else self._first + row


def _is_null(key: Any) -> bool:
    return any(each is None for each in key) if isinstance(key, tuple) else key is None


def compare_equal(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether equal values of two types are equal as keys: as Python's objects."""
    return any(
        all(pa.types.is_null(each) or is_one(each) for each in (one, other))
        for is_one in (is_number, is_text, is_bytes, pa.types.is_timestamp, pa.types.is_date)
    )


def keys_of(columns: pa.RecordBatch, names: Sequence[str]) -> list[Any]:
    """Return the key of each row."""
    values = [python_values(columns.column(name)) for name in names]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))
