"""Lazy exports: a public name is imported at its first use, from wherever the package lies."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

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
