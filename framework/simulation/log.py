"""A model of a partition's log: from which offset to which one it has records."""

from __future__ import annotations

__all__ = ["LogRange"]


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

    def has_records_from(self, offset: int) -> bool:
        """Return whether a reader at this offset has something to read, now or after a skip."""
        return max(offset, self.start) < self.end
