"""Ids for idempotent producers: unique over restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.log.errors import LogCorrupt
from broker.log.files import read_sealed, write_sealed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["ProducerIds"]

_BLOCK: Final = (
    1000  # ids that one write to disk reserves; at most this many are skipped by a crash
)
_NOT_OURS: Final = 2**62
"""From here on are only ids that clients have made up."""


class ProducerIds:
    """Hands out producer ids; a block of ids is reserved on disk before the first one is used."""

    def __init__(self, path: Path, *, used: Iterable[int] = ()) -> None:
        """Take over where the last broker was.

        Args:
            path: the file that remembers what is reserved; it is created at the first id.
            used: ids that are known from elsewhere. They matter when the file is missing: a second
                producer with such an id would be told that its records are there already.

        Raises:
            LogCorrupt: the file is damaged. Delete it only if no producer is still running.
        """
        self._path = path
        payload = read_sealed(path)
        if payload is not None and not payload.isdigit():
            raise LogCorrupt(path, 0, "it does not hold a number")
        if payload is None:
            known = (each + 1 for each in used if each < _NOT_OURS)
            self._next = self._reserved = max(known, default=0)
        else:
            self._next = self._reserved = int(payload)

    def next(self) -> int:
        """An id that was never handed out before. Raises OSError if a block cannot be reserved."""
        if self._next == self._reserved:
            reserved = self._reserved + _BLOCK
            write_sealed(self._path, str(reserved).encode(), durable=True)
            self._reserved = reserved
        self._next += 1
        return self._next - 1
