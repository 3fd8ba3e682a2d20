"""Which tests of a suite are not run, and why: `exclusions.toml`, a table for each suite.

Also imported by the test processes of other people's suites: nothing but the standard library.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["EXCLUSIONS", "Exclusions", "read_exclusions"]

EXCLUSIONS: Final = Path(__file__).with_name("exclusions.toml")


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Reasons by what they exclude: a test's id, or the beginning of ids and a `*`."""

    reasons: Mapping[str, str]

    def reason(self, test: str) -> str | None:
        """Why a test is not run; None for a test that is."""
        return next((why for each, why in self.reasons.items() if _names(each, test)), None)

    def unused(self, excluded: Iterable[str]) -> list[str]:
        """Those that exclude none of the tests that were excluded: wrong, or no longer needed."""
        tests = list(excluded)
        return [each for each in self.reasons if not any(_names(each, test) for test in tests)]


def read_exclusions(path: Path = EXCLUSIONS) -> dict[str, Exclusions]:
    """Every suite's, by its name.

    Raises:
        ValueError: the file is no TOML, or a test is excluded without a reason.
    """
    suites = tomllib.loads(path.read_text())
    for suite, reasons in suites.items():
        if not isinstance(reasons, dict):
            raise ValueError(  # noqa: TRY004  about the file, not about a type
                f"{path.name}: {suite} is not a table of tests and reasons"
            )
        for test, reason in reasons.items():
            if not isinstance(reason, str) or not reason.strip():
                raise ValueError(f"{path.name}: {suite} excludes {test} without a reason")
    return {suite: Exclusions(reasons) for suite, reasons in suites.items()}


def _names(exclusion: str, test: str) -> bool:
    if exclusion.endswith("*"):
        return test.startswith(exclusion[:-1])
    return test == exclusion
