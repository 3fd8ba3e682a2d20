"""One result of a check, for `kmr doctor`."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

import msgspec

Level = Literal["ok", "warning", "problem"]

_CLOCKS_APART: Final = 5.0  # seconds


class Finding(msgspec.Struct, frozen=True):
    """One result of a check.

    Attributes:
        level: `problem`: the worker will not start, or will stop or lose data; `warning`: it runs, but not as
            well as it could, or not for long.
        subject: what was checked: `topic hits`, `group errors`, `reduce-1`.
        text: the fact, and what will go wrong.
        remedy: what to do; empty if nothing need be done.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""


ok = partial(Finding, "ok")
warning = partial(Finding, "warning")
problem = partial(Finding, "problem")


def compare_clocks(subject: str, theirs: float, before: float, after: float) -> Finding:
    """Compare the clock of a server with ours.

    Args:
        theirs: the server's answer, in seconds since 1970.
        before: our time when it was asked.
        after: our time when it had answered.
    """
    apart = max(before - theirs, theirs - after, 0.0)
    if apart < _CLOCKS_APART:
        return ok(subject, "its clock agrees with ours")
    direction = "behind" if theirs < before else "ahead of"
    return warning(
        subject,
        f"its clock is {apart:.0f} s {direction} ours: ages of records, lags and TTLs are wrong by that",
        "let both machines synchronise their clocks (NTP)",
    )
