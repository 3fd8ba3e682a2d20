"""A table of objects, for per-record maps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..errors import StrategyError
from .store import Rejected, Store
from .table import UNSET, LookupTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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

    def get(self, key: Any, default: Any = UNSET) -> Any:
        row = self._rows.get(key, UNSET)
        return self._missing(key, default) if row is UNSET else row

    def __len__(self) -> int:
        return len(self._rows)

    def join(self, *_: Any, **__: Any) -> Any:
        raise StrategyError(f"{self.name}.join is for a per-batch map; use {self.name}.get(key)")

    def to_arrow(self) -> pa.Table:
        raise StrategyError(f"{self.name}.to_arrow is for a per-batch map")


class ObjectsStore(Store):
    """Keeps the newest object of each key."""

    def __init__(self, name: str, lookup: Lookup) -> None:
        super().__init__(name, lookup)
        self._rows: dict[Any, Any] = {}
        self._read_bytes = 0
        self._read = 0

    def table(self) -> LookupTable:
        return ObjectsTable(self.name, self.lookup, self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        of_value = self._read_bytes / max(1, self._read)
        return int(of_value * len(self._rows)) + _ROW_BYTES * (len(self._rows) + len(self._owners))

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
                yield None  # a delete without the row: the tombstone that follows has its key
            elif value.after is None:
                yield key_of(value.before, keys), None
            else:
                yield key_of(value.after, keys), value.after

    def _has(self, key: Any) -> bool:
        return key in self._rows

    def _put(self, key: Any, row: Any) -> None:
        self._rows[key] = row

    def _drop(self, key: Any) -> None:
        self._rows.pop(key, None)


def key_of(row: Any, names: Sequence[str]) -> Any:
    """Return the key of a row: a value, or a tuple of several."""
    get = row.__getitem__ if isinstance(row, dict) else partial(getattr, row)
    return get(names[0]) if len(names) == 1 else tuple(map(get, names))
