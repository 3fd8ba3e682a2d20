"""Lazy exports: a public name is imported at its first use, from wherever the package lies."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGE = """
from typing import TYPE_CHECKING

from kmr._lazy import lazy_exports

if TYPE_CHECKING:
    from .heavy import answer as answer
    from .heavy import question as reply

__getattr__, __dir__ = lazy_exports(__name__)
"""
HEAVY = """
answer, question = 42, "?"
"""
USE = """
import sys
import made

assert "made.heavy" not in sys.modules
assert {"answer", "reply"} <= set(dir(made))
assert "made.heavy" not in sys.modules
from made import answer
assert (answer, made.reply) == (42, "?")
assert "answer" in vars(made)
from made import *
assert reply == "?"
try:
    made.question
except AttributeError as error:
    assert str(error) == "module 'made' has no attribute 'question'"
else:
    raise AssertionError("a name that is not exported")
"""


@pytest.mark.parametrize("packed", [False, True])
def test_a_name_is_imported_at_its_first_use(tmp_path: Path, *, packed: bool) -> None:
    place = tmp_path / ("made.zip" if packed else "plain")
    if packed:
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("made/__init__.py", PACKAGE)
            archive.writestr("made/heavy.py", HEAVY)
    else:
        (place / "made").mkdir(parents=True)
        (place / "made" / "__init__.py").write_text(PACKAGE)
        (place / "made" / "heavy.py").write_text(HEAVY)
    program = f"import sys; sys.path.insert(0, {str(place)!r})\n{USE}"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("package", ["kmr", "kmr.sinks", "kmr.types", "kmr.broker"])
def test_every_name_of_a_package_can_be_imported(package: str) -> None:
    module = importlib.import_module(package)
    names = [name for name in dir(module) if name[0].isupper()]
    assert names
    for name in names:
        assert getattr(module, name) is not None


def test_the_package_has_at_most_thirty_names() -> None:
    assert len(importlib.import_module("kmr").__all__) <= 30


def test_names_are_found_where_pytest_has_loaded_the_package(tmp_path: Path) -> None:
    """It rewrites the modules of distributions that have plugins, as ours has, with a loader of its own."""
    (tmp_path / "test_it.py").write_text("def test_it():\n    from kmr import Strategy\n")
    information = tmp_path / "kmr-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: kmr\nVersion: 0\n")
    (information / "entry_points.txt").write_text(
        "[pytest11]\nkmr.pytest_plugin = kmr.pytest_plugin\n"
    )
    (information / "RECORD").write_text("kmr/__init__.py,,\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
