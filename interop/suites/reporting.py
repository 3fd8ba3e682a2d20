"""A plugin for pytest in the process of a suite's tests: skips excluded tests, records the others' results.

`pytest -p interop.suites.reporting --interop-suite NAME --interop-outcome FILE`

A test that skips itself counts as failed: `exclusions.toml` names each test that is not run, and why.
Nothing but the standard library and pytest is imported, for it may run in a suite's own environment.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interop.suites.exclusions import Exclusions, read_exclusions

__all__ = ["OUTCOME_OPTION", "SUITE_OPTION"]

SUITE_OPTION = "--interop-suite"
OUTCOME_OPTION = "--interop-outcome"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options."""
    group = parser.getgroup("interop")
    group.addoption(SUITE_OPTION, help="whose exclusions hold")
    group.addoption(OUTCOME_OPTION, type=Path, help="the file to write")


def pytest_configure(config: pytest.Config) -> None:
    """Take part only where the results go somewhere."""
    if (path := config.getoption(OUTCOME_OPTION)) is not None:
        exclusions = read_exclusions().get(config.getoption(SUITE_OPTION), Exclusions({}))
        config.pluginmanager.register(_Reporter(exclusions, path))


class _Reporter:
    """Collects what becomes an `Outcome`."""

    def __init__(self, exclusions: Exclusions, path: Path) -> None:
        self._exclusions = exclusions
        self._path = path
        self._passed: list[str] = []
        self._failed: dict[str, str] = {}
        self._excluded: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept, left_out = [], []
        for item in items:
            reason = self._exclusions.reason(item.nodeid)
            if reason is None:
                kept.append(item)
            else:
                self._excluded[item.nodeid] = reason
                left_out.append(item)
        items[:] = kept
        if left_out:
            config.hook.pytest_deselected(items=left_out)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._failed[report.nodeid] = _said(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = hasattr(report, "wasxfail")
        if report.failed or (report.skipped and not expected):
            self._failed.setdefault(report.nodeid, _said(report))
        elif report.when == "call":
            self._passed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        outcome = {
            "passed": [test for test in self._passed if test not in self._failed],
            "failed": self._failed,
            "excluded": self._excluded,
        }
        self._path.write_text(json.dumps(outcome))


def _said(report: pytest.TestReport | pytest.CollectReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return f"skips itself, and is not excluded: {report.longrepr[2]}"
    return f"{report.when}: {report.longreprtext}"
