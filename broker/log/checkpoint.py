"""The checkpoint of a log: where it starts, and up to where it is known to be on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from broker.log.errors import LogCorrupt
from broker.log.files import read_sealed, write_sealed

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CHECKPOINT_FILE", "Checkpoint"]

CHECKPOINT_FILE: Final = "checkpoint"


class Checkpoint(msgspec.Struct, frozen=True):
    """What recovery may rely on.

    Attributes:
        log_start_offset: first offset that may be read.
        recovery_point: everything below is on disk.
        segment: base offset of the segment in which the recovery point lies.
        position: its byte position in that segment.
    """

    log_start_offset: int
    recovery_point: int
    segment: int
    position: int

    def save(self, directory: Path) -> None:
        """Replaces the checkpoint of the log in `directory`, durably."""
        write_sealed(directory / CHECKPOINT_FILE, msgspec.json.encode(self), durable=True)

    @classmethod
    def load(cls, directory: Path) -> Checkpoint | None:
        """The log's checkpoint; None if it is missing or damaged."""
        try:
            payload = read_sealed(directory / CHECKPOINT_FILE)
            return None if payload is None else msgspec.json.decode(payload, type=cls)
        except (LogCorrupt, msgspec.MsgspecError):
            return None
