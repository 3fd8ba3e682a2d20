"""`python -m kmr` is the command `kmr`."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import kmr


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kmr", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"{version('kafka-map-reduce')}\n",
        "",
    )
    unknown = subprocess.run(
        [sys.executable, "-m", "kmr", "nothing"], capture_output=True, check=False
    )
    assert unknown.returncode == 2


def test_the_processes_of_maps_can_run_it_as_a_file() -> None:
    path = Path(kmr.__file__).with_name("__main__.py")
    assert runpy.run_path(str(path), run_name="__mp_main__")["__name__"] == "__mp_main__"
