"""A model of a partition's log: its records, and from which offset to which one it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class LogRecords:
    """The records that a log can have. All simulations of a strategy share them.

    Attributes:
        columns: the records.
        offsets: theirs, ascending.
        record_bytes: the size of one, on average.
    """

    columns: pa.RecordBatch
    offsets: np.ndarray
    record_bytes: int

    @classmethod
    def of(cls, columns: pa.RecordBatch) -> Self:
        """Look these up once, as they take 0.5 % of a schedule."""
        offsets = columns.column("offset").to_numpy()
        return cls(columns, offsets, columns.nbytes // max(1, len(columns)))


class LogRange:
    """The offsets that can be read.

    Attributes:
        start: retention has removed the records before it.
        end: the offset after the last record.
    """

    __slots__ = ("end", "start")

    def __init__(self) -> None:
        self.start = 0
        self.end = 0

    def remove_before(self, offset: int) -> bool:
        """Remove the records before an offset; return False if the log does not reach it."""
        if offset > self.end:
            return False
        self.start = max(self.start, offset)
        return True

    def has_position(self, offset: int) -> bool:
        """Return whether a reader may be there; if not, it gets OFFSET_OUT_OF_RANGE."""
        return self.start <= offset <= self.end

    def answers_at(self, offset: int) -> bool:
        """Return whether a reader at this offset gets records, or OFFSET_OUT_OF_RANGE."""
        return self.has_records_from(offset) or not self.has_position(offset)

    def has_records_from(self, offset: int) -> bool:
        """Return whether a reader at this offset has something to read, now or after a skip."""
        return max(offset, self.start) < self.end
