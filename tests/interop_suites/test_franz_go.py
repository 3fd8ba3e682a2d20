"""What go test prints becomes an outcome: nothing that was not run, or did not end, is taken for passed."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from interop.suites.contract import SuiteNotRun
from interop.suites.exclusions import Exclusions
from interop.suites.franz_go import FranzGo, outcome

if TYPE_CHECKING:
    from pathlib import Path


def events(*entries: tuple[str, str] | tuple[str, str, str]) -> str:
    """Lines of go test: action and test, and what it printed."""
    lines = []
    for action, test, *output in entries:
        event = {"Action": action, "Package": "p"} | ({"Test": test} if test else {})
        lines.append(json.dumps(event | ({"Output": output[0]} if output else {})))
    return "\n".join(["go: downloading what it needs", *lines])


def test_tests_pass_fail_and_are_excluded() -> None:
    found = outcome(
        events(
            ("start", ""),
            ("run", "TestGood"),
            ("run", "TestBad"),
            ("run", "TestShare"),
            ("output", "TestBad", "expected 1\n"),
            ("output", "TestBad", "got 2\n"),
            ("skip", "TestShare"),
            ("pass", "TestGood"),
            ("fail", "TestBad"),
            ("fail", ""),
        ),
        Exclusions({"TestShare*": "needs share groups"}),
    )
    assert found.passed == ["TestGood"]
    assert found.failed == {"TestBad": "expected 1\ngot 2"}
    assert found.excluded == {"TestShare": "needs share groups"}


def test_a_test_that_skips_itself_without_our_reason_has_failed() -> None:
    printed = events(("run", "TestX"), ("output", "TestX", "no broker\n"), ("skip", "TestX"))
    assert outcome(printed, Exclusions({})).failed == {"TestX": "no broker"}


def test_an_excluded_test_that_ran_is_reported_with_its_result() -> None:
    printed = events(("run", "TestX"), ("pass", "TestX"))
    found = outcome(printed, Exclusions({"TestX": "cannot pass"}))
    assert (found.passed, found.excluded) == (["TestX"], {})


def test_a_test_that_does_not_end_has_failed() -> None:
    printed = events(("run", "TestX"), ("output", "TestX", "waiting\n"))
    assert outcome(printed, Exclusions({})).failed == {"TestX": "it did not end"}


async def test_without_go_the_suite_names_the_missing_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SuiteNotRun, match="install Go"):
        await FranzGo().run("127.0.0.1:1", tmp_path)


def test_the_version_that_is_fetched_is_told() -> None:
    assert "franz-go v1." in FranzGo().about
