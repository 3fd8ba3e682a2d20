"""Resources that a process used, from Linux's accounting; and the clock of a contender."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS  # utime and stime, proc(5)


def resident_kib(pid: int) -> int:
    """Memory of a process that is not swapped out, in KiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


class Taken(NamedTuple):
    """Wall time, and processor time of all threads of this process, in seconds; its peak of memory, in MB."""

    seconds: float
    cpu: float
    peak_mb: float = 0.0


class Stopwatch:
    """Measures this process from the first record received to the last one settled."""

    def __init__(self) -> None:
        self._begin: Taken | None = None

    def begin(self) -> None:
        """Start; only the first call counts."""
        if self._begin is None:
            self._begin = _now()

    def taken(self) -> Taken:
        """Return the time since `begin`."""
        now, begin = _now(), self._begin or _now()
        return now._replace(seconds=now.seconds - begin.seconds, cpu=now.cpu - begin.cpu)


def _now() -> Taken:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Taken(time.perf_counter(), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
