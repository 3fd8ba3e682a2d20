"""A table of objects, for per-record maps."""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from .object_versions import ObjectVersions
from .store import Rejected, Store
from .table import UNSET, LookupTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    import pyarrow as pa

    from .lookup import Lookup
    from .source import TableSource

_ROW_BYTES: Final = 150
"""An object and its place in the table, beside the bytes of its value."""


class ObjectsTable(LookupTable):
    """The rows that a store has made, as objects."""

    def __init__(self, name: str, source: TableSource, rows: dict[Any, Any]) -> None:
        super().__init__(name, source)
        self._rows = rows

    def get(self, key: Any, default: Any = UNSET, *, at: datetime | None = None) -> Any:
        if at is not None:
            raise self._no_versions()
        row = self._rows.get(key, UNSET)
        return self._missing(key, default) if row is UNSET else row

    def __len__(self) -> int:
        return len(self._rows)


class NewestObjects:
    """The newest object of each key."""

    def __init__(self) -> None:
        self._rows: dict[Any, Any] = {}

    def stamps(self, _records: pa.RecordBatch) -> Iterable[None]:
        """Return what `put` needs to know of each record."""
        return repeat(None)

    def __contains__(self, key: Any) -> bool:
        return key in self._rows

    def put(self, key: Any, row: Any, _stamp: None) -> None:
        """Replace the row of a key."""
        self._rows[key] = row

    def drop(self, key: Any, _stamp: None) -> None:
        """Remove the row of a key, if there is one."""
        self._rows.pop(key, None)

    def __len__(self) -> int:
        return len(self._rows)

    def tidy(self, *, is_pressed: bool) -> None:
        """Do nothing: every row is needed."""

    def nbytes(self, of_value: float) -> int:
        """Return the memory of the rows, if a value needs so much."""
        return int((of_value + _ROW_BYTES) * len(self._rows))

    def table(self, name: str, source: TableSource) -> LookupTable:
        """Return the rows as they are now and will be."""
        return ObjectsTable(name, source, self._rows)


class ObjectsStore(Store):
    """Makes an object of each record."""

    def __init__(self, name: str, lookup: Lookup) -> None:
        self._objects: Any = (
            NewestObjects() if lookup.as_of is None else ObjectVersions(lookup.keep)
        )
        super().__init__(name, lookup, self._objects)
        self._read_bytes = 0
        self._read = 0

    def table(self) -> LookupTable:
        made: LookupTable = self._objects.table(self.name, self.lookup)
        return made

    @property
    def nbytes(self) -> int:
        of_value = self._read_bytes / max(1, self._read)
        return int(self._objects.nbytes(of_value)) + _ROW_BYTES * len(self._owners)

    def _tidy(self, *, is_pressed: bool) -> None:
        self._objects.tidy(is_pressed=is_pressed)

    def _decode(self, values: pa.BinaryArray) -> Iterator[tuple[Any, Any] | Rejected | None]:
        objects, failures = self.lookup.value.decode_objects(values)
        self._read_bytes += values.nbytes
        self._read += len(values) - values.null_count
        keys, is_change = self.lookup.keys, self.lookup.value.is_changes
        for row, value in enumerate(objects):
            if row in failures:
                yield Rejected(failures[row])
            elif value is None:
                yield None
            elif not is_change:
                yield key_of(value, keys), value
            elif value.op == "t":
                yield Rejected("the table was truncated; a look-up table cannot follow that")
            elif value.after is None and value.before is None:
                yield None  # a delete without the row: the record's key names it
            elif value.after is None:
                yield key_of(value.before, keys), None
            else:
                yield key_of(value.after, keys), value.after


def key_of(row: Any, names: Sequence[str]) -> Any:
    """Return the key of a row: a value, or a tuple of several."""
    get = row.__getitem__ if isinstance(row, dict) else partial(getattr, row)
    return get(names[0]) if len(names) == 1 else tuple(map(get, names))
