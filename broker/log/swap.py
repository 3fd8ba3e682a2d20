"""Replace segments by their compacted form atomically: a crash leaves the old ones or the new one.

1. Write the new segment beside the old ones, as BASE.log.tmp, and sync it.
2. Rename it to BASE-END.log.swap. From here on the new segment counts.
3. Delete the old segments from BASE to END, and rename the new one to BASE.log.

After a crash before step 2, recovery deletes the temporary file; after a later one it does step 3.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .durable_files import TEMPORARY, sync_directory
from .results import LogCorrupt
from .segment import INDEX_SUFFIXES, LOG_SUFFIX, Segment, segment_path

if TYPE_CHECKING:
    from pathlib import Path


SWAP: Final = ".swap"
_NAME: Final = re.compile(rf"([0-9]{{20}})-([0-9]{{20}}){re.escape(LOG_SUFFIX + SWAP)}")


def swap_source(directory: Path, base_offset: int) -> Path:
    """Return the file of step 1, for a segment that begins at `base_offset`."""
    path = segment_path(directory, base_offset)
    return path.with_name(path.name + TEMPORARY)


def discard_swap(directory: Path, base_offset: int) -> None:
    """Delete the file of step 1. Raises OSError."""
    swap_source(directory, base_offset).unlink(missing_ok=True)


def commit_swap(directory: Path, base_offset: int, end_offset: int) -> None:
    """Do step 2 for a synced `swap_source`. Raises OSError: then nothing has changed."""
    swap = swap_path(directory, base_offset, end_offset)
    try:
        swap_source(directory, base_offset).rename(swap)
        sync_directory(directory)
    except OSError:
        swap.unlink(missing_ok=True)
        discard_swap(directory, base_offset)
        raise


def finish_swap(directory: Path, base_offset: int, end_offset: int) -> Path:
    """Do step 3; return the path of the segment. Raises OSError."""
    final = segment_path(directory, base_offset)
    for path in list(directory.iterdir()):
        if path.suffix not in (LOG_SUFFIX, *INDEX_SUFFIXES) or not path.stem.isdecimal():
            continue
        if base_offset <= int(path.stem) < end_offset and path != final:
            path.unlink(missing_ok=True)
    sync_directory(directory)  # an old segment must not come back beside its replacement
    swap_path(directory, base_offset, end_offset).rename(final)
    sync_directory(directory)
    return final


def finish_swaps(directory: Path) -> None:
    """Do step 3 for every swap that a crash interrupted; call it before anything else. Raises OSError.

    No crash explains a damaged new segment: it is deleted if the old one is still there.
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
    """Return the offsets that a swap file replaces, the end exclusive; None for any other file."""
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


def swap_path(directory: Path, base_offset: int, end_offset: int) -> Path:
    """Return the file of step 2."""
    return directory / f"{base_offset:020d}-{end_offset:020d}{LOG_SUFFIX}{SWAP}"
