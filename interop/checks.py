"""Checks: each passes with a word on what it saw, or fails with the reason; the rest go on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rich.console import Console

__all__ = ["Check", "CheckFailed", "Checks"]


class CheckFailed(Exception):
    """An observation differs from the expectation; the message has both."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the result.

    Attributes:
        subject: against what: `one node`, `three nodes`.
        detail: the observation, or the reason of the failure.
    """

    subject: str
    name: str
    passed: bool
    seconds: float
    detail: str


class Checks:
    """Runs checks one after the other, says how each went, and keeps the results."""

    def __init__(self, console: Console) -> None:
        self.results: list[Check] = []
        self._console = console

    @property
    def passed(self) -> bool:
        """Whether there were checks, and all of them passed."""
        return bool(self.results) and all(check.passed for check in self.results)

    async def run(
        self, subject: str, name: str, action: Callable[..., Awaitable[str]], *arguments: Any
    ) -> None:
        """Await `action`, which returns what it saw; any exception of its is a failed check."""
        began = time.monotonic()
        try:
            detail, passed = await action(*arguments), True
        except Exception as error:  # noqa: BLE001  the next checks are run all the same
            reason = str(error) or "no more is known"
            detail = (
                reason if isinstance(error, CheckFailed) else f"{type(error).__name__}: {reason}"
            )
            passed = False
        check = Check(subject, name, passed, time.monotonic() - began, detail)
        self.results.append(check)
        self._console.print(f"{_verdict(check)} {subject}: {name}, {check.seconds:.1f} s")
        if not passed:
            self._console.print(detail, markup=False)

    def table(self, title: str) -> Table:
        """All results."""
        shown = Table(title=title, title_justify="left", header_style="dim")
        for heading in ("against", "check", "result", "observation"):
            shown.add_column(heading)
        shown.add_column("seconds", justify="right")
        for check in self.results:
            lines = check.detail.splitlines() or [""]
            detail = lines[0] if len(lines) == 1 else f"{lines[0]} ..."
            shown.add_row(
                check.subject, check.name, _verdict(check), Text(detail), f"{check.seconds:.1f}"
            )
        return shown


def _verdict(check: Check) -> str:
    return "[green]passed[/]" if check.passed else "[red]failed[/]"
