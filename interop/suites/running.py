"""Other people's tests, run by pytest in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.processes import ChildFailed, give_up_after
from interop.suites import reporting
from interop.suites.contract import Outcome, SuiteNotRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from demo.processes import Children

__all__ = ["ROOT", "merged", "run_pytest"]

ROOT: Final = Path(__file__).parents[2]
"""The checkout; where a suite's process finds this package."""

_PATIENCE: Final = 1800.0  # seconds for a whole run


async def run_pytest(
    children: Children,
    suite: str,
    tests: Sequence[str],
    source: Path,
    *,
    name: str = "pytest",
    python: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run tests of a suite but for those that `exclusions.toml` names.

    Args:
        children: its log, which has everything that pytest prints, is among theirs.
        suite: its name.
        tests: files or ids of tests, and further arguments of pytest.
        source: the directory to run in; ids of tests begin below it.
        name: of the log, and of the file with the outcome.
        python: of the suite's own environment; default: this one.
        environment: more variables. `PYTHONPATH` is put before this checkout.

    Raises:
        SuiteNotRun: pytest could not run any test; the message has the end of what it printed.
    """
    path = children.logs / f"{name}.json"
    command = [str(python or sys.executable), "-m", "pytest", "-p", reporting.__name__]
    command += [reporting.SUITE_OPTION, suite, reporting.OUTCOME_OPTION, str(path.absolute())]
    variables = dict(environment or {})
    before = variables.get("PYTHONPATH")
    variables["PYTHONPATH"] = os.pathsep.join([*([before] if before else ()), str(ROOT)])
    child = await children.spawn(name, [*command, *tests], directory=source, environment=variables)
    try:
        with give_up_after(_PATIENCE, f"pytest of {suite} does not end"):
            await child.wait()
    except ChildFailed as error:
        return Outcome(failed={name: f"{error}\n{child.tail()}"})
    finally:
        await child.stop()
    if not path.exists():
        raise SuiteNotRun(f"pytest of {suite} ended without a result:\n{child.tail()}")
    found = json.loads(path.read_text())
    return Outcome(found["passed"], found["failed"], found["excluded"])


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of several runs that are one suite."""
    passed = [test for outcome in outcomes for test in outcome.passed]
    failed = {test: why for outcome in outcomes for test, why in outcome.failed.items()}
    excluded = {test: why for outcome in outcomes for test, why in outcome.excluded.items()}
    return Outcome(passed, failed, excluded)
