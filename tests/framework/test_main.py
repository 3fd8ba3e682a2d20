"""`python -m kmr` is the command `kmr`."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version


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
