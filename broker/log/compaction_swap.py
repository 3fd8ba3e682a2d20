"""Segments that take the place of others, at once: a crash leaves the old ones or the new one.

1. The new segment is written beside the old ones, as BASE.log.tmp, and synced.
2. It is renamed to BASE-END.log.swap: from here on it counts, whatever happens.
3. The old segments from BASE to END are deleted, and it is renamed to BASE.log.

After a crash before step 2 the temporary file is deleted, after a crash since then step 3 is done.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from broker.log.errors import LogCorrupt
from broker.log.files import TEMPORARY, sync_directory
from broker.log.index import INDEX_SUFFIXES
from broker.log.segment import LOG_SUFFIX, Segment, segment_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "SWAP",
    "commit_swap",
    "discard_swap",
    "finish_swap",
    "finish_swaps",
    "swap_bounds",
    "swap_source",
]

SWAP: Final = ".swap"
_NAME: Final = re.compile(rf"([0-9]{{20}})-([0-9]{{20}}){re.escape(LOG_SUFFIX + SWAP)}")


def swap_source(directory: Path, base_offset: int) -> Path:
    """Where a segment is written that will take the place of others from `base_offset` on."""
    path = segment_path(directory, base_offset)
    return path.with_name(path.name + TEMPORARY)


def discard_swap(directory: Path, base_offset: int) -> None:
    """Instead of step 2. Raises OSError."""
    swap_source(directory, base_offset).unlink(missing_ok=True)


def commit_swap(directory: Path, base_offset: int, end_offset: int) -> None:
    """Step 2: what was written to `swap_source`, and synced, counts from now on.

    Raises OSError: then nothing has changed.
    """
    swap = _swap_path(directory, base_offset, end_offset)
    try:
        swap_source(directory, base_offset).rename(swap)
        sync_directory(directory)
    except OSError:
        swap.unlink(missing_ok=True)
        discard_swap(directory, base_offset)
        raise


def finish_swap(directory: Path, base_offset: int, end_offset: int) -> Path:
    """Step 3; returns the path of the segment. Raises OSError."""
    final = segment_path(directory, base_offset)
    for path in list(directory.iterdir()):
        if path.suffix not in (LOG_SUFFIX, *INDEX_SUFFIXES) or not path.stem.isdecimal():
            continue
        if base_offset <= int(path.stem) < end_offset and path != final:
            path.unlink(missing_ok=True)
    sync_directory(directory)  # an old segment must not come back beside the one that replaces it
    _swap_path(directory, base_offset, end_offset).rename(final)
    sync_directory(directory)
    return final


def finish_swaps(directory: Path) -> None:
    """After a crash, before anything else is done with the log. Raises OSError.

    A new segment that is damaged, which no crash explains, is deleted while the old one is there.
    """
    for path in sorted(directory.glob(f"*{SWAP}")):
        bounds = swap_bounds(path)
        if bounds is None:
            continue
        base_offset, end_offset = bounds
        if _is_intact(path, base_offset, end_offset):
            finish_swap(directory, base_offset, end_offset)
        elif segment_path(directory, base_offset).exists():
            path.unlink()


def swap_bounds(path: Path) -> tuple[int, int] | None:
    """First offset, and the one after the last, of what a file is to replace; None of any other."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else None


def _is_intact(path: Path, base_offset: int, end_offset: int) -> bool:
    segment = Segment(path, base_offset, path.stat().st_size, 0)
    segment.end_offset = end_offset
    try:
        for _ in segment.batches(0, base_offset, verify=True):
            pass
    except LogCorrupt:
        return False
    finally:
        segment.release()
    return True


def _swap_path(directory: Path, base_offset: int, end_offset: int) -> Path:
    return directory / f"{base_offset:020d}-{end_offset:020d}{LOG_SUFFIX}{SWAP}"
