"""The distribution installs one top-level package, and runs beside a project that uses our folders' names.

The tests build from a copy of the source tree and install without dependencies into a new environment,
which finds the libraries of the environment of the tests.
"""

from __future__ import annotations

import os
import signal
import site
import subprocess
import venv
import zipfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from interop.sdists import unpack
from tests.packaging.conftest import ROOT, build

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

RECORDS: Final = 1_000
FOLDERS: Final = ("broker", "demo", "framework", "registry", "service", "sql")
"""Names of our own folders, today's and earlier ones, that a project may use for its packages."""

STRATEGY: Final = """
import sys

import broker, demo, framework, registry, service, sql
from kmr import Strategy, map_record
from kmr.sinks import StreamWriter

OWNERS = "-".join(package.OWNER for package in (broker, demo, framework, registry, service, sql))


@map_record
def owned(record):
    return {"owners": OWNERS, "value": record.value.decode()}


strategy = Strategy(map=owned, reduce=[StreamWriter(sys.stdout, max_age=0.1)])
"""


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def tracked(folder: str) -> set[str]:
    """The files of a folder, by the names under which the package has them."""
    at = ROOT / folder
    return {
        str(path.relative_to(at))
        for path in at.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


class Environment:
    """A new virtual environment; the libraries are those of the tests, the distribution is not."""

    def __init__(self, path: Path) -> None:
        own_pip = find_spec("pip") is None  # else that of the tests, which is among the libraries
        venv.create(path, symlinks=True, with_pip=own_pip)
        self.bin = path / "bin"
        (packages,) = (path / "lib").glob("python*/site-packages")
        # A directory from a .pth file is searched last, and .pth files in it, as that of an editable
        # installation, are not read.
        (packages / "libraries.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "KMR_", "PYTEST"))
        }
        self.variables["PATH"] = f"{self.bin}:{os.environ['PATH']}"

    def install(self, wheel: Path) -> None:
        # Not compiled: of 350 modules the tests import a third.
        options = ("--no-deps", "--no-index", "--no-compile")
        self.run("python", "-m", "pip", "install", *options, str(wheel), cwd=self.bin)

    def run(self, *command: str, cwd: Path, stdin: str = "") -> str:
        """Run a command of this environment and return its output."""
        done = subprocess.run(
            command,
            executable=self.bin / command[0],
            cwd=cwd,
            env=self.variables,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, *command: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
        """Run a command until the block ends; it must then end cleanly on SIGTERM."""
        with (cwd / f"{command[1]}.log").open("w+") as log:
            process = subprocess.Popen(
                command,
                executable=self.bin / command[0],
                cwd=cwd,
                env=self.variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                yield process
                process.send_signal(signal.SIGTERM)
                code = process.wait(60)
            finally:
                process.kill()
                process.communicate()
            log.seek(0)
            assert code == 0, log.read()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.install(wheel)
    return environment


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, with packages that are called as our folders."""
    for name in FOLDERS:
        package = tmp_path / name / "__init__.py"
        package.parent.mkdir()
        package.write_text(f"OWNER = {name!r}\n", encoding="utf-8")
    (tmp_path / "flow.py").write_text(STRATEGY, encoding="utf-8")
    return tmp_path


def test_the_wheel_has_one_package_with_all_of_its_files(wheel: Path) -> None:
    names = names_in(wheel)
    assert {name.partition("/")[0] for name in names} == {"kmr"}
    assert names == {
        *(f"kmr/{name}" for name in tracked("framework")),
        *(f"kmr/broker/{name}" for name in tracked("broker")),
        *(f"kmr/registry/{name}" for name in tracked("registry")),
        *(f"kmr/sql/{name}" for name in tracked("sql")),
    }


def test_the_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", source, tmp_path / "sdist")
    again = build("wheel", unpack(sdist, tmp_path), tmp_path / "wheel")
    assert names_in(again) == names_in(wheel)


def test_an_editable_installation_imports_the_source_tree(
    source: Path, project: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "environment")
    environment.install(build("editable", source, tmp_path / "editable"))
    places = "import kmr, kmr.broker; print(kmr.__file__, kmr.broker.__file__)"
    found = [Path(at) for at in environment.run("python", "-c", places, cwd=project).split()]
    assert found == [
        source / "framework" / "__init__.py",
        source / "framework" / "broker" / "__init__.py",
    ]
    assert "flow:strategy" in environment.run("kmr", "validate", "flow:strategy", cwd=project)


def test_a_project_with_packages_of_our_folders_names_runs_a_strategy(
    installed: Environment, project: Path
) -> None:
    places = installed.run("python", "-c", "import kmr; print(kmr.__file__)", cwd=project)
    assert Path(places.strip()).is_relative_to(installed.bin.parent)
    assert "flow:strategy" in installed.run("kmr", "validate", "flow:strategy", cwd=project)

    serve = ("kmr", "broker", "serve", "--data", "log", "--port", "0")
    with installed.running(*serve, cwd=project) as broker:
        assert broker.stdout is not None
        ready = broker.stdout.readline()
        assert ready.startswith("listening on "), ready
        address = ready.removeprefix("listening on ").partition(",")[0]
        servers = ("--bootstrap-servers", address)
        values = "".join(f"{number}\n" for number in range(RECORDS))
        installed.run("kmr", "broker", "produce", "numbers", *servers, cwd=project, stdin=values)

        names = ("--topic", "numbers", "--group", "ours", *servers)
        with installed.running("kmr", "run", "flow:strategy", *names, cwd=project) as worker:
            assert worker.stdout is not None
            rows = [worker.stdout.readline() for _ in range(RECORDS)]
    owners = "-".join(FOLDERS)
    assert sorted(rows) == sorted(
        f'{{"owners":"{owners}","value":"{number}"}}\n' for number in range(RECORDS)
    )
