"""A virtual environment like the running one, but for the version of PySpark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["EnvironmentFailed", "python_with_pyspark"]

_OWN: Final = ("pyspark", "py4j")
_TIMEOUT: Final = 1800.0  # seconds; PySpark is 450 MB and is built from its source archive


class EnvironmentFailed(Exception):
    """The environment cannot be made; the message says why."""


def python_with_pyspark(version: str, directory: Path) -> Path:
    """Return the Python of an environment with this PySpark; it is made if it is not in the directory yet.

    Its other packages are those of the running environment, as links to the same files. They are in its own
    directory, because what is elsewhere is the user's code to Spark, and is shipped to its tasks.

    Raises:
        EnvironmentFailed: PySpark cannot be installed.
    """
    running = Path(sysconfig.get_path("purelib"))
    home = directory / f"pyspark-{version}-py{sysconfig.get_python_version()}"
    python, complete = home / "bin" / "python", home / "complete"
    known = "\n".join(sorted(each.name for each in running.glob("*.dist-info")))
    if complete.exists() and complete.read_text() == known:
        return python
    venv.EnvBuilder(with_pip=True, clear=True).create(home)
    command = [str(python), "-m", "pip", "install", "--quiet", f"pyspark=={version}"]
    installed = subprocess.run(  # noqa: S603  nothing of others
        command, check=False, capture_output=True, text=True, timeout=_TIMEOUT
    )
    if installed.returncode:
        raise EnvironmentFailed(f"PySpark {version}: {installed.stderr.strip()}")
    link_packages(running, Path(sysconfig.get_path("purelib", vars={"base": str(home)})))
    complete.write_text(known)
    return python


def link_packages(running: Path, own: Path) -> None:
    """Link the packages that only the first directory has, without Spark's."""
    for each in running.iterdir():
        if (own / each.name).exists() or each.name.startswith(_OWN):
            continue
        if each.is_dir():
            shutil.copytree(each, own / each.name, symlinks=True, copy_function=_link)
        else:
            _link(str(each), str(own / each.name))


def _link(source: str, target: str) -> None:
    """Link a file, or copy it where the cache is on another file system."""
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)
