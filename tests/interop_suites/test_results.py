"""The exit code and the report say what happened, nothing less."""

from __future__ import annotations

import pytest
from rich.console import Console

from interop.suites.contract import Outcome
from interop.suites.exclusions import Exclusions
from interop.suites.results import FAILED, NOT_RUN, PASSED, Result, exit_code, markdown, summary
from interop.suites.runner import checked

GOOD = Result("good", 1.0, Outcome(["a", "b"], {}, {"c": "needs ZooKeeper"}))
BAD = Result("bad", 2.0, Outcome(["a"], {"b": "it fell over"}))
MISSING = Result("missing", 0.1, None, "the index cannot be reached")


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([GOOD], PASSED),
        ([GOOD, BAD], FAILED),
        ([GOOD, MISSING], NOT_RUN),
        ([MISSING, BAD], FAILED),
        ([], NOT_RUN),
    ],
)
def test_only_a_run_in_which_every_suite_ran_and_nothing_failed_ends_with_0(
    results: list[Result], code: int
) -> None:
    assert exit_code(results) == code


def test_the_report_names_failures_obstacles_and_the_reason_of_each_exclusion() -> None:
    report = markdown([GOOD, BAD, MISSING])
    assert "| good | 2 | 0 | 1 | 1.0 |" in report
    assert "| bad | 1 | 1 | 0 | 2.0 |" in report
    assert "| missing | not run |  |  | 0.1 |" in report
    assert "excluded: `c`: needs ZooKeeper" in report
    assert "Failed: `b`\n\n```\nit fell over\n```" in report
    assert "the index cannot be reached" in report


def test_the_table_has_the_counts_of_each_suite() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(summary([GOOD, MISSING]))
    lines = capture.get().splitlines()
    (good,) = [line for line in lines if "good" in line]
    assert good.split()[1::2] == ["good", "2", "0", "1", "1.0"]
    (missing,) = [line for line in lines if "missing" in line]
    assert "not run" in missing


def test_an_exclusion_that_excludes_nothing_is_a_failure() -> None:
    exclusions = Exclusions({"test/a.py::*": "needs several brokers", "test/b.py::gone": "old"})
    outcome = checked(Outcome(["x"], {}, {"test/a.py::one": "needs several brokers"}), exclusions)
    assert list(outcome.failed) == ["exclusions.toml: test/b.py::gone"]


def test_a_suite_that_runs_no_test_has_failed() -> None:
    assert checked(Outcome(), Exclusions({})).failed == {"no test": "none was run"}
