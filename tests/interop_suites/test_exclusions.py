"""Every exclusion has a name and a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from interop.suites.exclusions import Exclusions, read_exclusions
from interop.suites.registry import suites

if TYPE_CHECKING:
    from pathlib import Path


def test_every_exclusion_is_of_a_suite_and_has_a_reason() -> None:
    exclusions = read_exclusions()
    assert exclusions.keys() <= {suite.name for suite in suites()}
    for each in exclusions.values():
        for reason in each.reasons.values():
            assert len(reason.split()) > 3


def test_a_test_is_excluded_by_its_id_or_by_the_beginning_of_ids() -> None:
    exclusions = Exclusions({"a.py::one[x]": "first", "b.py::*": "second"})
    assert exclusions.reason("a.py::one[x]") == "first"
    assert exclusions.reason("a.py::one[y]") is None
    assert exclusions.reason("b.py::any[z]") == "second"
    assert exclusions.unused(["b.py::any[z]"]) == ["a.py::one[x]"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('[suite]\n"a.py::one" = " "\n', "suite excludes a.py::one without a reason"),
        ('[suite]\n"a.py::one" = 1\n', "suite excludes a.py::one without a reason"),
        ('suite = "a.py::one"\n', "suite is not a table of tests and reasons"),
        ("[suite\n", "line 1"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(content: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "exclusions.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=fault):
        read_exclusions(path)
