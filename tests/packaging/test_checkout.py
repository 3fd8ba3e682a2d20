"""Rules of the checkout that no linter knows: how modules import, and what hooks run."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.packaging.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDERS: Final = ("framework", "broker", "service")
"""Names under which parts of the package could once be imported."""


def absolute_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of each import that is not relative, inside functions too."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [("framework", r"kmr\b(?!\.(broker|registry)\b)"), ("broker", r"kmr\.broker\b")],
)
def test_a_folder_of_the_package_imports_itself_by_relative_imports(
    folder: str, forbidden: str
) -> None:
    names = re.compile(rf"({forbidden}|({'|'.join(FOLDERS)})\b)")
    assert [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in (ROOT / folder).rglob("*.py")
        for line, module in absolute_imports(path)
        if names.match(module)
    ] == []


WITHOUT_BEHAVIOUR: Final = {
    "broker/apis/entities.py",
    "broker/coordinators/groups/consumer_types.py",
    "broker/coordinators/groups/group_types.py",
    "broker/errors.py",
    "broker/log/results.py",
    "framework/kafka/consumer.py",
}
"""Modules of types alone: the tests of those that use them are theirs too."""

TESTED_AS_A_WHOLE: Final = (
    "framework/columns",
    "framework/doctor",
    "framework/lookups",
    "framework/memory",
    "framework/simulation",
    "framework/values/debezium",
)
"""Rooms that are entered by one function or class, and so are they tested: their modules do nothing alone."""


@pytest.mark.parametrize("folder", ["framework", "broker"])
def test_every_module_has_tests_of_its_name(folder: str) -> None:
    """They are in the folder of the module's room, or in a subfolder of it."""
    without = set()
    for path in (ROOT / folder).rglob("*.py"):
        room, name = path.relative_to(ROOT).parent, path.stem.strip("_")
        if str(room) in TESTED_AS_A_WHOLE:
            continue
        if not list((ROOT / "tests" / room).rglob(f"test_{name}.py")):
            without.add(str(path.relative_to(ROOT)))
    assert {each for each in without if not each.endswith("/__init__.py")} == {
        path for path in WITHOUT_BEHAVIOUR if path.startswith(folder)
    }


def test_the_hooks_of_pre_commit_run_what_make_check_runs() -> None:
    makefile, hooks = (ROOT / "Makefile").read_text(), ROOT / ".pre-commit-config.yaml"
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    entries = re.findall(r"^ +entry: (.*)$", hooks.read_text(), re.MULTILINE)
    assert entries == [line.strip() for line in recipe[1].splitlines()]


def test_make_search_decides_how_many_examples_a_property_has() -> None:
    fixed = re.compile(r"max_examples=\d")
    assert [
        f"{path.relative_to(ROOT)}:{number}: write max_examples=examples(...)"
        for path in (ROOT / "tests").rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if fixed.search(line)
    ] == []
