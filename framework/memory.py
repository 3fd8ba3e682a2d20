"""How a worker's process gets and keeps memory; for entry points, which own their process."""

from __future__ import annotations

import ctypes
import gc
import sys

__all__ = ["freeze_modules", "keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
_LARGEST_FROM_HEAP = 32 * 1024 * 1024  # the most that glibc takes
_KEPT = 64 * 1024 * 1024


def freeze_modules() -> None:
    """Take everything that exists now out of garbage collection: modules live as long as the process.

    A per-record map makes so many short-lived objects that full collections are frequent, and each walks
    through all modules: measured, that is half of the cost of such a map.
    """
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> bool:
    """Let malloc keep up to 64 MiB that were freed, instead of giving each block back at once.

    Fetch responses and columns are blocks of megabytes that live for milliseconds. By default glibc maps
    and unmaps each of them, and the kernel clears every page again: measured, that is half of the cost
    of a record between socket and columns. For the process as a whole, so an entry point calls it, once,
    before it allocates much. Returns False, and changes nothing, where the C library is not glibc.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = mallopt(_M_TRIM_THRESHOLD, _KEPT) == 1
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP) == 1) and kept
