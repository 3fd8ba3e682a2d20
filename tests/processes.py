"""Processes that a test has started, as Linux shows them in `/proc`."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

__all__ = ["open_descendants"]


def open_descendants(pid: int) -> list[int]:
    """Return a file descriptor of each descendant of a process (pidfd_open); some may end meanwhile."""
    children = defaultdict(list)
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                _, _, state = (process / "stat").read_bytes().rpartition(b")")
                children[int(state.split()[1])].append(int(process.name))
    found, opened = [pid], []
    for parent in found:
        for child in children[parent]:
            found.append(child)
            with suppress(ProcessLookupError):
                opened.append(os.pidfd_open(child))
    return opened
