"""Runs suites one after the other, each against a broker of its own, in a process of its own."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from demo.processes import ChildFailed, Children
from interop.suites.contract import Outcome, SuiteNotRun
from interop.suites.exclusions import EXCLUSIONS, Exclusions, read_exclusions
from interop.suites.results import Result
from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rich.console import Console

    from interop.suites.contract import Suite

__all__ = ["checked", "run_suites"]

_TAIL: Final = 6  # lines of why a test failed; the report has all of it


async def run_suites(suites: Iterable[Suite], output: Path, console: Console) -> list[Result]:
    """Run the suites and report each result. A suite's files stay in `output/NAME` if a test failed."""
    exclusions = read_exclusions()
    results = []
    for suite in suites:
        console.print(f"{suite.name}: {suite.about}", markup=False)
        began = time.monotonic()
        try:
            outcome = await _run(suite, output / suite.name)
        except (SuiteNotRun, ChildFailed) as error:
            results.append(Result(suite.name, time.monotonic() - began, None, str(error)))
            console.print("  [red]not run:[/]", end=" ")
            console.print(str(error), markup=False)
            continue
        except Exception:  # noqa: BLE001  a bug of one suite; the next ones are run all the same
            outcome = Outcome(failed={"the suite itself": traceback.format_exc()})
        outcome = checked(outcome, exclusions.get(suite.name, Exclusions({})))
        results.append(Result(suite.name, time.monotonic() - began, outcome))
        _tell(outcome, console)
        if not outcome.failed:
            shutil.rmtree(output / suite.name)
    return results


def checked(outcome: Outcome, exclusions: Exclusions) -> Outcome:
    """The same, with what no suite notices: that it ran no test, or that an exclusion has no use."""
    faults = {
        f"{EXCLUSIONS.name}: {each}": "excludes no test of this suite: correct it, or take it out"
        for each in exclusions.unused(outcome.excluded)
    }
    if not outcome.passed and not outcome.failed:
        faults["no test"] = "none was run"
    return replace(outcome, failed=dict(outcome.failed) | faults)


async def _run(suite: Suite, directory: Path) -> Outcome:
    work = _fresh(directory)
    with tempfile.TemporaryDirectory(prefix="kmr-interop-", ignore_cleanup_errors=True) as data:
        async with Children(directory) as children:
            port = free_port()
            flags = ["--data", data, "--port", str(port), "--log-format", "json", *suite.broker]
            broker = await children.start("broker", "broker", "serve", *flags)
            await children.wait_for_port(broker, port)
            outcome = await suite.run(f"127.0.0.1:{port}", work)
            code = await broker.stop()
    faults = _errors(broker.log)
    if code:
        faults["broker: exit code"] = f"{code}:\n{broker.tail()}"
    return replace(outcome, failed=dict(outcome.failed) | faults)


def _fresh(directory: Path) -> Path:
    """An empty directory; removes the files of the run before."""
    shutil.rmtree(directory, ignore_errors=True)
    work = (directory / "suite").absolute()
    work.mkdir(parents=True)
    return work


def _errors(log: Path) -> dict[str, str]:
    """The broker's log of errors: no client may cause any."""
    faults = {}
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            entry: dict[str, Any] = msgspec.json.decode(line)
            if entry.get("level") in ("error", "critical"):
                faults[f"broker: {entry.get('event')}"] = line
    return faults


def _tell(outcome: Outcome, console: Console) -> None:
    for test, why in outcome.failed.items():
        console.print("  [red]failed[/]", end=" ")
        console.print("\n    ".join([test, *why.splitlines()[-_TAIL:]]), markup=False)
    for test, why in outcome.excluded.items():
        console.print("  excluded", end=" ")
        console.print(f"{test}: {why}", markup=False)
    counts = (len(outcome.passed), len(outcome.failed), len(outcome.excluded))
    console.print("  {} passed, {} failed, {} excluded".format(*counts))
