"""The distribution, built from a copy of the source tree: wheel and sdist."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_SOURCES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "kmr",
    "framework",
    "broker",
    "registry",
    "sql",
    "demo",
)


def build(kind: str, source: Path, output: Path) -> Path:
    """Build a `wheel`, an `sdist` or an `editable` wheel of a source tree, with the installed setuptools."""
    program = (
        "import sys; from setuptools import build_meta; "
        f"print(build_meta.build_{kind}(sys.argv[1]), file=sys.stderr)"
    )
    output.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", program, output],
        cwd=source,
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return output / done.stderr.splitlines()[-1]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree with its links, because a build writes into the tree."""
    copy = tmp_path_factory.mktemp("source")
    for name in _SOURCES:
        at = ROOT / name
        if at.is_dir() and not at.is_symlink():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(at, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(at, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))
