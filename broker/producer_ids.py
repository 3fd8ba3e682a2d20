"""Ids for idempotent producers: unique over restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ProducerIds"]


class ProducerIds:
    """Hands out producer ids; blocks of ids are reserved on disk before the first one is used."""

    def __init__(self, path: Path) -> None:
        """`path`: the file that remembers what is reserved; created at the first id."""
        raise NotImplementedError

    def next(self) -> int:
        """A new id. Raises OSError or `LogCorrupt` if the file cannot be used."""
        raise NotImplementedError
