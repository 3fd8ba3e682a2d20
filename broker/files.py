"""Files for people to read that are replaced as a whole (`broker.log.files` has the sealed ones)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.log.files import TEMPORARY, sync_directory

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_durably"]


def write_durably(path: Path, data: bytes) -> None:
    """Create or replace a file: after a crash it has its old content or the new one."""
    beside = path.with_name(path.name + TEMPORARY)
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)
