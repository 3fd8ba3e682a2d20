"""What both kinds of table do with the records of their topic."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from ..errors import StrategyError
from ..values.registry.id_headers import framed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .lookup import Lookup
    from .table import LookupTable


class Rejected(NamedTuple):
    """The reason why a record makes no row."""

    reason: str


class RowsByKey(Protocol):
    """What a store keeps of each key: its newest row, or its versions."""

    def stamps(self, records: pa.RecordBatch) -> Iterable[Any]:
        """Return what `put` and `drop` need to know of each record."""

    def __contains__(self, key: Any) -> bool: ...

    def put(self, key: Any, row: Any, stamp: Any) -> None:
        """Note the row that a record makes of a key."""

    def drop(self, key: Any, stamp: Any) -> None:
        """Note that a record deletes the row of a key, if there is one."""

    def __len__(self) -> int:
        """Return how many keys have a row now."""


class Store(ABC):
    """Applies records to the rows, in order, and makes the table that maps get.

    One thread applies at a time.

    Args:
        rows: keeps the rows.

    Attributes:
        rejected: how many records made no row, because they could not be decoded.
        example: the place and the reason of the last one.
    """

    def __init__(self, name: str, lookup: Lookup, rows: RowsByKey) -> None:
        self.name = name
        self.lookup = lookup
        self._rows = rows
        kind = lookup.columns.field(lookup.keys[0]).type
        self._of_text: Callable[[str], Any] | None = None
        if pa.types.is_integer(kind):
            self._of_text = int
        elif isinstance(kind, pa.UuidType):
            self._of_text = uuid.UUID
        self.rejected = 0
        self.example = ""
        # The row of a record's key, where the key is not the text of the row's key.
        self._owners: dict[bytes, Any] = {}

    def apply(self, records: pa.RecordBatch) -> None:
        """Apply the records of a batch. Raises StrategyError: the table has grown beyond `max_bytes`."""
        keys: list[bytes | None] = records.column("key").to_pylist()
        offsets = records.column("offset")
        values, unframed = framed(self.lookup.value, records, "value")
        stamps = self._rows.stamps(records)
        made_of_each = zip(keys, self._decode(values), stamps, strict=False)
        for row, (raw, made, stamp) in enumerate(made_of_each):
            if row in unframed:
                self._reject(f"offset {offsets[row].as_py()}: {unframed[row]}")
            elif isinstance(made, Rejected):
                self._reject(f"offset {offsets[row].as_py()}: {made.reason}")
            elif made is None:
                self._delete(raw, stamp)
            elif made[0] is None:
                self._reject(f"offset {offsets[row].as_py()}: the key is null")
            elif made[1] is None:
                self._rows.drop(made[0], stamp)
            else:
                self._own(raw, made[0], stamp)
                self._rows.put(*made, stamp)
        self._tidy(is_pressed=self.nbytes > self.lookup.max_bytes)
        if self.nbytes > self.lookup.max_bytes:
            raise StrategyError(
                f"table {self.name} ({self.lookup}): {len(self):,} rows need {self.nbytes:,} bytes, "
                f"more than max_bytes={self.lookup.max_bytes:,}; raise it, or keep less in the topic"
                + ("" if self.lookup.as_of is None else ", or less by keep=")
            )

    def _reject(self, example: str) -> None:
        self.rejected += 1
        self.example = example

    def _delete(self, raw: bytes | None, stamp: Any) -> None:
        """Drop the row that a record's key names."""
        if raw is None:
            return
        old = self._owners.pop(raw, None)
        if old is None:
            old = self._read_key(raw)
        if old is not None:
            self._rows.drop(old, stamp)

    def _own(self, raw: bytes | None, key: Any, stamp: Any) -> None:
        """Note which row a record's key names; drop the row that it named before."""
        if raw is None:
            return
        old = self._owned(raw)
        if old is not None and old != key:
            self._rows.drop(old, stamp)
        if raw == str(key).encode(errors="replace"):
            self._owners.pop(raw, None)
        else:
            self._owners[raw] = key

    def _owned(self, raw: bytes) -> Any:
        """Return the key of the row that a record's key names; None if it names none."""
        if (known := self._owners.get(raw)) is not None:
            return known
        key = self._read_key(raw)
        return key if key is not None and key in self._rows else None

    def _read_key(self, raw: bytes) -> Any:
        """Return the key whose text is that of a record's key; None if there is none."""
        try:
            text = raw.decode()
            return text if self._of_text is None else self._of_text(text)
        except ValueError:
            return None

    @abstractmethod
    def table(self) -> LookupTable:
        """Return the rows as they are now, for one batch."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory of the rows, estimated."""

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._rows)

    @abstractmethod
    def _tidy(self, *, is_pressed: bool) -> None:
        """Remove what is not needed any more; `is_pressed`: at once, because memory is short."""

    @abstractmethod
    def _decode(self, values: pa.BinaryArray) -> Iterator[tuple[Any, Any] | Rejected | None]:
        """Yield for each value a key and its row (None: deleted), the reason that there is none, or None.

        None is a value that is null, or is no change.
        """
