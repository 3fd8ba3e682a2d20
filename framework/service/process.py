"""Settings of a process, for entry points: its memory, and its end."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # glibc, malloc.h
_MIB = 1024 * 1024
_LARGEST_FROM_HEAP = 32 * _MIB  # the most that glibc takes
_KEPT = 64 * _MIB
_ENOUGH = 2048 * _MIB
_PYTHONS_YOUNG = 700  # new objects after which Python collects, by default
_YOUNG = 20_000
_LARGEST_IF_LITTLE = _MIB // 8
_HEAPS = 4
_ALLOCATOR_OF_ARROW = "ARROW_DEFAULT_MEMORY_POOL"


def memory_limit(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use: the least limit of its control groups.

    Reads `memory.max` (version 2) and `memory.limit_in_bytes` (version 1) of its group and of those above
    it, as far as the file system below `root` shows them. Without a limit it is the physical memory.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for directory in _control_groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # "max" is no number: no limit
                limits.append(int((directory / name).read_text()))
    return min(limits)


def processor_limit(root: Path = Path("/")) -> int:
    """Return how many processors this process may use, rounded down, but at least 1.

    The least of its affinity and of the limits of its control groups, read as in `memory_limit`: `cpu.max`
    (version 2), `cpu.cfs_quota_us` and `cpu.cfs_period_us` (version 1).
    """
    known = hasattr(os, "sched_getaffinity")  # not on macOS
    limits = [float(len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1)]
    for directory in _control_groups(root, "cpu"):
        with suppress(OSError, ValueError):  # "max" is no number: no limit
            quota, period = map(int, (directory / "cpu.max").read_text().split())
            limits.append(quota / period)
        with suppress(OSError, ValueError):
            quota = int((directory / "cpu.cfs_quota_us").read_text())
            if quota > 0:  # -1: no limit
                limits.append(quota / int((directory / "cpu.cfs_period_us").read_text()))
    return max(1, int(min(limits)))


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Return the directories of the control groups of this process and of those above them."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if not controllers:
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = Path(path.lstrip("/"))
        for directory in (group, *group.parents):
            yield mount / directory


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, however that ends; only on Linux.

    Args:
        parent: the parent's process id. If that is not the parent any more, this process ends now.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def freeze_modules() -> None:
    """Exclude all existing objects from garbage collection: modules live as long as the process.

    A per-record map makes so many short-lived objects that full collections are frequent, and each of them
    traverses all modules: measured, half of the cost of such a map. Young objects are collected more rarely,
    too, unless the user has chosen a threshold: with Python's 700, a map's rows are traversed in vain.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if young == _PYTHONS_YOUNG:
        gc.set_threshold(_YOUNG, *older)


def keep_freed_memory(processes: int = 1) -> bool:
    """Let malloc keep up to 64 MiB of freed memory; return False if the C library is not glibc.

    Fetch responses and columns are blocks of megabytes that live for milliseconds. By default glibc maps
    and unmaps each block, and the kernel clears its pages again: measured, half of the cost of a record
    from socket to columns. Arrow's own allocator does so too, and keeps memory of its own, so columns are
    allocated by malloc, unless the user has chosen (`ARROW_DEFAULT_MEMORY_POOL`). Threads share a few heaps:
    each keeps what was freed in it. It affects the whole process: call it once, before large allocations.

    Where less than 2 GiB may be used (`memory_limit`), large blocks go back to the kernel instead.

    Args:
        processes: how many processes share the memory equally.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    if _ALLOCATOR_OF_ARROW not in os.environ:
        import pyarrow as pa  # only here: commands that read settings start faster without it

        pa.set_memory_pool(pa.system_memory_pool())
    if memory_limit() // processes < _ENOUGH:
        options = {_M_MMAP_THRESHOLD: _LARGEST_IF_LITTLE, _M_ARENA_MAX: 2}
    else:
        options = {
            _M_TRIM_THRESHOLD: _KEPT,
            _M_MMAP_THRESHOLD: _LARGEST_FROM_HEAP,
            _M_ARENA_MAX: _HEAPS,
        }
    return bool(min(mallopt(option, value) for option, value in options.items()) == 1)
