"""How far a log has been compacted, and since when its tombstones are visible to consumers."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from broker.log.errors import LogCorrupt
from broker.log.files import read_sealed, write_sealed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["COMPACTION_FILE", "CompactionState", "Horizon"]

COMPACTION_FILE: Final = "compaction"


class Horizon(msgspec.Struct, frozen=True):
    """One pass of compaction.

    Attributes:
        end_offset: it was the first to see the records below this, and from the pass before on.
        since_ms: when; the older records of their keys are gone since then.
        tombstones: how many of them are still there.
    """

    end_offset: int
    since_ms: int
    tombstones: int


class _Content(msgspec.Struct, frozen=True):
    clean_to: int
    horizons: tuple[Horizon, ...]


@dataclass(frozen=True, slots=True)
class CompactionState:
    """What earlier passes have done; without a file all of the log is new to compaction.

    Attributes:
        clean_to: every key below this offset has one record below it.
        horizons: in the order of their offsets; only those with tombstones.
    """

    clean_to: int = 0
    horizons: Sequence[Horizon] = ()

    @classmethod
    def load(cls, directory: Path) -> CompactionState:
        """That of the log in `directory`; the empty one if the file is missing or damaged."""
        try:
            payload = read_sealed(directory / COMPACTION_FILE)
            if payload is None:
                return cls()
            content = msgspec.json.decode(payload, type=_Content)
        except (LogCorrupt, msgspec.MsgspecError):
            return cls()
        return cls(content.clean_to, content.horizons)

    def save(self, directory: Path) -> None:
        """Replaces the file, durably. Raises OSError."""
        content = _Content(self.clean_to, tuple(self.horizons))
        write_sealed(directory / COMPACTION_FILE, msgspec.json.encode(content), durable=True)

    def expired_tombstones_end(self, now_ms: int, retention_ms: int) -> int:
        """Tombstones below this offset have been visible for `retention_ms`; 0: there are none."""
        return max(
            (each.end_offset for each in self.horizons if each.since_ms + retention_ms <= now_ms),
            default=0,
        )

    def after_pass(self, clean_to: int, tombstones: Sequence[int], now_ms: int) -> CompactionState:
        """The state after a pass that left tombstones at these offsets (ascending)."""
        ends = [*self.horizons, Horizon(clean_to, now_ms, 0)]
        counted, first = [], 0
        for horizon in ends:
            last = bisect.bisect_left(tombstones, horizon.end_offset)
            if last > first:
                counted.append(Horizon(horizon.end_offset, horizon.since_ms, last - first))
            first = max(first, last)
        return CompactionState(clean_to, tuple(counted))
