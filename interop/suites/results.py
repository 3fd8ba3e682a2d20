"""Results of a run's suites: one for each, the exit code, and the printed and stored report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interop.suites.contract import Outcome

__all__ = ["FAILED", "NOT_RUN", "PASSED", "Result", "exit_code", "markdown", "summary"]

PASSED: Final = 0
FAILED: Final = 1
NOT_RUN: Final = 3

_HEADINGS: Final = ("suite", "passed", "failed", "excluded", "seconds")


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report.

    Attributes:
        name: of the suite.
        seconds: that it took.
        outcome: of its tests; None when it could not be run.
        obstacle: why it could not be run; "" when it was.
    """

    name: str
    seconds: float
    outcome: Outcome | None
    obstacle: str = ""


def exit_code(results: Sequence[Result]) -> int:
    """`FAILED` if any test failed, else `NOT_RUN` if any suite could not be run, else `PASSED`."""
    if any(result.outcome and result.outcome.failed for result in results):
        return FAILED
    return NOT_RUN if not results or any(not result.outcome for result in results) else PASSED


def summary(results: Sequence[Result]) -> Table:
    """The counts, for a terminal."""
    table = Table(title="clients' own tests against kmr broker", title_justify="left")
    table.add_column(_HEADINGS[0])
    for heading in _HEADINGS[1:]:
        table.add_column(heading, justify="right")
    for result in results:
        style = "" if result.outcome and not result.outcome.failed else "red"
        table.add_row(*_counts(result), style=style)
    return table


def markdown(results: Sequence[Result]) -> str:
    """All of it, for a file: counts, exclusions with their reasons, failures as the tests reported them."""
    lines = ["# Clients' own tests against kmr broker", ""]
    lines += [f"| {' | '.join(_HEADINGS)} |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += [f"| {' | '.join(_counts(result))} |" for result in results]
    for result in results:
        lines += ["", f"## {result.name}", ""]
        if result.outcome is None:
            lines += ["It could not be run:", "", "```", result.obstacle, "```"]
            continue
        for test, why in result.outcome.failed.items():
            lines += [f"Failed: `{test}`", "", "```", why, "```", ""]
        lines += [f"- excluded: `{test}`: {why}" for test, why in result.outcome.excluded.items()]
        lines += [f"- passed: `{test}`" for test in result.outcome.passed]
    return "\n".join([*lines, ""])


def _counts(result: Result) -> tuple[str, ...]:
    seconds = f"{result.seconds:.1f}"
    if (outcome := result.outcome) is None:
        return (result.name, "not run", "", "", seconds)
    counts = (len(outcome.passed), len(outcome.failed), len(outcome.excluded))
    return (result.name, *map(str, counts), seconds)
