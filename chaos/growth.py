"""The rule of a soak: what a process holds must not grow once it is warm.

Of each series only the second half counts: caches, pools and compiled code fill in the first. Its slope is
that of Theil and Sen, the median of the slopes between all pairs of samples: peaks of rebalances, and up to
29 % of samples that are wrong, do not move it. Slope times time is the growth; it is a leak when it exceeds
the tolerance, which is for noise that lasts: an allocator that returns memory late, a compaction.

    memory                          4 MiB or 2 % of the median, whichever is more
    descriptors, threads, tasks     2, or 2 % of the median, whichever is more

A leak of one descriptor, thread or task per minute is found in any run of six minutes or more; one of 1 KiB
per batch, at ten batches a second, in 30 minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from chaos.history import where
from chaos.verdicts import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chaos.history import History

FIGURES: Final = ("rss", "descriptors", "threads", "tasks")
"""The columns of `resources` that must not grow; `pss` changes with the processes beside ours."""

_FEWEST: Final = 20  # samples in the half that counts
_SHARE: Final = 0.02
_LEAST: Final = {"rss": 4.0 * 2**20}
_LEAST_COUNT: Final = 2.0


@dataclass(frozen=True)
class Growth:
    """How one figure of one process moved in the half that counts.

    Attributes:
        typical: its median.
        grown: slope times time; negative when it shrank.
        tolerance: what `grown` must not exceed.
        seconds: the time.
    """

    process: str
    figure: str
    typical: float
    grown: float
    tolerance: float
    seconds: float

    @property
    def is_leak(self) -> bool:
        """Whether it grew by more than the tolerance."""
        return self.grown > self.tolerance

    def __str__(self) -> str:
        unit, scale = ("MiB", 2**20) if self.figure == "rss" else (self.figure, 1)
        return (
            f"{self.process}: {self.grown / scale:+,.1f} {unit} in {self.seconds:,.0f} s, "
            f"typically {self.typical / scale:,.0f} (tolerance {self.tolerance / scale:,.1f})"
        )


def growth_of(
    process: str, figure: str, times: NDArray[np.float64], values: NDArray[np.float64]
) -> Growth | None:
    """Apply the rule to one series.

    Args:
        times: of the samples, in seconds, ascending.

    Returns:
        None if the half that counts has too few samples.
    """
    if not len(times):
        return None
    warm = times >= (times[0] + times[-1]) / 2
    times, values = times[warm], values[warm]
    if len(times) < _FEWEST:
        return None
    before, after = np.triu_indices(len(times), k=1)
    slope = np.median((values[after] - values[before]) / (times[after] - times[before]))
    seconds, typical = float(times[-1] - times[0]), float(np.median(values))
    tolerance = max(_LEAST.get(figure, _LEAST_COUNT), _SHARE * typical)
    return Growth(process, figure, typical, float(slope) * seconds, tolerance, seconds)


def processes_of(history: History) -> set[str]:
    """Return the names of the processes that were looked at."""
    return {str(name) for name in history.resources["process"].unique().to_pylist()}


def growths(history: History) -> list[Growth | None]:
    """Apply the rule to every figure of every process that is ours: the sink is not."""
    found = []
    for process in sorted(processes_of(history) - {"clickhouse"}):
        lines = where(history.resources, "process", process)
        for figure in FIGURES:
            known = lines.filter(lines[figure].is_valid())
            times = known["time"].to_numpy().astype(np.float64) / 1e9
            values = known[figure].to_numpy().astype(np.float64)
            found.append(growth_of(process, figure, times, values))
    return found


def check_growth(history: History) -> Result:
    """No process holds more and more."""
    found = growths(history)
    judged = [each for each in found if each is not None]
    leaks = [each for each in judged if each.is_leak]
    if leaks:
        return Result("growth", "violated", "; ".join(map(str, leaks)), len(leaks))
    if not judged or len(judged) < len(found):
        return Result("growth", "unknown", "too few samples: let it run for longer")
    largest = max(judged, key=lambda each: each.grown / each.tolerance)
    return Result("growth", "ok", f"{len(judged)} series; the steepest: {largest}", len(judged))
