"""`python -m interop`: real clients' own tests against our broker, each suite with a broker of its own.

Other people's tests come from the Python package index and from Maven Central, into the user's cache, every
file verified. Exit codes: 0 every suite ran and nothing failed, 1 a test failed, 2 wrong usage, 3 a suite
could not be run (its sources cannot be fetched, a program is missing).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from rich.console import Console

from interop.suites.registry import suites
from interop.suites.results import exit_code, markdown, summary
from interop.suites.runner import run_suites

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_WIDTH: Final = 180  # of the table, where there is no terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, keep the report; see the module for the exit codes."""
    known = {suite.name: suite for suite in suites()}
    options = _parser(list(known)).parse_args(arguments)
    width = None if sys.stdout.isatty() else _WIDTH
    console = Console(soft_wrap=True, highlight=False, width=width)
    if options.list:
        for suite in known.values():
            console.print(f"{suite.name}: {suite.about}", markup=False)
        return 0
    chosen = [known[name] for name in dict.fromkeys(options.only or known)]
    output = Path(options.output)
    try:
        results = anyio.run(run_suites, chosen, output, console)
    except KeyboardInterrupt:
        return 130
    report = output / "clients.md"
    report.write_text(markdown(results))
    console.print(summary(results))
    console.print(f"report: {report}", markup=False)
    return exit_code(results)


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m interop", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the suites, and run none")
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="SUITE",
        help=f"run this one; may be given more than once: {', '.join(names)}",
    )
    parser.add_argument(
        "--output", default=".kmr/interop", metavar="DIR", help="for reports and logs [%(default)s]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
