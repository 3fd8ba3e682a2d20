"""What both kinds of table do with the records of their topic."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .lookup import Lookup
    from .table import LookupTable


class Rejected(NamedTuple):
    """The reason why a record makes no row."""

    reason: str


class Store(ABC):
    """Applies records to the rows, in order, and makes the table that maps get.

    One thread applies at a time.

    Attributes:
        rejected: how many records made no row, because they could not be decoded.
        example: the place and the reason of the last one.
    """

    def __init__(self, name: str, lookup: Lookup) -> None:
        self.name = name
        self.lookup = lookup
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
        """Apply the records of a batch.

        Raises:
            StrategyError: the table has grown beyond `max_bytes`.
        """
        keys: list[bytes | None] = records.column("key").to_pylist()
        offsets = records.column("offset")
        values: Any = records.column("value")
        for row, (raw, made) in enumerate(zip(keys, self._decode(values), strict=True)):
            if isinstance(made, Rejected):
                self._reject(f"offset {offsets[row].as_py()}: {made.reason}")
            elif made is None:
                if raw is not None and (old := self._owned(raw)) is not None:
                    self._owners.pop(raw, None)
                    self._drop(old)
            elif made[0] is None:
                self._reject(f"offset {offsets[row].as_py()}: the key is null")
            elif made[1] is None:
                self._drop(made[0])
            else:
                self._own(raw, made[0])
                self._put(*made)
        if self.nbytes > self.lookup.max_bytes:
            raise StrategyError(
                f"table {self.name} ({self.lookup}): {len(self):,} rows need {self.nbytes:,} bytes, "
                f"more than max_bytes={self.lookup.max_bytes:,}; raise it, or keep less in the topic"
            )

    def _reject(self, example: str) -> None:
        self.rejected += 1
        self.example = example

    def _own(self, raw: bytes | None, key: Any) -> None:
        """Note which row a record's key names; drop the row that it named before."""
        if raw is None:
            return
        old = self._owned(raw)
        if old is not None and old != key:
            self._drop(old)
        if raw == str(key).encode(errors="replace"):
            self._owners.pop(raw, None)
        else:
            self._owners[raw] = key

    def _owned(self, raw: bytes) -> Any:
        """Return the key of the row that a record's key names; None if it names none."""
        if (known := self._owners.get(raw)) is not None:
            return known
        key = self._read_key(raw)
        return key if key is not None and self._has(key) else None

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

    @abstractmethod
    def __len__(self) -> int:
        """Return how many rows there are."""

    @abstractmethod
    def _decode(self, values: pa.BinaryArray) -> Iterator[tuple[Any, Any] | Rejected | None]:
        """Yield for each value a key and its row (None: deleted), the reason that there is none, or None.

        None is a value that is null, or is no change.
        """

    @abstractmethod
    def _has(self, key: Any) -> bool: ...

    @abstractmethod
    def _put(self, key: Any, row: Any) -> None: ...

    @abstractmethod
    def _drop(self, key: Any) -> None: ...
