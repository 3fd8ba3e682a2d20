"""`kmr doctor`: connect to everything that a worker needs, and say what will go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import anyio
from cyclopts import Parameter

from ..config.flags import Given, settings_flags
from ..config.schema import show_count
from ..loading import strategy_of
from ..observe.logs import setup_logs
from ..settings import WORKER, LogSettings, Settings
from .output import plain_console, print_json

if TYPE_CHECKING:
    from ..reducers.finding import Finding

_WORDS: Final = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM"}


_FIRST: Final = ("config", "topics", "group", "bootstrap_servers", "format")


@settings_flags(WORKER, positional="strategy", first=_FIRST)
def doctor(
    strategy: str | None = None,
    /,
    *,
    given: Given[Settings],
    format: Annotated[  # noqa: A002  the flag's name
        Literal["text", "json"], Parameter(help="How to print the findings.")
    ] = "text",
) -> int:
    """Connect to everything that a worker needs, and say what will go wrong, and what to do.

    Takes the settings of `kmr run`, and checks brokers, topics, permissions, the group and its committed
    offsets, every sink, clocks, memory and limits. It joins no group, writes no record and creates no table,
    so it can run beside workers.

    Exit codes: 0 no problems, 1 problems, 2 wrong usage or settings.

    For example:

        kmr doctor hits:strategy --topic hits --group errors --bootstrap-servers kafka-1:9092
        kmr doctor --config kmr.toml --format json

    Parameters
    ----------
    strategy
        The strategy: module:attribute. The current directory is searched first.
    """
    settings = given.load(strategy=strategy)
    setup_logs(LogSettings(level="error"))
    loaded = strategy_of(settings, "doctor")
    # Imported last: it takes a second, and mistakes above should be reported at once.
    from ..doctor.examination import examine

    found = anyio.run(examine, loaded, settings)
    problems = sum(finding.level == "problem" for finding in found)
    if format == "json":
        print_json({"problems": problems, "findings": found})
    else:
        console = plain_console()
        for line in (*map(_line, found), _summary(found)):
            console.print(line)
    return 1 if problems else 0


def _line(finding: Finding) -> str:
    line = f"{_WORDS[finding.level]:<8} {finding.subject}: {finding.text}"
    return f"{line}\n         -> {finding.remedy}" if finding.remedy else line


def _summary(found: list[Finding]) -> str:
    problems = sum(finding.level == "problem" for finding in found)
    warnings = sum(finding.level == "warning" for finding in found)
    return f"{show_count(problems, 'problem')}, {show_count(warnings, 'warning')}"
